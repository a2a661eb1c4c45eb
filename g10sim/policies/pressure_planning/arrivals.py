"""Tensors on their way in, and the few of them that may have come further."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import accumulate

from g10sim.policies.base import PolicyView
from g10sim.policies.planning.machine import PlannedMachine

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

    def cycles(self, view: PolicyView, needed: Collection[int], machine: PlannedMachine) -> float:
        """Return the cycles until all of these tensors have arrived on links that carry nothing else.

        Of those that nobody has asked for, what each tier holds comes last of what comes from there.
        """
        late = {tensor for tensor in needed if not view.is_whole(tensor)}
        if not late:
            return 0
        rates = {tier.name: tier.read_rate for tier in machine.tiers}
        cycles = dict.fromkeys(rates, 0.0)
        for way, tensors in self._ways.items():
            sizes = zip(accumulate(map(view.in_transfer_bytes, tensors)), tensors, strict=True)
            last = max((size for size, tensor in sizes if tensor in late), default=0)
            for tier in way:
                cycles[tier] += last / min(map(rates.__getitem__, way))
        for name, rate in rates.items():
            cycles[name] += sum(view.bytes_in(tensor, name) for tensor in late) / rate
        return max(cycles.values())
