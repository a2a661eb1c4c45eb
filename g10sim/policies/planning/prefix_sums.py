"""Prefix sums of values, of which a few change at a time."""

from __future__ import annotations

import numpy as np

from g10sim.analysis.timeline import Numbers


class PrefixSums:
    """Sums of the first 0, 1, ... of values that their owner changes, one more than there are values.

    ``sums`` is read only. Values are such that sums are exact: what follows a change is moved by it.
    """

    def __init__(self, values: Numbers) -> None:
        self._values, self.sums = values, prefix_sums(values)

    def change(self, start: int, stop: int) -> None:
        """Add up again after values ``start`` to ``stop`` - 1 have changed."""
        changed, following = self.sums[start + 1 : stop + 1], self.sums[stop + 1 :]
        before = self.sums[stop]
        self._values[start:stop].cumsum(out=changed)
        changed += self.sums[start]
        following += self.sums[stop] - before


def prefix_sums(values: Numbers) -> Numbers:
    """Add up the first 0, 1, ... values: one more sum than values."""
    sums = np.zeros(len(values) + 1, dtype=values.dtype)
    values.cumsum(out=sums[1:])
    return sums
