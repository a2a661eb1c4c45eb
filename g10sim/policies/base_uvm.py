"""Base UVM: pages move when they are touched."""

from __future__ import annotations

from g10sim.looks import GREY, Look
from g10sim.policies.base import Policy, Requirements
from g10sim.policies.registry import register_policy


@register_policy
class BaseUvm(Policy):
    """Unified memory without hints: page faults bring pages in, least recent pages go out."""

    name = "base_uvm"
    label = "Base UVM"
    look = Look(GREY, marker="s", line=":")
    paper = "Baseline of the G10 paper (MICRO 2023), section 7.1"
    requirements = Requirements(moves_ahead=False)
