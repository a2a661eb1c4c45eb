"""Tensors on their way off the GPU, in the order in which they will be gone."""

from __future__ import annotations

from collections.abc import Mapping

from g10sim.policies.interface import PlannedTier, PolicyView


def by_departure(view: PolicyView, leaving: Mapping[int, PlannedTier]) -> list[tuple[int, int]]:
    """Return pairs of a tensor and its bytes under way, those first that will be gone first.

    ``leaving`` are tensors in the order in which they were asked to leave, each with the tier where it goes;
    those for one tier go one after another at its rate.
    """
    ahead, found = dict[str, int](), list[tuple[float, int, int]]()
    for tensor, tier in leaving.items():
        size = view.in_transfer_bytes(tensor)
        ahead[tier.name] = ahead.get(tier.name, 0) + size
        found.append((ahead[tier.name] / tier.write_rate, tensor, size))
    found.sort(key=lambda entry: entry[0])
    return [(tensor, size) for _, tensor, size in found]


def first_gone(
    view: PolicyView, leaving: Mapping[int, PlannedTier], lack_bytes: int, *, nearest: bool = False
) -> frozenset[int]:
    """Return the tensors that will be gone first, as many as give some bytes of room together.

    With ``nearest`` the last of them is left out where that comes nearer to those bytes.
    """
    found = list[int]()
    for tensor, size in by_departure(view, leaving):
        if lack_bytes <= (size / 2 if nearest else 0):
            break
        found.append(tensor)
        lack_bytes -= size
    return frozenset(found)
