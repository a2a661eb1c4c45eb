"""Memory operations of training, as pools see them, and the period in which they repeat."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, count

from g10sim.trace.model import Trace

FIRST_CHECK = 300
"""Operations after which the authors' implementation looks for iterations for the first time."""
LEAST_OPERATIONS = 100
"""Operations of an iteration, above which the authors' implementation accepts it."""


class OperationKind(StrEnum):
    """Operations on a block of device memory."""

    ALLOCATE = "allocate"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Operation:
    """One memory operation; ``block`` is a number that no other allocation has."""

    kind: OperationKind
    block: int
    size_bytes: int


def training_operations(trace: Trace, iterations: int) -> Iterator[Operation]:
    """Return the memory operations of that many iterations: persistent tensors first, which stay.

    A kernel's new tensors are allocated when it starts, and what is dead then is freed when it ends. A tensor
    that is written after nothing reads it any more gets a block for that kernel alone.
    """
    numbers = count()
    persistent = [tensor.id for tensor in trace.tensors if tensor.persistent]
    blocks = {tensor: next(numbers) for tensor in persistent}
    yield from _operations(OperationKind.ALLOCATE, persistent, trace, blocks)
    for _ in range(iterations):
        for kernel in trace.kernels:
            new = [tensor for tensor in kernel.tensors if tensor not in blocks]
            blocks.update((tensor, next(numbers)) for tensor in new)
            yield from _operations(OperationKind.ALLOCATE, new, trace, blocks)
            used = [tensor for tensor in kernel.touched if tensor in blocks]
            dies = [tensor for tensor in used if trace.deaths[tensor] <= kernel.id + 1]
            dead = [tensor for tensor in dies if not trace.lasting[tensor]]
            yield from _operations(OperationKind.FREE, dead, trace, blocks)
            for tensor in dead:
                del blocks[tensor]


def _operations(
    kind: OperationKind, tensors: Iterable[int], trace: Trace, blocks: Mapping[int, int]
) -> Iterator[Operation]:
    return (Operation(kind, blocks[tensor], trace.tensors[tensor].size_bytes) for tensor in tensors)


def peak_load_bytes(operations: Iterable[Operation]) -> int:
    """Most bytes allocated at a time: no pool can do with less memory."""
    signs = {OperationKind.ALLOCATE: 1, OperationKind.FREE: -1}
    changes = (signs[operation.kind] * operation.size_bytes for operation in operations)
    return max(accumulate(changes, initial=0))


def stays_of(trace: Trace, tensor: int) -> list[tuple[int, int]]:
    """Ranges of kernels (half open) during which a tensor that is not persistent needs memory.

    The first is its live range; each further one is a kernel that writes it in vain.
    """
    uses, death = trace.uses[tensor], trace.deaths[tensor]
    if not uses:
        return []
    in_vain = [(kernel, kernel + 1) for kernel in uses[bisect_left(uses, death) :]]
    return [(trace.births[tensor], death), *in_vain]


@dataclass(frozen=True, slots=True)
class Period:
    """From operation ``start`` on, every ``length`` operations repeat the ones before."""

    start: int
    length: int


class Signatures:
    """Turns operations into values that repeat from one iteration to the next, whatever the addresses.

    An allocation becomes its size, a free the distance to the allocation of its block
    (vd2 branch of the authors' incubator-singa, src/core/device/swap_gpu.cc).
    """

    def __init__(self) -> None:
        self._allocated: dict[int, int] = {}
        self._count = 0

    def next(self, operation: Operation) -> Hashable:
        """Return the value of the next operation of the stream."""
        index, self._count = self._count, self._count + 1
        if operation.kind is OperationKind.FREE:
            return operation.kind, index - self._allocated.pop(operation.block, index)
        self._allocated[operation.block] = index
        return operation.kind, operation.size_bytes


def find_period(values: Sequence[Hashable], least_length: int = 1) -> Period | None:
    """Return the period in which a sequence ends, or None. Linear in time and memory.

    Of all lengths that the end of the sequence repeats with, at least twice, it is the one whose
    repetition reaches back farthest (a loop within an iteration repeats only there), and of several the
    shortest (two iterations are not one). The repetition must be at least half of the sequence.
    """
    matches = _z_function(values[::-1])
    total = len(values)
    lengths = range(max(1, least_length), total // 2 + 1)
    reach = {length: matches[length] + length for length in lengths if matches[length] >= length}
    best = max(reach, key=reach.__getitem__, default=None)
    return None if best is None or 2 * reach[best] < total else Period(total - reach[best], best)


def _z_function(values: Sequence[Hashable]) -> list[int]:
    """For every position how many values from there on equal the beginning (Gusfield 1997, section 1.4)."""
    total = len(values)
    lengths = [0] * total
    left = right = 0
    for i in range(1, total):
        length = min(right - i, lengths[i - left]) if i < right else 0
        while i + length < total and values[length] == values[i + length]:
            length += 1
        lengths[i] = length
        if i + length > right:
            left, right = i, i + length
    return lengths


class IterationDetector:
    """Watches the signatures of a stream for a period; looks at twice as many of them each time.

    All looks together take time linear in the number of operations.
    """

    def __init__(self, first_check: int = FIRST_CHECK, least_operations: int = LEAST_OPERATIONS) -> None:
        self.values: list[Hashable] = []
        self._next_check = max(2, first_check)
        self._least = least_operations

    def observe(self, value: Hashable) -> Period | None:
        """Take in the signature of the next operation; returns the period when it is found."""
        self.values.append(value)
        if len(self.values) < self._next_check:
            return None
        self._next_check *= 2
        return find_period(self.values, self._least)
