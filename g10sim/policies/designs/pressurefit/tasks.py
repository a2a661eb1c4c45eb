"""An iteration as PressureFit plans it: tasks, and what they need of memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter

import numpy as np

from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.pools.operations import stays_of
from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressure.forecast import Dropped, Forecast, with_reruns
from g10sim.policies.interface.machine import PlannedMachine, PlannedTier
from g10sim.policies.planning.blocks.parts import part_numbers, parts_of
from g10sim.trace.model import Trace
from g10sim.trace.repetition import each


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
    """Tasks of an iteration: kernels in a row of one block and micro-batch; without blocks, kernels.

    ``kernels`` are the first kernels of tasks, ``begins`` the cycles at which they start without stalls; of
    both one more is given, the end. ``needed`` are the bytes of each task where tensors stay from their first
    use to their last and persistent ones always; ``scratch`` those of them that only this task has, ``fresh``
    those that it makes, and ``gone`` those that nobody needs after it. ``ahead`` are the bytes that the rest
    of a task needs beyond what is alive when one of its kernels starts.
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

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.needed)

    def time(self, task: int) -> int:
        """Return the cycle at which a task of this iteration or the next one starts without stalls."""
        rounds, place = divmod(task, self.tasks)
        return int(rounds * self.begins[-1] + self.begins[place])

    def tier(self, gap: Gap) -> PlannedTier:
        """Return where a tensor lies meanwhile."""
        return self.tiers[gap.tensor]


def task_numbers(trace: Trace) -> list[int]:
    """Return the number of each kernel's task."""
    parts = parts_of(trace)
    return part_numbers(parts) if len(parts) > 1 else list(range(len(trace.kernels)))


def program_of(
    trace: Trace, demand: Demand, machine: PlannedMachine, drops: Sequence[Dropped] = ()
) -> Program:
    """Return the tasks of a trace in which some tensors are dropped and computed again."""
    numbers = task_numbers(trace)
    forecast = Forecast(trace, machine, demand, drops)
    kernels = [*np.unique(numbers, return_index=True)[1].tolist(), len(numbers)]
    memory = _Memory(numbers, demand.sizes)
    for kernel, tensors in enumerate(forecast.scratch):
        for tensor in tensors:
            memory.stay(tensor, kernel, kernel + 1)
    written, dropped = _writers(trace, numbers), {drop.tensor: drop for drop in drops}
    gaps = list[Gap]()
    for tensor, lasts in enumerate(each(trace.tensors, attrgetter("persistent"))):
        tasks = sorted({numbers[kernel] for kernel in forecast.uses(tensor)})
        if lasts and tasks:
            memory.last(tensor)
            spans = [(0, len(numbers))]
        else:
            spans = list(_spans(trace, tensor, dropped.get(tensor)))
            for start, end in spans:
                memory.stay(tensor, start, end)
        for start, end in spans:
            used = [task for task in tasks if numbers[start] <= task <= numbers[end - 1]]
            following = [*used[1:], used[0] + memory.tasks] if lasts else used[1:]
            for last, later in zip(used, following, strict=False):
                if later > last + 1:
                    before = bisect_right(written[tensor], last)
                    writer = written[tensor][before - 1] if before else None
                    frozen = not written[tensor]
                    gaps.append(Gap(tensor, last + 1, later, tasks[0], writer, frozen))
    scratch = np.maximum.reduceat(memory.within.cumsum()[:-1], kernels[:-1])
    return Program(
        kernels=kernels,
        begins=np.concatenate(([0], with_reruns(demand.cycles, drops).cumsum()))[kernels],
        needed=memory.staying.cumsum()[:-1] + scratch,
        scratch=scratch,
        fresh=memory.fresh,
        gone=memory.gone,
        ahead=_ahead(forecast, kernels),
        gaps=gaps,
        sizes=demand.sizes,
        tiers=_tiers(machine, gaps, demand.sizes, memory.tasks),
        capacity_bytes=machine.gpu_bytes // machine.page_bytes * machine.page_bytes,
    )


class _Memory:
    """Bytes that stay for several tasks, that one makes or nobody needs after it, and ``within`` tasks."""

    def __init__(self, numbers: Sequence[int], sizes: Sequence[int]) -> None:
        self._numbers, self._sizes, self.tasks = numbers, sizes, numbers[-1] + 1
        self.within = np.zeros(len(numbers) + 1, dtype=np.int64)
        self.staying = np.zeros(self.tasks + 1, dtype=np.int64)
        self.fresh, self.gone = (np.zeros(self.tasks, dtype=np.int64) for _ in range(2))

    def last(self, tensor: int) -> None:
        """Count a tensor that is there for all of the iteration."""
        self.staying[0] += self._sizes[tensor]

    def stay(self, tensor: int, start: int, end: int) -> None:
        """Count a tensor that has contents during kernels ``start`` to ``end`` - 1."""
        first, last, size = self._numbers[start], self._numbers[end - 1], self._sizes[tensor]
        if first == last:
            self.within[start] += size
            self.within[end] -= size
            return
        self.staying[first] += size
        self.staying[last + 1] -= size
        self.fresh[first] += size
        self.gone[last] += size


def _ahead(forecast: Forecast, kernels: Sequence[int]) -> list[int]:
    """Return for each kernel the most bytes that are born until its task ends, less those that die."""
    sizes, lack = forecast.sizes, forecast.lack
    dead = [sum(int(sizes[tensor]) for tensor in dying) for dying in forecast.dead[: len(lack)]]
    alive = np.roll(lack, 1) - dead
    found = np.zeros(len(lack), dtype=np.int64)
    for first, end in pairwise(kernels):
        found[first:end] = np.maximum.accumulate(lack[first:end][::-1])[::-1] - alive[first:end]
    ahead: list[int] = np.maximum(found, 0).tolist()
    return ahead


def _spans(trace: Trace, tensor: int, drop: Dropped | None) -> Iterator[tuple[int, int]]:
    """Yield the kernels, half open, during which a tensor of the iteration has contents."""
    for start, end in stays_of(trace, tensor):
        if drop is None or not start < drop.start < drop.end < end:
            yield start, end
        else:
            yield from ((start, drop.start), (drop.end, end))


def _writers(trace: Trace, numbers: Sequence[int]) -> list[list[int]]:
    """Return the tasks that write each tensor, ascending."""
    found: list[list[int]] = [[] for _ in trace.tensors]
    for kernel, outputs in enumerate(each(trace.kernels, attrgetter("outputs"))):
        for tensor in outputs:
            found[tensor].append(numbers[kernel])
    return found


def _tiers(
    machine: PlannedMachine, gaps: Sequence[Gap], sizes: Sequence[int], tasks: int
) -> list[PlannedTier]:
    """Return where each tensor lies when it is away: the first tier with room for all that may be there."""
    found, away = [machine.tiers[-1]] * len(sizes), np.zeros((len(machine.tiers), tasks), dtype=np.int64)
    for tensor, group in groupby(gaps, attrgetter("tensor")):
        own = list(group)
        span = slice(None) if own[-1].end >= tasks else slice(own[0].start, own[-1].end)
        for tier, there in zip(machine.tiers[:-1], away, strict=False):
            if there[span].max() + sizes[tensor] <= tier.capacity_bytes:
                found[tensor] = tier
                there[span] += sizes[tensor]
                break
    return found
