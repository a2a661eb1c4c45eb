"""Parts of a pass: the kernels of one layer for one batch; and what is used by several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from g10sim.grouping import grouped
from g10sim.trace.model import TensorKind, Trace


class Kind(StrEnum):
    """Data that have a share of the GPU and of every tier."""

    WEIGHTS = "weights"
    CACHE = "keys and values"
    STATES = "states"


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels ``first`` to ``last``: one batch in one layer; ``group`` counts layers as they run."""

    block: str
    batch: int
    first: int
    last: int
    group: int


def parts_of(trace: Trace) -> tuple[Part, ...]:
    """Return the parts of a trace in their order; a layer is a block of the model.

    A kernel that writes nothing computes nothing: it belongs to the part of the one before it.
    """
    found, before, group = list[Part](), None, -1
    for kernel in trace.kernels:
        key = (kernel.block, kernel.micro_batch)
        if not found or (kernel.outputs and key != before):
            group += before is None or before[0] != key[0]
            found.append(Part(*key, kernel.id, kernel.id, group))
            before = key
        else:
            found[-1] = replace(found[-1], last=kernel.id)
    return tuple(found)


def part_numbers(parts: Sequence[Part]) -> list[int]:
    """Return for every kernel the number of its part."""
    return [number for number, part in enumerate(parts) for _ in range(part.first, part.last + 1)]


def uses_by_part(trace: Trace, parts: Sequence[Part]) -> dict[int, list[int]]:
    """Return for every tensor that some kernel computes with the parts in which one does, ascending."""
    numbers, computing = part_numbers(parts), (kernel for kernel in trace.kernels if kernel.outputs)
    pairs = ((tensor, numbers[kernel.id]) for kernel in computing for tensor in kernel.touched)
    return grouped(dict.fromkeys(pairs))


def kinds_of(trace: Trace, parts: Sequence[Part]) -> dict[int, Kind]:
    """Return the kind of every tensor that lasts longer than a part.

    Weights persist and are only read, as are tensors that several batches or layers read. Of all others keys
    and values are those that one layer uses, and states those that several do.
    """
    found = dict[int, Kind]()
    for number, uses in uses_by_part(trace, parts).items():
        tensor, blocks = trace.tensors[number], {parts[use].block for use in uses}
        users = {(parts[use].block, parts[use].batch) for use in uses}
        is_shared = tensor.kind is TensorKind.WEIGHT or len(users) > 1
        if tensor.persistent and number not in trace.written and is_shared:
            found[number] = Kind.WEIGHTS
        elif len(blocks) > 1:
            found[number] = Kind.STATES
        elif tensor.persistent or len(uses) > 1:
            found[number] = Kind.CACHE
    return found
