"""Tensors in the order in which they are needed next."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

import numpy as np

from g10sim.analysis.timeline import Integers


class ByNextUse:
    """Some of a number of tensors by the kernels that use them next, of equals the lower number first."""

    def __init__(self, tensors: int) -> None:
        self._bits = tensors.bit_length()
        self._mask = (1 << self._bits) - 1
        self._keys = array("q")

    def reset(self, uses_of: Iterable[tuple[int, int]]) -> None:
        """Begin again with pairs of a kernel and a tensor."""
        self._keys = array("q", sorted(use << self._bits | tensor for use, tensor in uses_of))

    def add(self, use: int, tensor: int) -> None:
        """Add a tensor."""
        insort(self._keys, use << self._bits | tensor)

    def remove(self, use: int, tensor: int) -> None:
        """Remove a tensor that is there."""
        del self._keys[bisect_left(self._keys, use << self._bits | tensor)]

    def move(self, use: int, following: int, tensor: int) -> None:
        """Put a tensor that is there where its next use is another."""
        keys, bits = self._keys, self._bits
        del keys[bisect_left(keys, use << bits | tensor)]
        insort(keys, following << bits | tensor)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._keys)

    def __iter__(self) -> Iterator[int]:
        """Yield the tensors; those yielded may leave meanwhile."""
        key = -1
        while (place := bisect_right(self._keys, key)) < len(self._keys):
            key = self._keys[place]
            yield key & self._mask

    def latest_first(self) -> Iterator[int]:
        """Yield the tensors from the last use on; those yielded may leave meanwhile."""
        stop = len(self._keys)
        while stop:
            border = self._keys[stop - 1] & ~self._mask
            yield from [key & self._mask for key in self._keys[bisect_left(self._keys, border) : stop]]
            stop = bisect_left(self._keys, border)

    def last_use_until(self, use: int) -> int:
        """Return the last kernel up to one that uses any next; -1 for none."""
        place = bisect_left(self._keys, (use + 1) << self._bits)
        return self._keys[place - 1] >> self._bits if place else -1

    def uses(self) -> Integers:
        """Return the kernels that use them, in order."""
        found: Integers = np.frombuffer(self._keys, dtype=np.int64) >> self._bits
        return found
