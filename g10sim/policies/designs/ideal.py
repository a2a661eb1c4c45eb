"""A GPU with unlimited memory: the yardstick."""

from __future__ import annotations

from g10sim.looks import BLACK, Look
from g10sim.policies.interface import Policy, Requirements
from g10sim.policies.interface.registry import register_policy


@register_policy
class Ideal(Policy):
    """Everything stays on the GPU: an iteration takes the sum of its kernels' durations.

    Kernels wait for those on the CPU that use the same tensors, whose data are where they need them at once.
    """

    name = "ideal"
    label = "Ideal"
    look = Look(BLACK, marker="", line="--")
    paper = "Yardstick of the G10 paper (MICRO 2023), section 7.1"
    requirements = Requirements(unlimited_memory=True, moves_ahead=False)
