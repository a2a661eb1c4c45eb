"""Base UVM: pages move when they are touched."""

from __future__ import annotations

from g10sim.policies.base import Policy
from g10sim.policies.registry import register_policy


@register_policy
class BaseUvm(Policy):
    """Unified memory without hints: page faults bring pages in, least recent pages go out."""

    name = "base_uvm"
    label = "Base UVM"
    paper = "Baseline of the G10 paper (MICRO 2023), section 7.1"
    moves_ahead = False
