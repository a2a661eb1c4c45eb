"""Homes of tensors: the shares of each kind that lie on the GPU and in the tiers, spread over the layers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from g10sim.analysis.footprint import levels
from g10sim.policies.planning.blocks.parts import Kind, Part, kinds_of, uses_by_part
from g10sim.trace.model import Trace

GPU = "gpu"
PLACES = GPU, "host", "ssd"

Shares = Mapping[Kind, tuple[float, float]]
"""Shares on the GPU and in host memory by kind; the rest is the SSD's."""


def homes_of(trace: Trace, parts: Sequence[Part], shares: Shares) -> dict[int, str]:
    """Return where every tensor lies that lasts longer than a part: ``gpu``, ``host`` or ``ssd``.

    Whole tensors, in order of their first uses: each goes where most is missing to the shares so far. A
    layer's keys and values of one batch, of all tokens, go together.
    """
    kinds, uses = kinds_of(trace, parts), uses_by_part(trace, parts)
    homes = dict[Hashable, str]()
    sizes = dict[Hashable, int]()
    owners = {tensor: _owner(tensor, kind, parts[uses[tensor][0]]) for tensor, kind in kinds.items()}
    for tensor, owner in owners.items():
        sizes[owner] = sizes.get(owner, 0) + trace.tensors[tensor].size_bytes
    missing = {kind: dict.fromkeys(PLACES, 0.0) for kind in Kind}
    for tensor, owner in owners.items():
        if owner not in homes:
            lack, (gpu, host) = missing[kinds[tensor]], shares[kinds[tensor]]
            for place, share in zip(PLACES, (gpu, host, 1 - gpu - host), strict=True):
                lack[place] += share * sizes[owner]
            homes[owner] = max(PLACES, key=lack.__getitem__)
            lack[homes[owner]] -= sizes[owner]
    return {tensor: homes[owner] for tensor, owner in owners.items()}


def _owner(tensor: int, kind: Kind, part: Part) -> Hashable:
    return (part.block, part.batch) if kind is Kind.CACHE else tensor


def most_bytes(trace: Trace, sizes: Sequence[int], tensors: Sequence[int]) -> int:
    """Return the most bytes of some tensors that are alive at a time; ``sizes`` are those of all tensors."""
    births = ((t, 0 if trace.lasting[t] else trace.births[t]) for t in tensors)
    spans = ((birth, trace.deaths[tensor], sizes[tensor]) for tensor, birth in births)
    return int(levels(spans, len(trace.kernels)).max(initial=0))
