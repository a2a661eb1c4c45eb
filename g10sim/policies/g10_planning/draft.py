"""What a planning method works out: moves before they are put in order, and the estimate behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from g10sim.analysis.timeline import Integers, kernel_at
from g10sim.policies.g10_planning.machine import PlannedMachine
from g10sim.policies.g10_planning.occupancy import PlannedEviction
from g10sim.trace.model import Tensor, Trace


@dataclass(frozen=True, slots=True)
class PlannedAllocation:
    """Space for a tensor that is born at kernel ``birth``, asked for at kernel ``kernel``."""

    tensor: int
    size_bytes: int
    kernel: int
    birth: int


@dataclass(frozen=True)
class Draft:
    """Result of a planning method.

    ``frees`` are (kernel, tensor). ``occupancy_bytes`` is the estimate per kernel under these moves,
    ``durations`` the kernel times in cycles that it assumes, stalls included. ``pressed_kernel`` is the one
    with the highest estimate before any eviction.
    """

    evictions: tuple[PlannedEviction, ...]
    allocations: tuple[PlannedAllocation, ...]
    frees: tuple[tuple[int, int], ...]
    occupancy_bytes: Integers
    durations: Integers
    target_bytes: float
    pressed_kernel: int

    @property
    def feasible(self) -> bool:
        """Whether the estimate stays within the target during every kernel."""
        return bool(self.occupancy_bytes.max(initial=0) <= self.target_bytes)

    @property
    def expected_cycles(self) -> int:
        """Iteration time that the plan reckons with."""
        return int(self.durations.sum())


def starts_of(durations: Integers) -> Integers:
    """Start of every kernel and the end of the last one, for durations in cycles."""
    starts = np.zeros(len(durations) + 1, dtype=np.int64)
    np.cumsum(durations, out=starts[1:])
    return starts


def allocation_kernel(tensor: Tensor, birth: int, starts: Integers, machine: PlannedMachine) -> int:
    """Kernel at which to ask for space so that it is there at birth; 0 where the iteration is too young.

    Kernel running at (birth - bytes / allocation rate), as in the published simulator.
    """
    time = float(starts[birth]) - tensor.size_bytes / machine.allocation_rate
    return 0 if time < 0 else min(birth, kernel_at(starts, int(time)))


def late_uses(trace: Trace, tensor: int) -> tuple[int, ...]:
    """Kernels that write a tensor after its contents are dead: it takes up memory again."""
    death = trace.deaths[tensor]
    return tuple(kernel for kernel in trace.uses[tensor] if kernel >= death)
