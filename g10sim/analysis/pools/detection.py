"""Finding the iterations of training in a stream of memory operations (SmartPool, section on detection)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from g10sim.analysis.pools.operations import Operation, OperationKind

FIRST_CHECK = 300
"""Operations after which the authors' implementation looks for iterations for the first time."""
LEAST_OPERATIONS = 100
"""Operations of an iteration, above which the authors' implementation accepts it."""


@dataclass(frozen=True, slots=True)
class Period:
    """From operation ``start`` on, every ``length`` operations repeat the ones before."""

    start: int
    length: int


class Signatures:
    """Turns operations into values that repeat from one iteration to the next, whatever the addresses.

    An allocation becomes its size, any other operation the distance to the one before on its block
    (vd2 branch of the authors' incubator-singa, src/core/device/swap_gpu.cc).
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._count = 0

    def next(self, operation: Operation) -> Hashable:
        """Return the value of the next operation of the stream."""
        last = self._last.get(operation.block, self._count)
        index, self._count = self._count, self._count + 1
        if operation.kind is OperationKind.ALLOCATE:
            self._last[operation.block] = index
            return operation.kind, operation.size_bytes
        if operation.kind is OperationKind.FREE:
            self._last.pop(operation.block, None)
        else:
            self._last[operation.block] = index
        return operation.kind, index - last


def find_period(values: Sequence[Hashable], least_length: int = 1) -> Period | None:
    """Return the period in which a sequence ends, or None. Linear in time and memory.

    Of all lengths that the end of the sequence repeats with, at least twice, it is the one whose
    repetition reaches back farthest (a loop within an iteration repeats only there), and of several the
    shortest (two iterations are not one). The repetition must be at least half of the sequence.
    """
    matches = _z_function(values[::-1])
    total = len(values)
    best: Period | None = None
    reach = (total + 1) // 2
    for length in range(max(1, least_length), total // 2 + 1):
        repeated = matches[length] + length
        if matches[length] >= length and repeated >= reach:
            if best is None or repeated > reach:
                best = Period(total - repeated, length)
            reach = repeated
    return best


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
    """Watches a stream and says when it repeats; looks at twice as many operations each time.

    All looks together take time linear in the number of operations.
    """

    def __init__(self, first_check: int = FIRST_CHECK, least_operations: int = LEAST_OPERATIONS) -> None:
        self._signatures = Signatures()
        self._values: list[Hashable] = []
        self._next_check = max(2, first_check)
        self._least = least_operations

    def observe(self, operation: Operation) -> Period | None:
        """Take in the next operation; returns the period when it is found."""
        self._values.append(self._signatures.next(operation))
        if len(self._values) < self._next_check:
            return None
        self._next_check *= 2
        return find_period(self._values, self._least)


def detect_iteration(operations: Iterable[Operation], least_operations: int = 1) -> Period | None:
    """Find the iterations in which a whole recorded stream ends."""
    signatures = Signatures()
    return find_period([signatures.next(operation) for operation in operations], least_operations)
