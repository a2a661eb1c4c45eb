"""Addresses of tensors in unified memory: their own, or ranges that a caching allocator hands out again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf
from operator import attrgetter

from g10sim.sim.address_map import AddressMap, Sides
from g10sim.trace.model import Trace
from g10sim.trace.repetition import named


class OwnAddresses:
    """Every tensor has its own addresses: memory knows each tensor as one range with its number.

    ``trace`` is the job's trace as memory sees it: kernels that touch ranges.
    """

    are_shared = False
    """True if other tensors get a tensor's addresses when it is dead."""
    chunks: Sequence[Sequence[int]] = ()
    """Ranges that lie together in a chunk of 2 MiB; empty where chunks do not count."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._kernel = 0
        self._lives: Sequence[tuple[float, float]] = ()

    def enter(self, kernel: int) -> Sequence[int]:
        """Give ranges to the tensors that are born when a kernel starts; returns those that others had."""
        self._kernel = kernel
        return ()

    def leave(self, kernel: int) -> None:
        """Note which tensors are dead when a kernel has ended."""

    def sides(self, kernel: int) -> Sides:
        """Return the ranges that a kernel reads, and those that it writes."""
        found = self.trace.kernels[kernel]
        return found.inputs, found.outputs

    def touched(self) -> Sequence[tuple[int, ...]]:
        """Return the ranges that each kernel needs on the GPU, those that it reads first."""
        return list(named(self.trace.kernels, attrgetter("tensors")))

    def is_dead(self, place: int) -> bool:
        """Return whether nobody will read what lies at a range."""
        birth, death = (self._lives or self._find_lives())[place]
        return not birth <= self._kernel < death

    def _find_lives(self) -> Sequence[tuple[float, float]]:
        """Return for each tensor from which kernel on somebody will read it, and from which nobody will."""
        trace = self.trace
        spans = zip(trace.lasting, trace.births, trace.deaths, strict=True)
        self._lives = [(-inf, inf) if lasts else (birth, death) for lasts, birth, death in spans]
        return self._lives

    def tensor_at(self, place: int) -> int:
        """Return the tensor whose contents lie, or lay last, at a range."""
        return place

    def held(self, tensor: int) -> tuple[int, ...]:
        """Return the ranges at which a tensor's contents lie."""
        return (tensor,)

    def open_to(self, tensor: int) -> tuple[int, ...]:
        """Return the ranges at which a tensor's contents lie or may come to lie."""
        return (tensor,)

    def open_to_any(self, tensors: Iterable[int]) -> frozenset[int]:
        """Return the ranges at which contents of some tensors lie or may come to lie."""
        return frozenset(tensors)

    def pages(self, tensor: int, counts: Sequence[int]) -> int:
        """Return the pages at the ranges that are open to a tensor, by the counts of some place."""
        return counts[tensor]


class PooledAddresses(OwnAddresses):
    """Tensors take turns at the address ranges that a framework's caching allocator hands out.

    Ranges stay mapped when a tensor dies, with what was in them, until somebody discards them; the next
    tensor there writes over it. Addresses are those of the steady state, in all iterations; sizes are whole
    pages. Source: PyTorch's CUDACachingAllocator, on whose managed memory DeepUM (ASPLOS 2023, section 5)
    runs.
    """

    are_shared = True

    def __init__(self, addresses: AddressMap) -> None:
        super().__init__(addresses.trace)
        self._map, self.chunks = addresses, addresses.chunks
        self._now: list[tuple[int, ...]] = [()] * addresses.num_tensors
        self._owner = [0] * len(addresses.trace.tensors)
        self._alive: set[int] = set()
        self._settle_in(reversed(range(len(addresses.ranges))))
        self._alive = set(addresses.tenants[: addresses.born[0]])

    def _settle_in(self, stays: Iterable[int]) -> None:
        for number in stays:
            tensor = self._map.tenants[number]
            self._alive.add(tensor)
            self._now[tensor] = self._map.ranges[number]
            for place in self._map.ranges[number]:
                self._owner[place] = tensor

    def sides(self, kernel: int) -> Sides:
        """Return the ranges that a kernel reads, and those that it writes."""
        return self._map.sides[kernel]

    def touched(self) -> Sequence[tuple[int, ...]]:
        """Return the ranges that each kernel needs on the GPU, those that it reads first."""
        return self._map.touched

    def enter(self, kernel: int) -> Sequence[int]:
        """Give ranges to the tensors that are born when a kernel starts; returns those that others had."""
        first, end = self._map.born[kernel : kernel + 2]
        if first == end:
            return ()
        born = range(end - 1, first - 1, -1)
        self._settle_in(born)
        return [place for number in born for place in self._map.ranges[number]]

    def leave(self, kernel: int) -> None:
        """Note which tensors are dead when a kernel has ended."""
        self._alive.difference_update(self._map.dying[kernel])

    def is_dead(self, place: int) -> bool:
        """Return whether nobody will read what lies at a range."""
        return self._owner[place] not in self._alive

    def tensor_at(self, place: int) -> int:
        """Return the tensor whose contents lie, or lay last, at a range; before any, the first."""
        return self._owner[place]

    def held(self, tensor: int) -> tuple[int, ...]:
        """Return the ranges at which a tensor's contents lie."""
        if tensor in self._alive:
            return self._now[tensor]
        return tuple([place for place in self._now[tensor] if self._owner[place] == tensor])

    def open_to(self, tensor: int) -> tuple[int, ...]:
        """Return the ranges at which a tensor's contents lie or may come to lie: its own and dead ones."""
        owner, alive = self._owner, self._alive
        if tensor in alive:
            return self._now[tensor]
        return tuple(
            [place for place in self._now[tensor] if owner[place] == tensor or owner[place] not in alive]
        )

    def open_to_any(self, tensors: Iterable[int]) -> frozenset[int]:
        """Return the ranges at which contents of some tensors lie or may come to lie."""
        now, alive = self._now, self._alive
        places = [now[tensor] if tensor in alive else self.open_to(tensor) for tensor in tensors]
        return frozenset(chain.from_iterable(places))

    def pages(self, tensor: int, counts: Sequence[int]) -> int:
        """Return the pages at the ranges that are open to a tensor, by the counts of some place."""
        total = 0
        for place in self._now[tensor] if tensor in self._alive else self.open_to(tensor):
            total += counts[place]
        return total
