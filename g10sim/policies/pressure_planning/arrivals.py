"""Tensors on their way in, and the few of them that may have come further."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from g10sim.policies.base import PolicyView

Way = tuple[str, ...]


class Arrivals:
    """Tensors that were asked for, by the tiers that they come from, first come first served.

    Of those that come the same way, each arrives after the ones before it.
    """

    def __init__(self) -> None:
        self._ways: dict[Way, dict[int, None]] = {}
        self._way_of: dict[int, Way] = {}

    def __contains__(self, tensor: int) -> bool:
        """Tell whether a tensor is on its way."""
        return tensor in self._way_of

    def __iter__(self) -> Iterator[int]:
        """Yield all of them."""
        return iter(self._way_of)

    def add(self, view: PolicyView, tensor: int) -> None:
        """Note a tensor that is about to be asked for."""
        way = tuple(tier for tier in view.tiers if view.bytes_in(tensor, tier))
        self._way_of[tensor] = way
        self._ways.setdefault(way, {})[tensor] = None

    def discard(self, tensor: int) -> None:
        """Forget a tensor, which has arrived or is not wanted any more."""
        way = self._way_of.pop(tensor, None)
        if way is not None:
            del self._ways[way][tensor]

    def follow(self, has_moved: Callable[[int], bool]) -> None:
        """Ask of each way's tensors whether they have moved, up to the first that has not."""
        for way in self._ways.values():
            for tensor in list(way):
                if not has_moved(tensor) and tensor in way:
                    break
