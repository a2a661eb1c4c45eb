"""Tensors on their way out, and the few of them of which less may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator


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

    def __contains__(self, tensor: int) -> bool:
        """Return whether a tensor is on its way."""
        return tensor in self.tiers

    def __iter__(self) -> Iterator[int]:
        """Yield all of them."""
        return iter(self.tiers)

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
