"""An iteration as PressureFit plans it: tasks, and what they need of memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from operator import attrgetter

import numpy as np

from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.footprint import levels
from g10sim.analysis.pools.operations import stays_of
from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressure.forecast import Dropped, Reruns, with_reruns
from g10sim.policies.interface import PlannedMachine, PlannedTier
from g10sim.policies.planning.blocks.parts import part_numbers, parts_of
from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Gap:
    """No task from ``start`` to ``end`` - 1 uses a tensor, whose first user is task ``first``.

    Tasks are counted on over the border of the iteration. ``written`` is the last task before it that writes
    the tensor; None if none does. What is ``frozen`` no task ever writes.
    """

    tensor: int
    start: int
    end: int
    first: int
    written: int | None
    frozen: bool


@dataclass(frozen=True)
class Program:
    """Tasks of an iteration: kernels in a row of one block and micro-batch, or single kernels.

    ``kernels`` are the first kernels of tasks, ``begins`` the cycles at which they start without stalls; of
    both one more is given, the end. ``needed`` are the bytes of each task where tensors stay from their first
    use to their last and persistent ones always; ``scratch`` those of them that only this task has, ``fresh``
    those that it makes, and ``gone`` those that nobody needs after it. ``ahead`` are the bytes that the rest
    of a task needs beyond what is alive when one of its kernels starts. ``drops`` are computed again.
    ``stays`` are tensors with the first and the last of the tasks for which they have contents, if these are
    several; ``lasting`` those that always have some.
    """

    kernels: Sequence[int]
    begins: Integers
    needed: Integers
    scratch: Integers
    fresh: Integers
    gone: Integers
    ahead: Sequence[int]
    gaps: Sequence[Gap]
    sizes: Sequence[int]
    tiers: Sequence[PlannedTier]
    capacity_bytes: int
    drops: Sequence[Dropped]
    stays: Sequence[tuple[int, int, int]]
    lasting: Sequence[int]

    @cached_property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.needed)

    @cached_property
    def times(self) -> list[int]:
        """Cycles at which the tasks of this iteration and the next one start without stalls, and the end."""
        return [*self.begins[:-1].tolist(), *(self.begins + self.begins[-1]).tolist()]

    @cached_property
    def ends(self) -> list[int]:
        """Tasks at which all gaps end."""
        return [gap.end for gap in self.gaps]

    @cached_property
    def first_due(self) -> list[int]:
        """Gaps by their ends, the first one first."""
        return sorted(range(len(self.gaps)), key=self.ends.__getitem__)

    @cached_property
    def too_large(self) -> frozenset[int]:
        """Tasks without room even where all leaves that they do not use."""
        spans = ((gap.start, gap.end, self.sizes[gap.tensor]) for gap in self.gaps)
        given = levels(spans, 2 * self.tasks).reshape(2, self.tasks).sum(axis=0)
        return frozenset(np.flatnonzero(self.needed - given > self.capacity_bytes).tolist())

    @cached_property
    def gap_sizes(self) -> list[int]:
        """Bytes that all gaps give room."""
        return [self.sizes[gap.tensor] for gap in self.gaps]

    @cached_property
    def cycles_in(self) -> list[int]:
        """Cycles after which the tensors of all gaps are back on an idle link."""
        return [self.tiers[gap.tensor].in_cycles(self.sizes[gap.tensor]) for gap in self.gaps]

    @cached_property
    def cycles_out(self) -> list[int]:
        """Cycles after which the tensors of all gaps have left on an idle link."""
        return [self.tiers[gap.tensor].out_cycles(self.sizes[gap.tensor]) for gap in self.gaps]


def block_numbers(trace: Trace) -> list[int]:
    """Return for each kernel the number of its block and micro-batch; where there are none, its own."""
    parts = parts_of(trace)
    return part_numbers(parts) if len(parts) > 1 else list(range(len(trace.kernels)))


def split_numbers(numbers: Sequence[int], tasks: Container[int]) -> list[int]:
    """Return for each kernel the number of its task, where those of some tasks are tasks by themselves."""
    begins = (number != before or number in tasks for before, number in pairwise((-1, *numbers)))
    return [total - 1 for total in accumulate(begins)]


class Programs:
    """Programs of a trace, each with other tensors dropped and computed again.

    Kernel k belongs to task ``numbers[k]``. What does not depend on drops is found once.
    """

    def __init__(self, demand: Demand, machine: PlannedMachine, numbers: Sequence[int]) -> None:
        self._demand, self._machine, self.numbers, trace = demand, machine, numbers, demand.trace
        self._kernels = [*np.unique(self.numbers, return_index=True)[1].tolist(), len(self.numbers)]
        self._writers = Recomputability(trace).writers
        self._lasts = trace.lasting
        self._uses = [uses[: bisect_left(uses, trace.deaths[i])] for i, uses in enumerate(trace.uses)]
        self._stays = [[] if lasts else stays_of(trace, i) for i, lasts in enumerate(self._lasts)]
        self._gaps = list(map(self._gaps_of, range(len(self._uses)), self._uses, self._stays))

    def least_cycles(self, drops: Iterable[Dropped]) -> int:
        """Return how long the kernels take where some tensors are dropped and computed again."""
        return int(with_reruns(self._demand.cycles, drops).sum())

    def of(self, drops: Sequence[Dropped]) -> Program:
        """Return the tasks where some tensors are dropped and computed again."""
        demand, machine, reruns = self._demand, self._machine, Reruns(self._demand, drops)
        uses, stays, gaps = self._uses.copy(), self._stays.copy(), self._gaps.copy()
        for drop in drops:
            stays[drop.tensor] = list(_without(drop, stays[drop.tensor]))
        for kernel, tensor in reruns.sources:
            uses[tensor] = (*uses[tensor], kernel)
        for tensor in {drop.tensor for drop in drops} | {tensor for _, tensor in reruns.sources}:
            gaps[tensor] = self._gaps_of(tensor, uses[tensor], stays[tensor])
        spans = [(i, *span) for i, own in enumerate(stays) for span in own]
        again = reruns.most_scratch_bytes()
        scratch, fresh, gone = self._memory(spans, again)
        found, numbers = list(chain.from_iterable(gaps)), self.numbers
        outer = [(tensor, numbers[start], numbers[end - 1]) for tensor, start, end in spans]
        return Program(
            kernels=self._kernels,
            begins=np.concatenate(([0], with_reruns(demand.cycles, drops).cumsum()))[self._kernels],
            needed=demand.lasting_bytes + fresh.cumsum() - gone.cumsum() + gone + scratch,
            scratch=scratch,
            fresh=fresh,
            gone=gone,
            ahead=self._ahead(reruns.live_bytes + again),
            gaps=found,
            sizes=demand.sizes,
            tiers=_tiers(machine, found, demand.sizes, len(fresh)),
            capacity_bytes=machine.gpu_bytes // machine.page_bytes * machine.page_bytes,
            drops=drops,
            stays=[(tensor, first, last) for tensor, first, last in outer if first != last],
            lasting=[tensor for tensor, lasts in enumerate(self._lasts) if lasts and uses[tensor]],
        )

    def _gaps_of(self, tensor: int, uses: Iterable[int], stays: Iterable[tuple[int, int]]) -> list[Gap]:
        """Return the gaps between the tasks that use a tensor, where it has contents."""
        numbers, lasts = self.numbers, self._lasts[tensor]
        tasks, found = sorted({numbers[kernel] for kernel in uses}), list[Gap]()
        written = [numbers[kernel] for kernel in self._writers[tensor]]
        for start, end in [(0, len(numbers))] if lasts and tasks else stays:
            used = [task for task in tasks if numbers[start] <= task <= numbers[end - 1]]
            following = [*used[1:], used[0] + numbers[-1] + 1] if lasts else used[1:]
            for last, later in zip(used, following, strict=False):
                if later > last + 1:
                    before = bisect_right(written, last)
                    writer = written[before - 1] if before else None
                    found.append(Gap(tensor, last + 1, later, tasks[0], writer, not written))
        return found

    def _memory(
        self, spans: Sequence[tuple[int, int, int]], again: Integers
    ) -> tuple[Integers, Integers, Integers]:
        """Return the bytes of each task that only it has, that it makes, and that nobody needs after it.

        A span is a tensor, the first kernel for which it has contents, and the kernel after the last one;
        ``again`` are bytes of each kernel besides.
        """
        tensors, starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 3).T
        numbers, sizes, kernels = np.array(self.numbers), np.array(self._demand.sizes)[tensors], self._kernels
        firsts, lasts = numbers[starts], numbers[ends - 1]
        inner, outer, count = firsts == lasts, firsts != lasts, kernels[-1] + 1
        within = _sums(starts[inner], sizes[inner], count) - _sums(ends[inner], sizes[inner], count)
        scratch = np.maximum.reduceat(within.cumsum()[:-1] + again, kernels[:-1])
        fresh, gone = (_sums(tasks[outer], sizes[outer], len(scratch)) for tasks in (firsts, lasts))
        return scratch, fresh, gone

    def _ahead(self, live: Integers) -> list[int]:
        """Return for each kernel the most bytes that are born until its task ends, less those that die."""
        trace, sizes = self._demand.trace, self._demand.sizes
        mortal = [i for i, lasts in enumerate(self._lasts) if not lasts and trace.uses[i]]
        dying = _sums([trace.deaths[i] for i in mortal], [sizes[i] for i in mortal], len(live) + 1)[:-1]
        tasks = (live[first:end] for first, end in pairwise(self._kernels))
        most = np.concatenate([np.maximum.accumulate(own[::-1])[::-1] for own in tasks])
        found: list[int] = np.maximum(0, most - np.roll(live, 1) + dying).tolist()
        return found


def _sums(places: Sequence[int] | Integers, sizes: Sequence[int] | Integers, count: int) -> Integers:
    """Return the bytes at each of some places."""
    return np.bincount(places, sizes, count).astype(np.int64)


def _without(drop: Dropped, stays: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the kernels, half open, during which a tensor has contents that is dropped meanwhile."""
    for start, end in stays:
        if start < drop.start < drop.end < end:
            yield from ((start, drop.start), (drop.end, end))
        else:
            yield start, end


def _tiers(
    machine: PlannedMachine, gaps: Sequence[Gap], sizes: Sequence[int], tasks: int
) -> list[PlannedTier]:
    """Return where each tensor lies when it is away: the first tier with room for all that may be there."""
    found, tiers = [machine.tiers[-1]] * len(sizes), machine.tiers[:-1]
    used = np.zeros((len(tiers), tasks), dtype=np.int64)
    for tensor, group in groupby(gaps, attrgetter("tensor")):
        own, size = list(group), sizes[tensor]
        lasts = own[-1].end >= tasks
        away = used if lasts else used[:, own[0].start : own[-1].end]
        for tier, there in zip(tiers, away, strict=True):
            if size + int(there.max()) <= tier.capacity_bytes:
                found[tensor] = tier
                there += size
                break
    return found
