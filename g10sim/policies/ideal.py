"""A GPU with unlimited memory: the yardstick."""

from __future__ import annotations

from g10sim.policies.base import Policy
from g10sim.policies.registry import register_policy


@register_policy
class Ideal(Policy):
    """Everything stays on the GPU: an iteration takes the sum of its kernels' durations."""

    name = "ideal"
    label = "Ideal"
    paper = "Yardstick of the G10 paper (MICRO 2023), section 7.1"
    unlimited_memory = True
    moves_ahead = False
