"""Peak analysis: how much memory a job's plan takes at most, when, and by which tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Interval
from g10sim.policies.swap_planning.access import AccessSequence
from g10sim.policies.swap_planning.schedule import JobSchedule, Swap

Accounting = Literal["physical", "published"]
"""``physical``: memory is taken when a copy in begins and free when a copy out has ended, results take theirs
when their kernel starts. ``published``: the authors' planner counts both copies the other way round, and
results when their kernel ends."""


@dataclass(frozen=True)
class Peak:
    """The most bytes that a job uses, the first time that it does, and its tensors there, largest first.

    ``last_access`` is the last start of a kernel with inputs before that time.
    """

    size_bytes: int
    time: int
    last_access: int
    residents: tuple[int, ...]


class PeakAnalysis:
    """Finds the peak of one job; what does not depend on the plan is computed once."""

    def __init__(self, accesses: AccessSequence, accounting: Accounting) -> None:
        self._accesses, self._accounting = accesses, accounting
        self._sizes: Integers = np.array(accesses.sizes, dtype=np.int64)
        tensors, begins, ends = np.array(self._lifetimes(), dtype=np.int64).reshape(-1, 3).T
        self._tensors, self._begins, self._ends = tensors, begins, ends
        sizes = self._sizes[tensors] if len(tensors) else tensors
        self._by_size = np.lexsort((tensors, -sizes))
        self._times = np.concatenate([begins, ends])
        self._changes = np.concatenate([sizes, -sizes])

    def _lifetimes(self) -> list[tuple[int, int, int]]:
        """Return tensors with beginning and end of each time that they are there without any swap."""
        accesses, trace = self._accesses, self._accesses.trace
        times, published = accesses.times, self._accounting == "published"
        found: list[tuple[int, int, int]] = []
        for tensor in trace.tensors:
            uses = trace.uses[tensor.id]
            if not uses:
                continue
            if tensor.persistent:
                found.append((tensor.id, 0, accesses.period))
                continue
            birth, death = uses[0], trace.deaths[tensor.id]
            begin = birth
            if published:
                begin = birth + 1 if tensor.id in trace.kernels[birth].outputs else 0
            found.append((tensor.id, times[begin], times[death]))
            found += [(tensor.id, *accesses.interval(use)) for use in uses if use >= death]
        return found

    def find(self, schedule: JobSchedule) -> Peak:
        """Return the peak with what has been planned so far."""
        times, levels = self.levels(schedule)
        place = int(np.argmax(levels))
        time, size = int(times[place]), int(levels[place])
        physical = self._accounting == "physical"
        hi = self._accesses.last_input_access(time, including=physical)
        return Peak(size, time, hi, self._residents(schedule, time))

    def levels(self, schedule: JobSchedule) -> tuple[Integers, Integers]:
        """Return the times at which memory in use changes, in order, and the bytes in use from then on."""
        changes = list(self._planned_changes(schedule))
        times, sizes = self._times, self._changes
        if changes:
            planned: Integers = np.array(changes, dtype=np.int64)
            times = np.concatenate([times, planned[:, 0]])
            sizes = np.concatenate([sizes, planned[:, 1]])
        if not len(times):
            return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        # At one time the published planner adds before it subtracts.
        first = sizes if self._accounting == "physical" else -sizes
        order = np.lexsort((first, times))
        return times[order], np.cumsum(sizes[order])

    def kernel_levels(self, schedule: JobSchedule) -> Integers:
        """Return the most bytes in use while each kernel runs."""
        times, levels = self.levels(schedule)
        starts = self._accesses.starts
        places = times.searchsorted(starts[:-1], side="right")
        most: Integers = np.where(places > 0, levels[np.maximum(places, 1) - 1], 0)
        kernels = starts.searchsorted(times, side="right") - 1
        inside = kernels < len(most)
        # Where several changes happen at once, only what they come to together counts.
        inside[:-1] &= times[:-1] != times[1:]
        np.maximum.at(most, kernels[inside], levels[inside])
        return most

    def absence(self, swap: Swap) -> list[Interval]:
        """Return when a swapped tensor is not counted, within an iteration."""
        away = Interval(swap.out.end, swap.back.start)
        if self._accounting == "published":
            away = Interval(swap.out.start, swap.back.end)
        if not swap.wraps:
            return [away]
        period = self._accesses.period
        if away.start >= period:
            return [Interval(away.start - period, away.end)]
        return [Interval(away.start, period), Interval(0, away.end)]

    def _planned_changes(self, schedule: JobSchedule) -> Iterator[tuple[int, int]]:
        sizes, times = self._accesses.sizes, self._accesses.times
        for swap in schedule.swaps:
            for away in self.absence(swap):
                yield away.start, -sizes[swap.tensor]
                yield away.end, sizes[swap.tensor]
        for entry in schedule.recomputed:
            use = times[entry.use]
            yield times[entry.drop], -sizes[entry.tensor]
            yield use, sizes[entry.tensor]
            yield use, entry.extra_bytes
            yield use + 1, -entry.extra_bytes

    def is_away(self, swaps: list[Swap], time: int) -> bool:
        """Return True if one of a tensor's swaps takes it away at a time."""
        return any(self._covers(away, time) for swap in swaps for away in self.absence(swap))

    def _covers(self, away: Interval, time: int) -> bool:
        if self._accounting == "published":
            return away.start < time < away.end
        return away.start <= time < away.end

    def _residents(self, schedule: JobSchedule, time: int) -> tuple[int, ...]:
        inside: npt.NDArray[np.bool_] = self._begins <= time
        inside &= time <= self._ends if self._accounting == "published" else time < self._ends
        away = {swap.tensor for swap in schedule.swaps if self.is_away([swap], time)}
        times = self._accesses.times
        for entry in schedule.recomputed:
            if self._covers(Interval(times[entry.drop], times[entry.use]), time):
                away.add(entry.tensor)
        there = self._tensors[self._by_size[inside[self._by_size]]]
        return tuple(tensor for tensor in dict.fromkeys(there.tolist()) if tensor not in away)
