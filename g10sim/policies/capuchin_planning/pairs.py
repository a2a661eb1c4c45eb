"""Pairs of accesses between which a tensor may be away, and how long a swap leaves it there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass

from g10sim.policies.swap_planning.access import AccessSequence, transfer_cycles


@dataclass(frozen=True, slots=True)
class AccessPair:
    """Kernel ``evicted`` uses a tensor before the peak, kernel ``use`` is the next that does, after it.

    ``free_time`` (FT): cycles between the end of a copy out right after the first and the start of a copy
    in right before the second, of ``copy_cycles`` each. Negative where they take longer than there is.
    """

    tensor: int
    evicted: int
    use: int
    size_bytes: int
    copy_cycles: int
    free_time: int


def pairs_over(
    accesses: AccessSequence,
    tensors: Collection[int],
    kernel: int,
    bytes_per_cycle: float,
    least_bytes: int = 0,
) -> list[AccessPair]:
    """Return the pairs around a kernel of those tensors that it does not use, the longest free time first.

    Tensors of less than ``least_bytes`` are left out.
    """
    found = []
    for tensor in tensors:
        uses, size = accesses.uses[tensor], accesses.sizes[tensor]
        place = bisect_left(uses, kernel)
        if size < least_bytes or not 0 < place < len(uses) or uses[place] == kernel:
            continue
        evicted, use = uses[place - 1], uses[place]
        copy = transfer_cycles(accesses, tensor, bytes_per_cycle)
        gap = accesses.interval(use).start - accesses.interval(evicted).end
        found.append(AccessPair(tensor, evicted, use, size, copy, gap - 2 * copy))
    return sorted(found, key=lambda pair: (-pair.free_time, pair.tensor))
