"""Rules about the tensors that kernels of a repeated block name, for every time that it occurs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from g10sim.text import shown
from g10sim.trace.model import Kernel, Tensor
from g10sim.trace.repetition import Block


class Found(NamedTuple):
    """A broken rule in a kernel, by its number in the block and all its repetitions."""

    number: int
    message: str


def before_it_exists(tensor: int, tensors: Sequence[Tensor]) -> str:
    """Say that a kernel reads a tensor which nothing wrote."""
    return (
        f"reads tensor {tensor} ({shown(tensors[tensor].name)}) before it exists; "
        "allowed: a tensor that an earlier kernel wrote, a persistent one, or one of kind input"
    )


class RepeatedReferences:
    """The tensors that a block names from its second time on; the first time keeps every rule already.

    ``exists`` says of each tensor whether it exists when the block has run once; in the end, when it has run
    as often as it occurs.
    """

    def __init__(self, block: Block[Kernel], exists: bytearray) -> None:
        self._block = block
        self._exists = np.frombuffer(exists, dtype=np.bool_)
        self._shifts = np.arange(1, block.times, dtype=np.int64) * block.shift

    def problem(self, tensors: Sequence[Tensor]) -> Found | None:
        """Return a broken rule, if there is one."""
        return self._unknown(len(tensors)) or self._too_early(tensors)

    def _shifting(self, names: Callable[[Kernel], tuple[int, ...]]) -> list[tuple[int, int]]:
        """Return the tensors that kernels name again each time, with the numbers of the kernels."""
        since = self._block.since
        kernels = enumerate(self._block.items)
        return [(tensor, number) for number, kernel in kernels for tensor in names(kernel) if tensor >= since]

    def _unknown(self, count: int) -> Found | None:
        last = (self._block.times - 1) * self._block.shift
        largest, number = max(self._shifting(lambda kernel: kernel.touched), default=(0, 0))
        if largest + last < count:
            return None
        kernel = self._block.items[number]
        found = f"found unknown tensor {largest + last}, as tensor {largest} the last time"
        message = f"{shown(kernel.name)}: {found}; allowed: 0 to {count - 1}"
        return Found(number + (self._block.times - 1) * len(self._block.items), message)

    def _too_early(self, tensors: Sequence[Tensor]) -> Found | None:
        """Return the first kernel that reads what no kernel before it wrote; note what all of them write."""
        block, later = self._block, np.arange(1, self._block.times)
        written = np.unique([tensor for tensor, _ in self._shifting(lambda kernel: kernel.outputs)]).astype(
            int
        )
        first = np.where(self._exists, 0, block.times)
        ids = written[:, None] + self._shifts
        np.minimum.at(first, ids, np.broadcast_to(later, ids.shape))
        reads = self._reads_of_others()
        if reads:
            read, numbers = np.array(reads).T
            early = first[read[:, None] + self._shifts] >= later
            if early.any():
                time, which = min(zip(*np.nonzero(early.T), strict=True))
                tensor, number = int(read[which] + self._shifts[time]), int(numbers[which])
                name = shown(block.items[number].name)
                message = f"{name}: {before_it_exists(tensor, tensors)}"
                return Found(number + (int(time) + 1) * len(block.items), message)
        self._exists[ids] = True
        return None

    def _reads_of_others(self) -> list[tuple[int, int]]:
        """Return what kernels read again each time that no kernel of the same time wrote before."""
        written: set[int] = set()
        found = []
        for number, kernel in enumerate(self._block.items):
            since = self._block.since
            found += [(one, number) for one in kernel.inputs if one >= since and one not in written]
            written.update(kernel.outputs)
        return found
