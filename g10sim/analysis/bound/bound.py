"""The bound of a trace on a machine: the better of the closed form and the certified linear program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from g10sim.analysis.bound.certificate import certified_stall
from g10sim.analysis.bound.closed_form import closed_form
from g10sim.analysis.bound.demand import Checkpoints, Demand, choose_checkpoints, demand_of
from g10sim.analysis.bound.machine import GPU_MEMORY, BoundMachine
from g10sim.errors import CapacityError, UnsupportedError
from g10sim.trace.model import Trace
from g10sim.units import format_bytes

if TYPE_CHECKING:
    from g10sim.analysis.bound.program import Solution

CHECKPOINTS = 40
"""Checkpoints of a linear program unless another number is asked for."""
RERUNS = "computing again"
GPU_ALONE = "kernels run on the CPU; bounds hold for kernels on the GPU"
"""Reason why no bound holds for a trace with kernels on the CPU."""


@dataclass(frozen=True)
class Bound:
    """Cycles that no iteration can do with less (``steady``: iterations in the long run, on average).

    ``stalls`` are the cycles of waiting by the resource that they are due to, ``savings`` the cycles by which
    the bound falls per percent that a resource gets better (to first order).
    """

    cycles: int
    ideal_cycles: int
    method: str
    steady: bool = False
    recompute: bool = False
    stalls: dict[str, float] = field(default_factory=dict)
    savings: dict[str, float] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Name of the kind of bound."""
        return ("steady" if self.steady else "iteration") + (" with recomputation" if self.recompute else "")

    @property
    def stall_cycles(self) -> int:
        """Cycles of waiting that nothing can avoid."""
        return self.cycles - self.ideal_cycles

    @property
    def resource(self) -> str:
        """Resource that most of the waiting is due to; empty where nothing has to wait."""
        return max(self.stalls, key=lambda name: self.stalls[name]) if self.stall_cycles else ""


def iteration_bound(
    trace: Trace,
    machine: BoundMachine,
    *,
    steady: bool = False,
    recompute: bool = False,
    checkpoints: int | None = None,
) -> Bound:
    """Return the bound of a trace; ``checkpoints`` asks for the linear program with that many of them.

    With ``recompute`` tensors may be dropped and computed again; that takes the program.

    Raises CapacityError if nothing can run the trace: a working set is larger than GPU memory, or what is
    alive at a time is larger than all memory together; UnsupportedError if kernels run on the CPU.
    """
    if trace.cpu_kernels:
        raise UnsupportedError(f"{trace.model}: {GPU_ALONE}")
    demand = demand_of(trace, machine.clock_hz, machine.page_bytes, recompute=recompute)
    return demand_bound(demand, machine, steady=steady, checkpoints=checkpoints)


def demand_bound(
    demand: Demand, machine: BoundMachine, *, steady: bool, checkpoints: int | None = None
) -> Bound:
    """Return the bound of a demand. Raises CapacityError as ``iteration_bound`` does."""
    machine = machine.reduced(demand.peak_bytes)
    best = Bound(demand.ideal_cycles, demand.ideal_cycles, "sum of the kernels", steady, demand.recomputes)
    _check_room(demand, machine)
    if not demand.recomputes:
        cycles, stalls, savings = closed_form(demand, machine, steady=steady)
        best = replace(best, cycles=cycles, method="closed form", stalls=stalls, savings=savings)
    count = checkpoints or CHECKPOINTS if demand.recomputes else checkpoints
    if count is None:
        return best
    # SciPy doubles the time that a command takes to start.
    from g10sim.analysis.bound.program import LinearProgram

    chosen = Checkpoints(demand, choose_checkpoints(demand, count), steady)
    solution = LinearProgram(machine, chosen).solve()
    if solution is None:
        return best
    cycles = demand.ideal_cycles + certified_stall(solution.prices, machine, chosen)
    if cycles < best.cycles:
        return best
    return replace(
        best,
        cycles=cycles,
        method="linear program",
        stalls=dict(_stalls(solution, machine)),
        savings=dict(_savings(solution, machine, chosen)),
    )


def _check_room(demand: Demand, machine: BoundMachine) -> None:
    if demand.needed_bytes > machine.room_bytes:
        raise CapacityError(
            f"a kernel has a working set of {format_bytes(demand.needed_bytes)}; allowed: at most the GPU "
            f"memory, {format_bytes(machine.room_bytes)}"
        )
    below = sum(machine.store_bytes(store) for store in machine.stores)
    if demand.peak_bytes > machine.room_bytes + below and not demand.recomputes:
        raise CapacityError(
            f"{format_bytes(demand.peak_bytes)} are alive at a time; allowed: at most what GPU memory and "
            f"memory tiers hold, {format_bytes(machine.room_bytes + below)}"
        )


def _stalls(solution: Solution, machine: BoundMachine) -> Iterator[tuple[str, float]]:
    """Return waiting by the limit that it pays for."""
    waited, prices = solution.stall_cycles, solution.prices
    for limit, row in zip(machine.limits, prices.crossing, strict=True):
        yield limit.name, float(row @ waited) * limit.rate / machine.clock_hz
    yield RERUNS, float(prices.rerun @ waited)


def _savings(solution: Solution, machine: BoundMachine, chosen: Checkpoints) -> Iterator[tuple[str, float]]:
    """Return what a percent more of each resource takes off the bound."""
    time, prices = solution.stall_cycles + np.array(chosen.cycles), solution.prices
    yield GPU_MEMORY, float(prices.space.sum()) * machine.room_bytes / 100
    for store, row in zip(machine.stores, prices.storing, strict=True):
        yield store.name, float(row.sum()) * machine.store_bytes(store) / 100
    for limit, row in zip(machine.limits, prices.crossing, strict=True):
        yield limit.name, float(row @ time) * limit.rate / machine.clock_hz / 100
