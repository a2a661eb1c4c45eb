"""Tensors on their way out, and the few of them of which less may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from g10sim.policies.interface.machine import PlannedTier


class Departures:
    """Tensors that were asked to leave, by the tier where they go: there, each is gone after those before it.

    ``tiers`` are those of all tensors, in the order in which they were asked; ``queued`` are the bytes yet
    to leave for each tier by name.
    """

    def __init__(self, tiers: Iterable[PlannedTier]) -> None:
        names = [tier.name for tier in tiers]
        self.tiers: dict[int, PlannedTier] = {}
        self.queued = dict.fromkeys(names, 0)
        self._queues: dict[str, dict[int, int]] = {name: {} for name in names}
        self._new: list[int] = []

    def __contains__(self, tensor: int) -> bool:
        """Return whether a tensor is on its way."""
        return tensor in self.tiers

    def __iter__(self) -> Iterator[int]:
        """Yield all of them."""
        return iter(self.tiers)

    def state(self) -> tuple[object, ...]:
        """Return what is on its way, and to where."""
        queues = ((name, *queue.items()) for name, queue in self._queues.items())
        return *queues, *self._new

    @property
    def total_bytes(self) -> int:
        """Bytes yet to leave for all tiers together."""
        return sum(self.queued.values())

    def add(self, tensor: int, tier: PlannedTier, size_bytes: int) -> None:
        """Note a tensor that is asked to leave, and its bytes."""
        self.tiers[tensor] = tier
        self._queues[tier.name][tensor] = size_bytes
        self.queued[tier.name] += size_bytes
        self._new.append(tensor)

    def discard(self, tensor: int) -> None:
        """Forget a tensor that has left, or does not have to."""
        tier = self.tiers.pop(tensor, None)
        if tier:
            self.queued[tier.name] -= self._queues[tier.name].pop(tensor)

    def follow(self, left_bytes: Callable[[int], int]) -> list[int]:
        """Ask for the bytes of each tier's tensors that are left, up to the first that has as many as before.

        Those that are new are asked for, too. Returns those of which nothing is left.
        """
        for tensor in self._new:
            if tensor in self.tiers:
                self._note(tensor, left_bytes(tensor))
        self._new.clear()
        gone = []
        for queue in self._queues.values():
            for tensor, before in queue.items():
                left = left_bytes(tensor)
                if left == before and left:
                    break
                self._note(tensor, left)
                if not left:
                    gone.append(tensor)
        return gone

    def _note(self, tensor: int, left_bytes: int) -> None:
        name = self.tiers[tensor].name
        queue = self._queues[name]
        self.queued[name] += left_bytes - queue[tensor]
        queue[tensor] = left_bytes
