"""Tensors on their way out and in, and the few of them that may have come further."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection
from itertools import islice

from g10sim.policies.interface import PlannedMachine, PolicyView


class Departures:
    """Tensors that were asked to leave, by the tier where they go: there, each is gone after those before it.

    ``tiers`` are the numbers of those of all tensors, in the order in which they were asked; ``queued`` are
    the bytes yet to leave for each tier, ``total_bytes`` for all together.
    """

    def __init__(self, tiers: int) -> None:
        self.tiers: dict[int, int] = {}
        self.queued = [0] * tiers
        self.total_bytes = 0
        self._queues: list[dict[int, int]] = [{} for _ in range(tiers)]
        self._new: list[int] = []

    def state(self) -> tuple[object, ...]:
        """Return what is on its way, and to where."""
        return *(tuple(queue.items()) for queue in self._queues), *self._new

    def add(self, tensor: int, tier: int, size_bytes: int) -> None:
        """Note a tensor that is asked to leave, and its bytes."""
        self.tiers[tensor] = tier
        self._queues[tier][tensor] = 0
        self._note(tensor, tier, size_bytes)
        self._new.append(tensor)

    def discard(self, tensor: int) -> None:
        """Forget a tensor that has left, or does not have to."""
        tier = self.tiers.pop(tensor, None)
        if tier is not None:
            self._note(tensor, tier, 0)
            del self._queues[tier][tensor]

    def follow(self, left_bytes: Callable[[int], int]) -> list[int]:
        """Ask for the bytes of each tier's tensors that are left, up to the first that has as many as before.

        Those that are new are asked for, too. Returns those of which nothing is left.
        """
        for tensor in self._new:
            if tensor in self.tiers:
                self._note(tensor, self.tiers[tensor], left_bytes(tensor))
        self._new.clear()
        gone = []
        for tier, queue in enumerate(self._queues):
            for tensor, before in queue.items():
                left = left_bytes(tensor)
                if left == before and left:
                    break
                self._note(tensor, tier, left)
                if not left:
                    gone.append(tensor)
        return gone

    def _note(self, tensor: int, tier: int, left_bytes: int) -> None:
        change = left_bytes - self._queues[tier][tensor]
        self._queues[tier][tensor] = left_bytes
        self.queued[tier] += change
        self.total_bytes += change


Way = tuple[str, ...]


class Arrivals:
    """Tensors that were asked for, by the tiers that they come from, first come first served.

    ``ways`` are those tiers of all tensors. Of those that come the same way, each arrives after the ones
    before it. ``total_bytes`` are yet to come of all together.
    """

    def __init__(self) -> None:
        self.ways: dict[int, Way] = {}
        self._queues: dict[Way, OrderedDict[int, int]] = defaultdict(OrderedDict)
        self.total_bytes = 0

    def state(self) -> tuple[object, ...]:
        """Return what is on its way, and from where."""
        return tuple((way, *sizes.items()) for way, sizes in self._queues.items() if sizes)

    def add(self, view: PolicyView, tensor: int, size_bytes: int) -> None:
        """Note a tensor that is about to be asked for, and its bytes."""
        way = tuple([tier for tier in view.tiers if view.bytes_in(tensor, tier)])
        self.ways[tensor] = way
        self._queues[way][tensor] = size_bytes
        self.total_bytes += size_bytes

    def come(self, tensor: int, left_bytes: int) -> None:
        """Note the bytes of a tensor that are yet to come; 0: it has arrived."""
        way = self.ways.get(tensor)
        if way is None:
            return
        sizes = self._queues[way]
        self.total_bytes += left_bytes - sizes[tensor]
        sizes[tensor] = left_bytes
        if not left_bytes:
            del sizes[tensor], self.ways[tensor]

    def discard(self, tensor: int) -> None:
        """Forget a tensor that is not wanted any more."""
        self.come(tensor, 0)

    def follow(self, has_moved: Callable[[int], bool]) -> None:
        """Ask of each way's tensors whether they have moved, up to the first that has not."""
        for way in self._queues.values():
            place, goes_on = 0, True
            while goes_on and place < len(way):
                tensor = next(islice(way, place, None))
                goes_on = has_moved(tensor) or tensor not in way
                place += tensor in way

    def cycles(self, view: PolicyView, late: Collection[int], machine: PlannedMachine) -> float:
        """Return the cycles until tensors that are not all there have, on links that carry nothing else.

        Of those that nobody has asked for, what each tier holds comes last of what comes from there.
        """
        if not late:
            return 0
        rates = {tier.name: tier.read_rate for tier in machine.tiers}
        cycles = dict.fromkeys(rates, 0.0)
        for way, tensors in self._queues.items():
            last, late_here = 0, tensors.keys() & late
            for tensor, size in tensors.items():
                if not late_here:
                    break
                late_here.discard(tensor)
                last += size
            for tier in way:
                cycles[tier] += last / min(map(rates.__getitem__, way))
        for name, rate in rates.items():
            cycles[name] += sum(view.bytes_in(tensor, name) for tensor in late) / rate
        return max(cycles.values())
