"""Peak analysis: how much memory a job's plan takes at most, when, and by which tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Interval
from g10sim.policies.swap_planning.access import AccessSequence
from g10sim.policies.swap_planning.changes import Changes, differing
from g10sim.policies.swap_planning.schedule import JobSchedule, Recomputed, Swap

Times = TypeVar("Times", int, Integers)

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
    """Finds the peak of one job.

    What does not depend on the plan is computed once; of the plan, what is new since the last call.
    """

    def __init__(self, accesses: AccessSequence, accounting: Accounting) -> None:
        self._accesses, self._accounting = accesses, accounting
        sizes: Integers = np.array(accesses.sizes, dtype=np.int64)
        tensors, begins, ends = np.array(self._lifetimes(), dtype=np.int64).reshape(-1, 3).T
        taken = sizes[tensors]
        by_size = np.lexsort((tensors, -taken))
        self._tensors, self._begins, self._ends = tensors[by_size], begins[by_size], ends[by_size]
        times, changes = np.concatenate([begins, ends]), np.concatenate([taken, -taken])
        # At one time the published planner adds before it subtracts.
        self._changes = Changes(times, changes, adds_first=accounting == "published")
        self._counted: list[Swap | Recomputed] = []
        self._away: Integers = np.zeros((0, 5), dtype=np.int64)

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
        return Peak(size, time, hi, self._residents(time))

    def levels(self, schedule: JobSchedule) -> tuple[Integers, Integers]:
        """Return the times at which memory in use changes, in order, and the bytes in use from then on."""
        self._count([*schedule.swaps, *schedule.recomputed])
        if not len(self._changes.times):
            return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        return self._changes.times, self._changes.levels

    def _count(self, planned: list[Swap | Recomputed]) -> None:
        """Count what is planned, and nothing that was counted but is not planned any more."""
        before = self._counted
        start, rest = differing(before, planned)
        old, new = before[start : len(before) - rest], planned[start : len(planned) - rest]
        self._counted = planned
        if old:
            self._changes.remove(change for entry in old for change in self._changes_of(entry))
        if new:
            self._changes.add(change for entry in new for change in self._changes_of(entry))
        if old or new:
            away = np.array([self._away_at(entry) for entry in new], dtype=np.int64).reshape(-1, 5)
            kept = self._away[len(before) - rest :]
            self._away = np.concatenate([self._away[:start], away, kept])

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

    def _changes_of(self, entry: Swap | Recomputed) -> Iterator[tuple[int, int]]:
        sizes, times = self._accesses.sizes, self._accesses.times
        if isinstance(entry, Swap):
            for away in self.absence(entry):
                yield away.start, -sizes[entry.tensor]
                yield away.end, sizes[entry.tensor]
            return
        use = times[entry.use]
        yield times[entry.drop], -sizes[entry.tensor]
        yield use, sizes[entry.tensor]
        yield use, entry.extra_bytes
        yield use + 1, -entry.extra_bytes

    def _away_at(self, entry: Swap | Recomputed) -> tuple[int, ...]:
        """Return a tensor, and start and end of both parts of its absence; of one part, twice."""
        if isinstance(entry, Swap):
            parts = self.absence(entry)
        else:
            times = self._accesses.times
            parts = [Interval(times[entry.drop], times[entry.use])]
        return entry.tensor, *parts[0], *parts[-1]

    def is_away(self, swaps: list[Swap], time: int) -> bool:
        """Return True if one of a tensor's swaps takes it away at a time."""
        return any(
            bool(self._covers(away.start, away.end, time)) for swap in swaps for away in self.absence(swap)
        )

    def _covers(self, start: Times, end: Times, time: int) -> npt.NDArray[np.bool_] | bool:
        if self._accounting == "published":
            return (start < time) & (time < end)
        return (start <= time) & (time < end)

    def _residents(self, time: int) -> tuple[int, ...]:
        there: npt.NDArray[np.bool_] = self._begins <= time
        there &= time <= self._ends if self._accounting == "published" else time < self._ends
        tensors, start, end, next_start, next_end = self._away.T
        is_away = self._covers(start, end, time) | self._covers(next_start, next_end, time)
        has_left = np.zeros(len(self._accesses.sizes), dtype=np.bool_)
        has_left[tensors[is_away]] = True
        found = self._tensors[there]
        return tuple(dict.fromkeys(found[~has_left[found]].tolist()))
