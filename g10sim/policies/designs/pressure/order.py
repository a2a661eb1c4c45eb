"""Tensors in the order in which they are needed next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

import numpy as np

from g10sim.analysis.timeline import Integers


class NextUses:
    """Kernels that use some tensors next, each as often as tensors do."""

    def __init__(self, kernels: int) -> None:
        self._counts, self._marks = [0] * kernels, bytearray(kernels)

    def reset(self, uses: Iterable[int]) -> None:
        """Begin again with the kernels of some tensors."""
        self._counts, self._marks = [0] * len(self._counts), bytearray(len(self._counts))
        for use in uses:
            self.add(use)

    def add(self, use: int) -> None:
        """Count a tensor in."""
        self._counts[use] += 1
        self._marks[use] = True

    def remove(self, use: int) -> None:
        """Count a tensor out."""
        self._counts[use] -= 1
        if not self._counts[use]:
            self._marks[use] = False

    def last_until(self, use: int) -> int:
        """Return the last kernel up to one that uses any next; -1 for none."""
        return self._marks.rfind(1, 0, use + 1)

    def between(self, first: int, stop: int) -> Integers:
        """Return the kernels from one to before another that use any next."""
        found: Integers = first + np.frombuffer(self._marks, dtype=np.bool_)[first:stop].nonzero()[0]
        return found


class Order:
    """Some of a number of tensors by ranks, such as kernels, of equals the lower number first."""

    def __init__(self, tensors: int) -> None:
        self._bits = tensors.bit_length()
        self._mask = (1 << self._bits) - 1
        self._keys: list[int] = []

    def reset(self, ranks: Iterable[tuple[int, int]]) -> None:
        """Begin again with pairs of a rank and a tensor."""
        self._keys = sorted(rank << self._bits | tensor for rank, tensor in ranks)

    def add(self, rank: int, tensor: int) -> None:
        """Add a tensor."""
        insort(self._keys, rank << self._bits | tensor)

    def remove(self, rank: int, tensor: int) -> None:
        """Remove a tensor that is there."""
        del self._keys[bisect_left(self._keys, rank << self._bits | tensor)]

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._keys)

    def __iter__(self) -> Iterator[int]:
        """Yield the tensors; one that leaves as soon as it was yielded does not disturb this."""
        keys, place = self._keys, 0
        while place < len(keys):
            key = keys[place]
            yield key & self._mask
            place += place < len(keys) and keys[place] == key
