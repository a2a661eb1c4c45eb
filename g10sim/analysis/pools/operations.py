"""Memory operations of training in program order, as a pool and a swap planner see them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from g10sim.trace.model import Trace


class OperationKind(StrEnum):
    """What happens to a block of device memory."""

    ALLOCATE = "allocate"
    READ = "read"
    WRITE = "write"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Operation:
    """One memory operation; ``block`` is a number that no other allocation has."""

    kind: OperationKind
    block: int
    size_bytes: int


def training_operations(trace: Trace, iterations: int) -> Iterator[Operation]:
    """Return the memory operations of so many iterations: persistent tensors first, which stay.

    A kernel's new tensors are allocated when it starts, then come its reads and writes, then what is dead
    is freed. A tensor that is written after nothing reads it any more gets a block for that kernel alone.
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
            yield from _operations(OperationKind.READ, kernel.inputs, trace, blocks)
            yield from _operations(OperationKind.WRITE, kernel.outputs, trace, blocks)
            dead = [tensor for tensor in kernel.tensors if _is_dead_after(trace, tensor, kernel.id)]
            yield from _operations(OperationKind.FREE, dead, trace, blocks)
            for tensor in dead:
                del blocks[tensor]


def _operations(
    kind: OperationKind, tensors: Iterable[int], trace: Trace, blocks: Mapping[int, int]
) -> Iterator[Operation]:
    return (Operation(kind, blocks[tensor], trace.tensors[tensor].size_bytes) for tensor in tensors)


def _is_dead_after(trace: Trace, tensor: int, kernel: int) -> bool:
    return not trace.tensors[tensor].persistent and trace.deaths[tensor] <= kernel + 1


def only_allocations(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Leave out reads and writes, which a pool does not see."""
    seen = (OperationKind.ALLOCATE, OperationKind.FREE)
    return (operation for operation in operations if operation.kind in seen)


def peak_load_bytes(operations: Iterable[Operation]) -> int:
    """Most bytes allocated at a time: no pool can do with less memory."""
    load = peak = 0
    for operation in operations:
        if operation.kind is OperationKind.ALLOCATE:
            load += operation.size_bytes
            peak = max(peak, load)
        elif operation.kind is OperationKind.FREE:
            load -= operation.size_bytes
    return peak


def stays_of(trace: Trace, tensor: int) -> list[tuple[int, int]]:
    """Ranges of kernels (half open) during which a tensor that is not persistent needs memory.

    The first is its live range; each further one is a kernel that writes it in vain.
    """
    uses, death = trace.uses[tensor], trace.deaths[tensor]
    if not uses:
        return []
    in_vain = [(kernel, kernel + 1) for kernel in uses[bisect_left(uses, death) :]]
    return [(trace.births[tensor], death), *in_vain]
