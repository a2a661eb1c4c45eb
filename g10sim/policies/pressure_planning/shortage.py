"""Bytes that kernels to come lack: one number for kernels between which no tensor's next use lies."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from g10sim.analysis.timeline import Integers


@dataclass(frozen=True)
class Settings:
    """Parameters of the policy; ``backlog_cycles`` of the link's time, the others in kernels."""

    backlog_cycles: float
    births: int
    horizon: int


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

    A step begins where some tensor is used next, ``uses`` being kernels, and at each of the first kernels.
    A number of kernels ahead is one at which a step begins, or the horizon.
    """

    def __init__(self, alive: Largest, uses: Integers, kernel: int, settings: Settings) -> None:
        horizon = settings.horizon
        until = np.minimum(np.maximum(uses - kernel, 0), horizon)
        self._order = until.argsort(kind="stable")
        until = until.take(self._order)
        first = np.arange(min(max(2, settings.births), horizon - 1) + 1)
        edges = np.sort(np.concatenate((first, until, [horizon])))
        edges = edges[np.concatenate(([True], edges[1:] > edges[:-1]))]
        self._starts = edges[:-1].data
        self._used = until.searchsorted(edges[:-1], side="right")
        self._most = alive.between(edges[:-1] + kernel, edges[1:] + kernel)
        self._worst: Integers | None = None

    def spare(self, sizes_bytes: Integers) -> None:
        """Take off what is away of each tensor until its next use."""
        self._most -= int(sizes_bytes.sum()) - self.returned(sizes_bytes)
        self._worst = None

    def returned(self, sizes_bytes: Integers) -> Integers:
        """Return for each step the bytes of the tensors whose next use it comes after."""
        found = np.zeros(len(sizes_bytes) + 1, dtype=np.int64)
        sizes_bytes.take(self._order).cumsum(out=found[1:])
        return found.take(self._used)

    def add(self, ahead: int, size_bytes: int) -> None:
        """Let each of so many kernels lack more."""
        self._most[: bisect_left(self._starts, ahead)] += size_bytes
        self._worst = None

    def worst(self, ahead: int | None = None) -> int:
        """Return what the worst of so many kernels lacks, or the worst of all."""
        if self._worst is None:
            self._worst = np.maximum.accumulate(self._most)
        return int(self._worst[-1 if ahead is None else bisect_left(self._starts, ahead) - 1])

    def worst_step(self, ahead: int) -> int:
        """Return the step of the worst of so many kernels, the first of those that are equal."""
        return int(self._most[: bisect_left(self._starts, ahead)].argmax())

    def start(self, step: int) -> int:
        """Return the number of kernels ahead at which a step begins."""
        return int(self._starts[step])

    def of_next(self) -> int:
        """Return what the next kernel lacks."""
        return int(self._most[1])
