"""Addresses of tensors in unified memory: their own, or ranges that a caching allocator hands out again."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, compress, count
from math import inf
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from g10sim.config.allocator import CachingPoolSpec
from g10sim.hardware.gpu_memory.allocators.caching import CachingPool
from g10sim.hardware.gpu_memory.placement import Block, best_fit
from g10sim.sim.stages.working_set import released_after
from g10sim.trace.model import Kernel, Tensor, TensorKind, Trace
from g10sim.trace.repetition import Changed, named

# Addresses repeat from the second or third iteration on, when the allocator has all the chunks it needs.
_MOST_ITERATIONS = 8
_UNLIMITED_PAGES = 2**53
_KEPT = 2
"""Maps that a process keeps: cells of one trace come one after another."""
Sides: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class AddressMap:
    """Addresses of an iteration in the steady state, as ranges of whole pages, numbered from 0.

    A *stay* is a tensor at ``ranges`` from a kernel on: those from ``born[k]`` to ``born[k + 1]`` begin with
    kernel k, persistent tensors before ``born[0]``. ``sides`` are the ranges that kernels read and write,
    ``touched`` both, each once, ``dying`` the tensors that are dead after them. ``trace`` has ranges in place
    of tensors; ``chunks`` are the ranges that lie together in one chunk of the driver. Source: PyTorch's
    CUDACachingAllocator, on whose managed memory DeepUM (ASPLOS 2023, section 5) runs.
    """

    ranges: Sequence[tuple[int, ...]]
    tenants: Sequence[int]
    born: Sequence[int]
    sides: Sequence[Sides]
    touched: Sequence[tuple[int, ...]]
    dying: Sequence[Sequence[int]]
    trace: Trace
    chunks: Sequence[range]
    num_tensors: int


_latest: list[tuple[Trace, tuple[int, int, CachingPoolSpec], AddressMap]] = []


def address_map(trace: Trace, page_bytes: int, chunk_bytes: int, spec: CachingPoolSpec) -> AddressMap:
    """Return the addresses of a trace; those of the latest traces are known."""
    facts = page_bytes, chunk_bytes, spec
    for known, others, found in _latest:
        if known is trace and others == facts:
            return found
    found = _made(trace, *facts)
    _latest.insert(0, (trace, facts, found))
    del _latest[_KEPT:]
    return found


def _made(trace: Trace, page_bytes: int, chunk_bytes: int, spec: CachingPoolSpec) -> AddressMap:
    dying, pages = released_after(trace), trace.page_sizes(page_bytes)
    kept = [*compress(count(), trace.lasting)]
    born = _born(trace, kept, dying)
    tenants = array("q", chain(kept, chain.from_iterable(born)))
    pool = CachingPool(_UNLIMITED_PAGES, page_bytes, spec)
    starts = [start for start, _ in _steady_blocks(pool, kept, born, dying, pages)]
    stays = np.array([starts, [start + pages[tensor] for start, tensor in zip(starts, tenants, strict=True)]])
    cuts, place = np.unique(stays, return_inverse=True)
    first, end = place.reshape(stays.shape)
    covering = np.bincount(first, minlength=len(cuts)) - np.bincount(end, minlength=len(cuts))
    is_used = covering.cumsum() > 0
    number_at = is_used.cumsum() - is_used
    blocks = [*map(Block, cuts[is_used].tolist(), np.diff(cuts)[is_used[:-1]].tolist())]
    stretches = [*zip(number_at[first].tolist(), number_at[end].tolist(), strict=True)]
    known = {stretch: tuple(range(*stretch)) for stretch in set(stretches)}
    ranges = [known[stretch] for stretch in stretches]
    first_born = array("q", accumulate(map(len, born), initial=len(kept)))
    sides, touched = _sides(trace, tenants, ranges, first_born)
    return AddressMap(
        ranges=ranges,
        tenants=tenants,
        born=first_born,
        sides=sides,
        touched=touched,
        dying=dying,
        trace=_mapped(trace, blocks, page_bytes, sides),
        chunks=_shared_chunks(blocks, pool.chunks, max(1, chunk_bytes // page_bytes)),
        num_tensors=len(trace.tensors),
    )


def _born(trace: Trace, kept: Iterable[int], dying: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the tensors that get blocks when each kernel starts, next to those that are kept."""
    alive, found = set(kept), []
    for tensors, dead in zip(named(trace.kernels, attrgetter("tensors")), dying, strict=True):
        found.append(tuple([tensor for tensor in tensors if tensor not in alive]))
        alive.update(found[-1])
        alive.difference_update(dead)
    return found


def _sides(
    trace: Trace, tenants: Sequence[int], ranges: Sequence[tuple[int, ...]], born: Sequence[int]
) -> tuple[list[Sides], list[tuple[int, ...]]]:
    """Return the ranges that every kernel reads and those that it writes, and both, each once."""
    now: list[tuple[int, ...]] = [()] * len(trace.tensors)
    for number in reversed(range(len(tenants))):  # before a tensor's first stay, it is where that will be
        now[tenants[number]] = ranges[number]
    known: dict[Sides, tuple[Sides, tuple[int, ...]]] = {}
    found: list[tuple[Sides, tuple[int, ...]]] = []

    def at(tensors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([place for tensor in tensors for place in now[tensor]])

    inputs, outputs = (named(trace.kernels, attrgetter(side)) for side in ("inputs", "outputs"))
    for kernel, (read, written) in enumerate(zip(inputs, outputs, strict=True)):
        for number in reversed(range(born[kernel], born[kernel + 1])):
            now[tenants[number]] = ranges[number]
        sides = at(read), at(written)
        if (both := known.get(sides)) is None:
            both = known[sides] = sides, tuple(dict.fromkeys(chain(*sides)))
        found.append(both)
    return [sides for sides, _ in found], [touched for _, touched in found]


def _mapped(trace: Trace, blocks: Sequence[Block], page_bytes: int, sides: Sequence[Sides]) -> Trace:
    tensors = tuple(
        Tensor(number, f"{block.start * page_bytes:#x}", block.pages * page_bytes, TensorKind.OTHER, True)
        for number, block in enumerate(blocks)
    )
    return replace(trace, tensors=tensors, kernels=Changed(trace.kernels, partial(_touching, sides)))


def _touching(sides: Sequence[Sides], kernel: Kernel) -> Kernel:
    """Return a kernel that touches ranges."""
    return kernel.with_tensors(*sides[kernel.id], kernel.id)


def _steady_blocks(
    pool: CachingPool,
    kept: Iterable[int],
    born: Sequence[Iterable[int]],
    dying: Sequence[Iterable[int]],
    pages: Sequence[int],
) -> list[Block]:
    """Return every block of an iteration whose addresses repeat, with what rounding adds; the kept first."""

    def placed(tensor: int) -> Block:
        pool.allocate(tensor, pages[tensor], best_fit)
        return pool.block(tensor)

    lasting, blocks, grown = [*map(placed, kept)], list[Block](), -1
    for _ in range(_MOST_ITERATIONS):
        before, blocks, reserved = blocks, [], pool.chunk_pages
        for kernel, tensors in enumerate(born):
            chunk_pages = pool.chunk_pages
            blocks += map(placed, tensors)
            for tensor in dying[kernel]:
                pool.release(tensor)
            if pool.chunk_pages > chunk_pages:
                grown = kernel
            elif kernel == grown and chunk_pages == reserved:
                there = dict(zip(chain.from_iterable(born[: kernel + 1]), before, strict=False))
                if all(there.get(tensor, block) == block for tensor, block in pool.blocks.items()):
                    return [*lasting, *blocks, *before[len(blocks) :]]  # the rest comes as it came before
        if pool.chunk_pages == reserved:  # all is free again that was before: the next iteration is the same
            break
    return [*lasting, *blocks]


def _shared_chunks(blocks: Sequence[Block], pool_chunks: Sequence[Block], pages: int) -> list[range]:
    """Return the ranges that lie together in one chunk of the driver's, of that many pages.

    The allocator's own chunks begin at multiples of the driver's.
    """
    starts = sorted(chunk.start for chunk in pool_chunks)
    members: dict[tuple[int, int], list[int]] = {}
    for number, block in enumerate(blocks):
        base = starts[bisect_right(starts, block.start) - 1]
        chunk = (block.start - base) // pages
        if chunk == (block.end - 1 - base) // pages:
            members.setdefault((base, chunk), []).append(number)
    return [range(together[0], together[-1] + 1) for together in members.values() if len(together) > 1]


class OwnAddresses:
    """Every tensor has its own addresses: memory knows each tensor as one range with its number.

    ``trace`` is the job's trace as memory sees it: kernels that touch ranges.
    """

    are_shared = False
    """True if other tensors get a tensor's addresses when it is dead."""
    chunks: Sequence[range] = ()
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
        owner, alive, total = self._owner, self._alive, 0
        for place in self._now[tensor]:
            if (tenant := owner[place]) == tensor or tenant not in alive:
                total += counts[place]
        return total
