"""Prefix sums of values of which a few change at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from g10sim.analysis.timeline import Integers

if TYPE_CHECKING:
    import numpy.typing as npt

Numbers: TypeAlias = "npt.NDArray[Any]"
"""Integers or floats."""

BLOCK = 1 << 13
"""Values in a block: those of a shorter iteration have the sums of ``numpy.cumsum``, to the last bit."""


class PrefixSums:
    """Sums of the first 0, 1, ... of values that their owner changes, one more than there are values.

    Values are added up in blocks. A change costs as much as its blocks have values and as there are blocks.
    """

    def __init__(self, values: Numbers) -> None:
        self._values = values
        blocks = len(values) // BLOCK + 1
        self._length = min(BLOCK, len(values) + 1)
        self._within = np.zeros(blocks * self._length, dtype=values.dtype).reshape(blocks, -1)
        self._totals, self._before = (np.zeros(blocks, dtype=values.dtype) for _ in range(2))
        self.change(0, len(values))

    @property
    def total(self) -> Any:
        """Sum of all values."""
        return self._before[-1] + self._totals[-1]

    def change(self, start: int, stop: int) -> None:
        """Add up again after values ``start`` to ``stop`` - 1 have changed."""
        if start >= stop:
            return
        first, last = start // BLOCK, (stop - 1) // BLOCK
        for block in range(first, last + 1):
            begin = max(0, start - block * BLOCK)
            rest = self._values[block * BLOCK + begin : (block + 1) * BLOCK].copy()
            within = self._within[block]
            rest[0] += within[begin]
            rest.cumsum(out=rest)
            kept = within[begin + 1 : begin + 1 + len(rest)]
            kept[:] = rest[: len(kept)]
            self._totals[block] = rest[-1]
        if first < len(self._before) - 1:
            after = self._totals[first:-1].copy()
            after[0] += self._before[first]
            after.cumsum(out=self._before[first + 1 :])

    def before(self, numbers: Integers) -> Numbers:
        """Return the sums of the first values."""
        found: Numbers = self._within.take(numbers)
        if len(self._before) > 1:
            found += self._before.take(numbers // BLOCK)
        return found

    def search(self, wanted: Numbers, side: Literal["left", "right"] = "left") -> Integers:
        """Return where sums would be put among these, as ``numpy.searchsorted`` does."""
        if len(self._before) == 1:
            found: Integers = self._within[0].searchsorted(wanted, side)
            return found
        blocks = np.maximum(self._before.searchsorted(wanted, side) - 1, 0)
        found = np.zeros(len(wanted), dtype=np.int64)
        for block in set(blocks.tolist()):
            ours = blocks == block
            last = min(self._length, len(self._values) + 1 - block * BLOCK)
            sums = self._within[block, :last]
            found[ours] = block * BLOCK + sums.searchsorted(wanted[ours] - self._before[block], side)
        return found
