"""Peak analysis: how much memory a job's plan takes at most, when, and by which tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Interval
from g10sim.policies.planning.steps import Steps
from g10sim.policies.planning.swapping.schedule import JobSchedule, Recomputed, Swap

if TYPE_CHECKING:
    import numpy.typing as npt

Times = TypeVar("Times", int, Integers)

Accounting = Literal["physical", "published"]
"""``physical``: memory is taken when a copy in begins and free when a copy out has ended, results take theirs
when their kernel starts. ``published``: the authors' planner counts both copies the other way round, and
results when their kernel ends."""


@dataclass(frozen=True)
class Peak:
    """The most bytes that a job uses, and the first time that it does.

    ``last_access`` is the last start of a kernel with inputs before that time.
    """

    size_bytes: int
    time: int
    last_access: int


class PeakAnalysis:
    """Finds the peak of one job, whose swaps and recomputations are counted as they are added and removed."""

    def __init__(self, schedule: JobSchedule, accounting: Accounting) -> None:
        self._accesses, self._accounting = schedule.accesses, accounting
        # At one time the published planner adds before it subtracts: at twice that time, and one later.
        self._scale, self._later = (2, 1) if accounting == "published" else (1, 0)
        sizes: Integers = np.array(self._accesses.sizes, dtype=np.int64)
        tensors, begins, ends = np.array(self._lifetimes(), dtype=np.int64).reshape(-1, 3).T
        taken = sizes[tensors]
        by_size = np.lexsort((tensors, -taken))
        self._tensors, self._begins, self._ends = tensors[by_size], begins[by_size], ends[by_size]
        times = np.concatenate([self._scale * begins, self._scale * ends + self._later])
        self._steps = Steps.of_changes(times, np.concatenate([taken, -taken]))
        self._rows: dict[int, int] = {}
        self._free_rows = list[int]()
        self._away: Integers = np.full((64, 5), -1, dtype=np.int64)
        planned: list[Swap | Recomputed] = [*schedule.swaps, *schedule.recomputed]
        for entry in planned:
            self.add(entry)

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

    def add(self, entry: Swap | Recomputed) -> None:
        """Count what is planned."""
        self.exchange((), (entry,))

    def remove(self, entry: Swap | Recomputed) -> None:
        """Undo ``add``."""
        self.exchange((entry,), ())

    def exchange(self, gone: Iterable[Swap | Recomputed], new: Iterable[Swap | Recomputed]) -> None:
        """Count what is planned anew in place of what was: together, as most of it is what it was."""
        changes: dict[int, int] = defaultdict(int)
        for entries, sign, note in ((gone, -1, self._forget), (new, 1, self._note)):
            for entry in entries:
                note(entry)
                for start, end, size in self._spans(entry):
                    changes[start] += sign * size
                    changes[end] -= sign * size
        level = before = 0
        for time, change in sorted(changes.items()):
            if change:
                if level:
                    self._steps.add(before, time, level)
                level, before = level + change, time

    def _note(self, entry: Swap | Recomputed) -> None:
        row = self._free_rows.pop() if self._free_rows else len(self._rows)
        if row == len(self._away):
            self._away = np.concatenate([self._away, np.full_like(self._away, -1)])
        parts = self._parts(entry)
        self._rows[id(entry)], self._away[row] = row, (entry.tensor, *parts[0], *parts[-1])

    def _forget(self, entry: Swap | Recomputed) -> None:
        row = self._rows.pop(id(entry))
        self._free_rows.append(row)
        self._away[row] = -1

    def _spans(self, entry: Swap | Recomputed) -> Iterator[tuple[int, int, int]]:
        """Yield from when to when, as steps count time, how many bytes come with what is planned."""
        size, scale, later = self._accesses.sizes[entry.tensor], self._scale, self._later
        for start, end in self._parts(entry):
            yield scale * start + later, scale * end, -size
        if isinstance(entry, Recomputed) and entry.extra_bytes:
            use = self._accesses.times[entry.use]
            yield scale * use, scale * (use + 1) + later, entry.extra_bytes

    def find(self) -> Peak:
        """Return the peak with what has been planned so far."""
        size, time = self._steps.peak
        time //= self._scale
        physical = self._accounting == "physical"
        return Peak(size, time, self._accesses.last_input_access(time, including=physical))

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use."""
        return self._steps.peak[0]

    def levels(self) -> tuple[Integers, Integers]:
        """Return times at which memory in use changes, in order, and the bytes in use from then on."""
        times, levels = self._steps.arrays()
        return times // self._scale, levels

    def most(self, start: int, end: int) -> int:
        """Return the most bytes in use from a time on, after what changes then, to before another."""
        return self._steps.most(self._scale * start + self._later, self._scale * end)

    def kernel_levels(self) -> Integers:
        """Return the most bytes in use while each kernel runs.

        Where several changes happen at once, only what they come to together counts.
        """
        times, levels = self.levels()
        is_last = np.append(times[:-1] != times[1:], True)
        times, levels = times[is_last], levels[is_last]
        starts = self._accesses.starts
        first = times.searchsorted(starts[:-1], side="right") - 1
        spans = np.stack([first, np.maximum(times.searchsorted(starts[1:]), first + 1)], axis=1)
        most: Integers = np.maximum.reduceat(np.append(levels, 0), spans.ravel())[::2]
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

    def _parts(self, entry: Swap | Recomputed) -> list[Interval]:
        """Return when what is planned takes its tensor away, within an iteration."""
        if isinstance(entry, Swap):
            return self.absence(entry)
        times = self._accesses.times
        return [Interval(times[entry.drop], times[entry.use])]

    def is_away(self, swaps: list[Swap], time: int) -> bool:
        """Return True if one of a tensor's swaps takes it away at a time."""
        return any(
            bool(self._covers(away.start, away.end, time)) for swap in swaps for away in self.absence(swap)
        )

    def _covers(self, start: Times, end: Times, time: int) -> npt.NDArray[np.bool_] | bool:
        if self._accounting == "published":
            return (start < time) & (time < end)
        return (start <= time) & (time < end)

    def residents(self, time: int) -> Integers:
        """Return the tensors that are there at a time, largest first."""
        there: npt.NDArray[np.bool_] = self._begins <= time
        there &= time <= self._ends if self._accounting == "published" else time < self._ends
        tensors, start, end, next_start, next_end = self._away.T
        is_away = self._covers(start, end, time) | self._covers(next_start, next_end, time)
        has_left = np.zeros(len(self._accesses.sizes), dtype=np.bool_)
        has_left[tensors[is_away]] = True
        found: Integers = self._tensors[there]
        found = found[~has_left[found]]
        once: Integers = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        return once
