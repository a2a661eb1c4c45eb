"""Tensors on their way out and in, and the few of them that may have come further."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

from g10sim.policies.interface import PlannedMachine, PolicyView

_Way = TypeVar("_Way", bound=Hashable)


class InFlight(Generic[_Way]):
    """Tensors on their way, first come first served: of those that go the same way, one after another.

    ``ways`` are those of all tensors, in the order in which they were asked for; ``queued`` are the bytes yet
    to move each way.
    """

    def __init__(self) -> None:
        self.ways: dict[int, _Way] = {}
        self.queued = defaultdict[_Way, int](int)
        self._queues = defaultdict[_Way, OrderedDict[int, int]](OrderedDict)

    @property
    def total_bytes(self) -> int:
        """Bytes yet to move all together."""
        return sum(self.queued.values())

    def state(self) -> tuple[object, ...]:
        """Return what is on its way, and which one."""
        return tuple((way, *sizes.items()) for way, sizes in self._queues.items() if sizes)

    def add(self, tensor: int, way: _Way, size_bytes: int) -> None:
        """Note a tensor that is asked for, and its bytes."""
        self.ways[tensor] = way
        self._queues[way][tensor] = size_bytes
        self.queued[way] += size_bytes

    def note(self, tensor: int, left_bytes: int) -> None:
        """Note the bytes of a tensor that are yet to move, if it is on its way."""
        if tensor in self.ways:
            way = self.ways[tensor]
            self.queued[way] += left_bytes - self._queues[way][tensor]
            self._queues[way][tensor] = left_bytes

    def discard(self, tensor: int) -> None:
        """Forget a tensor that is there, or that does not have to move."""
        if tensor in self.ways:
            way = self.ways.pop(tensor)
            self.queued[way] -= self._queues[way].pop(tensor)


class Departures(InFlight[int]):
    """Tensors that were asked to leave, by the number of the tier where they go."""

    def __init__(self) -> None:
        super().__init__()
        self._new: list[int] = []

    def state(self) -> tuple[object, ...]:
        """Return what is on its way, and to where."""
        return *super().state(), *self._new

    def add(self, tensor: int, way: int, size_bytes: int) -> None:
        """Note a tensor that is asked to leave, and its bytes."""
        super().add(tensor, way, size_bytes)
        self._new.append(tensor)

    def follow(self, left_bytes: Callable[[int], int]) -> list[int]:
        """Ask for the bytes of each tier's tensors that are left, up to the first that has as many as before.

        Those that are new are asked for, too. Returns those of which nothing is left.
        """
        for tensor in filter(self.ways.__contains__, self._new):
            self.note(tensor, left_bytes(tensor))
        self._new.clear()
        gone = []
        for queue in self._queues.values():
            for tensor, before in queue.items():
                left = left_bytes(tensor)
                if left == before and left:
                    break
                self.note(tensor, left)
                if not left:
                    gone.append(tensor)
        return gone


Tiers: TypeAlias = tuple[str, ...]


class Arrivals(InFlight[Tiers]):
    """Tensors that were asked for, by the names of the tiers that they come from."""

    def follow(self, has_moved: Callable[[int], bool]) -> None:
        """Ask of each way's tensors whether they have moved, up to the first that has not."""
        for queue in self._queues.values():
            moved = 0  # and still on their way
            while moved < len(queue):
                tensor = next(islice(queue, moved, None))
                if not has_moved(tensor) and tensor in queue:
                    break
                moved += tensor in queue

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
