"""Demand of a trace: bytes alive during each kernel, and the periods in which tensors may be away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from g10sim.analysis.footprint import unmoved_bytes, working_set_bytes
from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Integers, kernel_durations
from g10sim.analysis.vitality import InactivePeriod, each_inactive_period
from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Period:
    """A tensor is used by kernel ``last`` and then not before kernel ``following``.

    One that ``wraps`` crosses the border of the iteration. A ``frozen`` tensor leaves without a transfer.
    ``rerun`` is (cycles, bytes) of the kernel that may run again in place of a transfer back, with all its
    results that can be dropped; None if the tensor cannot be dropped.
    """

    size_bytes: int
    last: int
    following: int
    wraps: bool = False
    rerun: tuple[int, int] | None = None
    frozen: bool = False


@dataclass(frozen=True)
class Demand:
    """One iteration of a trace, in cycles and whole pages.

    ``live_bytes`` are those of each kernel: persistent tensors that some kernel uses, live ranges, and what
    is written in vain; ``lasting_bytes`` are the first of these, ``frozen_bytes`` those that none writes.
    ``needed_bytes`` is the largest working set, ``sizes`` are those of tensors. With ``recomputes`` tensors
    may be dropped.
    """

    cycles: Integers
    live_bytes: Integers
    lasting_bytes: int
    needed_bytes: int
    trace: Trace
    sizes: Sequence[int]
    recomputes: bool = False
    frozen_bytes: int = 0

    @cached_property
    def periods(self) -> tuple[Period, ...]:
        """Every period in which a tensor may be away, by tensor and then by start."""
        return tuple(self._periods(each_inactive_period(self.trace)))

    @cached_property
    def wrapping(self) -> tuple[Period, ...]:
        """The periods that cross the border of the iteration, a few of what may be millions."""
        return tuple(self._periods(found for found in each_inactive_period(self.trace) if found.wraps))

    def _periods(self, inactive: Iterable[InactivePeriod]) -> Iterator[Period]:
        trace, sizes = self.trace, self.sizes
        reruns = _Reruns(trace, self.cycles, sizes) if self.recomputes else None
        for found in inactive:
            last = trace.uses[found.tensor][-1] if found.wraps else found.start - 1
            rerun = None if reruns is None else reruns.of(found)
            frozen = found.tensor in trace.frozen
            yield Period(sizes[found.tensor], last, found.end, found.wraps, rerun, frozen)

    @property
    def ideal_cycles(self) -> int:
        """Sum of the kernel times."""
        return int(self.cycles.sum())

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at a time."""
        return int(self.live_bytes.max(initial=0))


def demand_of(trace: Trace, clock_hz: int, page_bytes: int, *, recompute: bool = False) -> Demand:
    """Return the demand of a trace; with ``recompute``, tensors may be dropped and computed again."""
    sizes = [pages * page_bytes for pages in trace.page_sizes(page_bytes)]
    cycles = kernel_durations(trace, clock_hz)
    facts = zip(sizes, trace.lasting, trace.uses, strict=True)
    used = sum(size for size, lasts, uses in facts if lasts and uses)
    needed = int(working_set_bytes(trace, sizes).max(initial=0))
    frozen_bytes = sum(sizes[tensor] for tensor in trace.frozen if trace.uses[tensor])
    live = unmoved_bytes(trace, sizes)
    return Demand(cycles, live, used, needed, trace, sizes, recompute, frozen_bytes)


class _Reruns:
    """Finds the least that it takes to compute tensors again."""

    def __init__(self, trace: Trace, cycles: Integers, sizes: Sequence[int]) -> None:
        self._trace, self._cycles, self._sizes = trace, cycles, sizes
        self._rules = Recomputability(trace, chains=True)
        periods = each_inactive_period(trace)
        self._droppable = {period.tensor for period in periods if self._may_drop(period)}

    def _may_drop(self, period: InactivePeriod) -> bool:
        """Return whether a policy may drop the tensor, once the kernel before the period has ended."""
        moments = () if period.wraps else (period.start - 1, period.end)
        return any(not self._rules.problem(period.tensor, kernel) for kernel in moments)

    def of(self, period: InactivePeriod) -> tuple[int, int] | None:
        """Return (cycles, bytes) of the rerun that brings a tensor back at the end of a period, or None.

        A rerun brings all results back that were dropped. A tensor that is written next, and not read, comes
        back for nothing.
        """
        tensor = period.tensor
        if not self._may_drop(period):
            return None
        producer = self._rules.producer(tensor, period.end)
        if producer is None or tensor not in self._trace.kernels[period.end].inputs:
            return 0, self._sizes[tensor]
        results = self._droppable.intersection(producer.outputs)
        return int(self._cycles[producer.id]), sum(self._sizes[result] for result in results)
