"""Tensors that nobody uses while the most memory is in use."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor that nobody uses in operations ``start`` to ``end`` - 1, among them the load peak.

    Operations are counted on over the border of the iteration: ``start`` may be negative, ``end`` may lie
    in the next iteration.
    """

    tensor: int
    size_bytes: int
    start: int
    end: int


def find_candidates(trace: Trace, peak: int, least_bytes: int) -> tuple[Candidate, ...]:
    """Return what could be absent during the kernel of the highest load, by tensor.

    That is every tensor of at least ``least_bytes`` with uses before and after it (those of a persistent
    tensor go on over the border of the iteration), but none in it.
    """
    found = []
    for tensor, uses, death in zip(trace.tensors, trace.uses, trace.deaths, strict=True):
        live_uses = uses[: bisect_left(uses, death)]
        if tensor.size_bytes < least_bytes or not live_uses:
            continue
        absence = _absence(live_uses, peak, len(trace.kernels) if tensor.persistent else None)
        if absence is not None:
            found.append(Candidate(tensor.id, tensor.size_bytes, *absence))
    return tuple(found)


def _absence(uses: tuple[int, ...], peak: int, period: int | None) -> tuple[int, int] | None:
    """First kernel after the last use before the peak, and first use after it."""
    place = bisect_left(uses, peak)
    if place < len(uses) and uses[place] == peak:
        return None
    before = uses[place - 1] if place else None
    after = uses[place] if place < len(uses) else None
    if period is not None:
        before = uses[-1] - period if before is None else before
        after = uses[0] + period if after is None else after
    if before is None or after is None:
        return None
    return before + 1, after
