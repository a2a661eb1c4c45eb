"""Bytes that kernels to come lack: one number for kernels between which no tensor's next use lies."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from g10sim.analysis.timeline import Integers

_FEW = 8
"""Steps of which the worst is found sooner than that of all."""


@dataclass(frozen=True)
class Settings:
    """Parameters of the policy; ``backlog_cycles`` of the link's time, the others in kernels."""

    backlog_cycles: float
    births: int
    horizon: int

    @cached_property
    def first(self) -> Integers:
        """Kernels ahead at each of which a step begins."""
        return np.arange(min(max(2, self.births), self.horizon - 1) + 1)


class Largest:
    """The largest of values that repeat for ever, in ranges of at most so many of them.

    Keeps the largest of every 1, 2, 4, ... values in a row: two of these cover a range (sparse table).
    """

    def __init__(self, values: Integers, longest: int) -> None:
        self._count = len(values)
        rows = [values]
        for level in range(longest.bit_length() - 1):
            rows.append(np.maximum(rows[-1], np.roll(rows[-1], -(1 << level))))
        self._values = np.concatenate(rows)
        self._levels = np.frexp(np.arange(longest + 1))[1].astype(np.int64) - 1

    def between(self, starts: Integers, ends: Integers) -> Integers:
        """Return the largest value of each range; none is empty."""
        levels = self._levels.take(ends - starts)
        rows, last = levels * self._count, ends - (1 << levels)
        first, second = rows + starts % self._count, rows + last % self._count
        found: Integers = np.maximum(self._values.take(first), self._values.take(second))
        return found


class Shortage:
    """Most bytes that kernels ahead of one lack, in steps: in each of them, the same tensors are away.

    A step begins where some tensor is used next, ``uses`` being kernels in ascending order, and at each of
    the first kernels. A number of kernels ahead is one at which a step begins, or the horizon.
    """

    def __init__(self, alive: Largest, uses: Integers, kernel: int, settings: Settings) -> None:
        self._uses, self._kernel = uses, kernel
        until = np.minimum(np.maximum(uses - kernel, 0), settings.horizon)
        starts = settings.first
        used = until.searchsorted(starts, side="right")
        last, end = int(used[-1]), int(until.searchsorted(settings.horizon))
        if last < end:
            further = np.flatnonzero(until[last + 1 : end] > until[last : end - 1]) + (last + 1)
            starts = np.concatenate((starts, until[last : last + 1], until.take(further)))
            used = np.concatenate((used, further, (end,)))
        self._starts, self._used = starts.data, used
        first = starts + kernel
        self._most = alive.between(first, np.concatenate((first[1:], (settings.horizon + kernel,))))
        self._worst: Integers | None = None

    def spare(self, sizes_bytes: Integers) -> None:
        """Take off what is away of each tensor until its next use."""
        returned = np.zeros(len(sizes_bytes) + 1, dtype=np.int64)
        sizes_bytes.cumsum(out=returned[1:])
        self._most -= returned[-1] - returned.take(self._used)
        self._returned, self._worst = returned, None

    def returned_bytes(self, ahead: int) -> int:
        """Return the bytes spared that have to be back for the kernel so many ahead."""
        return int(self._returned[self._uses.searchsorted(self._kernel + ahead, side="right")])

    def returned_before(self, step: int) -> int:
        """Return the number of tensors whose next use a step comes after."""
        return int(self._used[step])

    def add(self, ahead: int, size_bytes: int) -> None:
        """Let each of so many kernels lack more."""
        self._most[: bisect_left(self._starts, ahead)] += size_bytes
        self._worst = None

    def worst(self, ahead: int | None = None) -> int:
        """Return what the worst of so many kernels lacks, or the worst of all."""
        steps = len(self._most) if ahead is None else bisect_left(self._starts, ahead)
        if self._worst is None and steps <= _FEW:
            return max(map(int, self._most[:steps].tolist()))
        if self._worst is None:
            self._worst = np.maximum.accumulate(self._most)
        return int(self._worst[steps - 1])

    def worst_step(self, ahead: int) -> int:
        """Return the step of the worst of so many kernels, the first of those that are equal."""
        return int(self._most[: bisect_left(self._starts, ahead)].argmax())

    def later(self) -> tuple[Integers, Integers]:
        """Return the kernels ahead at which steps begin after the next kernel's, and what these lack."""
        return np.asarray(self._starts)[2:], self._most[2:]

    def start(self, step: int) -> int:
        """Return the number of kernels ahead at which a step begins."""
        return int(self._starts[step])

    def of_next(self) -> int:
        """Return what the next kernel lacks."""
        return int(self._most[1])
