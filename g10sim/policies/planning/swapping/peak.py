"""Peak analysis: how much memory a job's plan takes at most and when, and what to compute again for less."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Interval
from g10sim.policies.planning.swapping.schedule import AccessSequence, JobSchedule, Recomputed, Swap


class StepFunction:
    """A value from each of some times on, until the next of them.

    At first ``sizes`` are added, or taken away, at ``times`` of 0 or later, for good.
    """

    def __init__(self, times: Integers, sizes: Integers) -> None:
        distinct, places = np.unique(np.concatenate([[0], times]), return_inverse=True)
        changes = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(changes, places[1:], sizes)
        self._times, self._values = array("q", distinct.tobytes()), array("q", changes.cumsum().tobytes())

    @property
    def peak(self) -> tuple[int, int]:
        """Return the highest value, and the first time that has it."""
        place = int(np.frombuffer(self._values, dtype=np.int64).argmax())
        return self._values[place], self._times[place]

    def arrays(self) -> tuple[Integers, Integers]:
        """Return the times and the values from then on."""
        return np.array(self._times), np.array(self._values)

    def add(self, start: int, end: int, size: int) -> None:
        """Add to the values from ``start`` to ``end``, which is not before it."""
        add_between(self._times, self._values, start, end, size)

    def most(self, start: int, end: int) -> int:
        """Return the highest value from ``start`` to before ``end``, a later time; 0 at least."""
        steps = slice(self._place(start), self._place(end - 1) + 1)
        return int(np.frombuffer(self._values, dtype=np.int64)[steps].max(initial=0))

    def _place(self, time: int) -> int:
        """Return the place of the last step that does not begin after a time."""
        return bisect_right(self._times, time) - 1


def add_between(times: array[int], values: array[int], start: int, end: int, size: int) -> None:
    """Add to values, each from its time until the next one, from ``start`` to ``end``, not before it."""
    first, last = _split(times, values, start), _split(times, values, end)
    np.frombuffer(values, dtype=np.int64)[first:last] += size


def _split(times: array[int], values: array[int], time: int) -> int:
    """Return the place of the first step that begins at a time, made if there is none."""
    place = bisect_left(times, time)
    if place == len(times) or times[place] != time:
        times.insert(place, time)
        values.insert(place, values[place - 1])
    return place


Span: TypeAlias = tuple[int, int, int]
"""From when to when, as steps count time, and how many bytes come."""

Accounting = Literal["physical", "published"]
"""``physical``: memory is taken when a copy in begins and free when a copy out has ended, results take theirs
when their kernel starts. ``published``: the authors' planner counts both copies the other way round, and
results when their kernel ends."""


class Peak(NamedTuple):
    """The most bytes that a job uses, and the first time that it does."""

    size_bytes: int
    time: int


class PeakAnalysis:
    """Finds the peak of one job, whose swaps and recomputations are counted as they are added and removed."""

    def __init__(self, schedule: JobSchedule, accounting: Accounting) -> None:
        self._accesses, self._accounting = schedule.accesses, accounting
        # At one time the published planner adds before it subtracts: at twice that time, and one later.
        self._scale, self._later = (2, 1) if accounting == "published" else (1, 0)
        sizes: Integers = np.array(self._accesses.sizes, dtype=np.int64)
        tensors, begins, ends = self._lifetimes()
        starts = self._accesses.starts  # kernels have steps of their own
        times = np.concatenate([self._scale * begins, self._scale * ends + self._later, self._scale * starts])
        self._steps = StepFunction(times, np.concatenate([sizes[tensors], -sizes[tensors], 0 * starts]))
        self._peak: Peak | None = None
        self._kernel_levels: Integers | None = None
        planned: list[Swap | Recomputed] = [*schedule.swaps, *schedule.recomputed]
        for entry in planned:
            self.add(entry)

    def _lifetimes(self) -> Integers:
        """Return tensors with beginning and end of each time that they are there without any swap."""
        accesses, trace = self._accesses, self._accesses.trace
        times, published = accesses.times, self._accounting == "published"
        found: list[tuple[int, int, int]] = []
        for tensor, uses in enumerate(trace.uses):
            if uses and trace.lasting[tensor]:
                found.append((tensor, 0, accesses.period))
            elif uses:
                begin, death = uses[0], trace.deaths[tensor]
                if published:
                    begin = begin + 1 if tensor in trace.kernels[begin].outputs else 0
                found.append((tensor, times[begin], times[death]))
                found += [(tensor, *accesses.interval(use)) for use in uses if use >= death]
        return np.array(found, dtype=np.int64).reshape(-1, 3).T

    def add(self, entry: Swap | Recomputed) -> None:
        """Count what is planned."""
        self.count(self.spans(entry))

    def count(self, spans: Iterable[Span]) -> None:
        """Let bytes come, or go, during spans."""
        changes: dict[int, int] = defaultdict(int)
        for start, end, size in spans:
            changes[start] += size
            changes[end] -= size
        level = before = 0
        for time, change in sorted(changes.items()):
            if change:
                if level:
                    self._steps.add(before, time, level)
                    self._count_kernels(before, time, level)
                level, before = level + change, time
        self._peak = None

    def lowers(self, spans: Collection[Span]) -> bool:
        """Count spans if the peak is smaller then, or as large but later; else nothing changes."""
        before = self.peak
        self.count(spans)
        if (self.peak.size_bytes, -self.peak.time) < (before.size_bytes, -before.time):
            return True
        self.count((start, end, -size) for start, end, size in spans)
        return False

    def spans(self, entry: Swap | Recomputed, sign: int = 1) -> list[Span]:
        """Return when how many bytes come with what is planned; with sign -1, without it."""
        size, scale, later = self._accesses.sizes[entry.tensor], self._scale, self._later
        found = [(scale * start + later, scale * end, -sign * size) for start, end in self.absence(entry)]
        if isinstance(entry, Recomputed) and entry.extra_bytes:
            use = self._accesses.times[entry.use]
            found.append((scale * use, scale * (use + 1) + later, sign * entry.extra_bytes))
        return found

    @property
    def peak(self) -> Peak:
        """The peak with what has been planned so far."""
        if self._peak is None:
            size, time = self._steps.peak
            self._peak = Peak(size, time // self._scale)
        return self._peak

    def levels(self) -> tuple[Integers, Integers]:
        """Return times at which memory in use changes, in order, and the bytes in use from then on."""
        times, levels = self._steps.arrays()
        return times // self._scale, levels

    def most(self, start: int, end: int) -> int:
        """Return the most bytes in use from a time on, after what changes then, to before another."""
        return self._steps.most(self._scale * start + self._later, self._scale * end)

    def kernel_levels(self) -> Integers:
        """Return the most bytes in use while each kernel runs, physically."""
        if self._kernel_levels is None:
            times, levels = self.levels()
            first = times.searchsorted(self._accesses.starts[:-1])
            self._kernel_levels = np.maximum.reduceat(levels, first)
        return self._kernel_levels

    def _count_kernels(self, start: int, end: int, size_bytes: int) -> None:
        """Change the levels of kernels, if they are known, by bytes that have come from a time to another."""
        times, levels = self._accesses.times, self._kernel_levels
        if levels is None:
            return
        first, stop = bisect_left(times, start), min(bisect_right(times, end) - 1, bisect_left(times, end))
        levels[first:stop] += size_bytes
        for kernel in {first - 1, stop}:
            if 0 <= kernel < len(levels):
                levels[kernel] = self.most(times[kernel], max(times[kernel + 1], times[kernel] + 1))

    def absence(self, entry: Swap | Recomputed) -> list[Interval]:
        """Return when what is planned takes its tensor away, within an iteration."""
        if isinstance(entry, Recomputed):
            return [Interval(self._accesses.times[entry.drop], self._accesses.times[entry.use])]
        away, period = Interval(entry.out.end, entry.back.start), self._accesses.period
        if self._accounting == "published":
            away = Interval(entry.out.start, entry.back.end)
        return Interval(away.start, away.end + period * entry.wraps).within(period)


def recomputation_of(
    accesses: AccessSequence, rules: Recomputability, tensor: int, drop: int, use: int
) -> Recomputed | None:
    """Return how a tensor is dropped by a kernel and made again for its next use; None: it cannot be."""
    producer = rules.producer(tensor, drop)
    if producer is None or rules.problem(tensor, drop):
        return None
    deaths = accesses.trace.deaths
    extra = sum(accesses.sizes[other] for other in set(producer.outputs) - {tensor} if deaths[other] <= use)
    return Recomputed(tensor, drop, use, extra)


def choose_recomputation(
    schedule: JobSchedule, rules: Recomputability, peak: Peak, residents: Integers
) -> list[Recomputed]:
    """Return what may be recomputed to lower a peak, the best first.

    Each of the ``residents`` at the peak that is not swapped, and is made from tensors that are neither
    swapped nor recomputed themselves. Best is the one with the most bytes for the time of the kernel that
    makes it.
    """
    accesses, moved = schedule.accesses, schedule.moved()
    times, ranked = accesses.times, list[tuple[float, int, Recomputed]]()
    for tensor in residents.tolist():
        uses = accesses.uses[tensor]
        place = bisect_left(uses, bisect_left(times, peak.time))
        if tensor in moved or not 0 < place < len(uses):
            continue
        drop, use = uses[place - 1] + 1, uses[place]
        covers = times[drop] <= peak.time < times[use]
        entry = recomputation_of(accesses, rules, tensor, drop, use) if covers else None
        producer = rules.producer(tensor, drop)
        if entry is None or producer is None or moved & set(producer.inputs):
            continue
        time = accesses.interval(producer.id)
        ranked.append((accesses.sizes[tensor] / max(1, time.end - time.start), tensor, entry))
    return [entry for _, _, entry in sorted(ranked, key=lambda found: (-found[0], found[1]))]
