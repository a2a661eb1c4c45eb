"""SmartPool on the trace with swaps: a tensor that comes back gets a new block, at a separate place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from g10sim.analysis.pools.operations import stays_of
from g10sim.analysis.pools.placement import Block, search_placement
from g10sim.policies.designs.autoswap.timeline import Swap
from g10sim.trace.model import Trace


@dataclass(frozen=True)
class SwappedPool:
    """For each tensor the addresses of its blocks, in the order in which an iteration allocates them."""

    addresses_bytes: tuple[tuple[int, ...], ...]
    footprint_bytes: int


def plan_swapped_pool(
    trace: Trace, swaps: Sequence[Swap], page_bytes: int, target_bytes: int = 0, rounds: int = 0
) -> SwappedPool:
    """Place all blocks of an iteration; a swapped tensor has one until it has left, and one from its return.

    Tensors that never leave lie at the bottom, all others above by size, best fit. Lifetimes are in
    kernels, and those of persistent tensors cross the border of the iteration. Swaps make the load flat, and
    packing harder: as long as the footprint is above the target, ``rounds`` rounds of local search follow.
    """
    absences = {swap.candidate.tensor: swap for swap in swaps}
    bottom = 0
    addresses: list[list[int]] = [[] for _ in trace.tensors]
    owners: list[int] = []
    blocks: list[Block] = []
    for tensor in trace.tensors:
        if tensor.persistent and tensor.id not in absences:
            addresses[tensor.id].append(bottom)
            bottom += -(-tensor.size_bytes // page_bytes) * page_bytes
            continue
        for start, end in _stays(trace, tensor.id, absences):
            owners.append(tensor.id)
            blocks.append(Block(start, end, tensor.size_bytes))
    placement = search_placement(
        blocks,
        target_bytes - bottom,
        period=len(trace.kernels),
        alignment_bytes=page_bytes,
        rounds=rounds,
    )
    for tensor_id, offsets in zip(owners, placement.offsets, strict=True):
        addresses[tensor_id].append(bottom + offsets[0])
    return SwappedPool(tuple(map(tuple, addresses)), bottom + placement.footprint_bytes)


def _stays(trace: Trace, tensor: int, absences: Mapping[int, Swap]) -> list[tuple[int, int]]:
    """Ranges of kernels in which a tensor has memory, in the order of their starts."""
    swap = absences.get(tensor)
    if swap is None:
        return stays_of(trace, tensor)
    if trace.tensors[tensor].persistent:
        return [(swap.back, swap.gone + len(trace.kernels))]
    (birth, death), *in_vain = stays_of(trace, tensor)
    return [(birth, swap.gone), (swap.back, death), *in_vain]
