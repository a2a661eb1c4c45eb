"""The tensors that are on the GPU at a time of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.swapping.peak import Accounting, PeakAnalysis
from g10sim.policies.planning.swapping.schedule import JobSchedule, Recomputed, Swap

if TYPE_CHECKING:
    import numpy.typing as npt

Times = TypeVar("Times", int, Integers)


class Residents(PeakAnalysis):
    """The peak of one job, and which tensors are there at a time."""

    def __init__(self, schedule: JobSchedule, accounting: Accounting) -> None:
        self._rows: dict[int, int] = {}
        self._free_rows = list[int]()
        self._away: Integers = np.full((64, 5), -1, dtype=np.int64)
        super().__init__(schedule, accounting)
        tensors, begins, ends = self._lifetimes()
        by_size = np.lexsort((tensors, -np.array(self._accesses.sizes, dtype=np.int64)[tensors]))
        self._tensors, self._begins, self._ends = tensors[by_size], begins[by_size], ends[by_size]

    def add(self, entry: Swap | Recomputed) -> None:
        """Count what is planned."""
        super().add(entry)
        row = self._free_rows.pop() if self._free_rows else len(self._rows)
        if row == len(self._away):
            self._away = np.concatenate([self._away, np.full_like(self._away, -1)])
        parts = self._parts(entry)
        self._rows[id(entry)], self._away[row] = row, (entry.tensor, *parts[0], *parts[-1])

    def remove(self, entry: Swap | Recomputed) -> None:
        """Undo ``add``."""
        super().remove(entry)
        row = self._rows.pop(id(entry))
        self._free_rows.append(row)
        self._away[row] = -1

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
