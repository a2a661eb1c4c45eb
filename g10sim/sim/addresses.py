"""Addresses of tensors in unified memory: their own, or ranges that a caching allocator hands out again."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TypeAlias

from g10sim.config.allocator import CachingPoolSpec
from g10sim.hardware.allocators.caching import CachingPool
from g10sim.hardware.placement import Block, best_fit
from g10sim.sim.working_set import released_after
from g10sim.trace.model import Kernel, Tensor, TensorKind, Trace
from g10sim.trace.repetition import changed, each, named

# Addresses repeat from the second or third iteration on, when the allocator has all the chunks it needs.
_MOST_ITERATIONS = 8
_UNLIMITED_PAGES = 2**53
Sides: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


class OwnAddresses:
    """Every tensor has addresses of its own: memory knows each tensor as one range with its number.

    ``trace`` is the job's trace as memory sees it: kernels that touch ranges. ``discarded`` are the ranges
    whose contents nobody wants and whose pages stay all the same.
    """

    are_shared = False
    """True if other tensors get a tensor's addresses when it is dead."""
    chunks: Sequence[Sequence[int]] = ()
    """Ranges that lie together in a chunk of 2 MiB; empty where chunks do not count."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._persistent, self._kernel = each(trace.tensors, attrgetter("persistent")), 0
        self.discarded: set[int] = set()

    def enter(self, kernel: int) -> tuple[int, ...]:
        """Give ranges to the tensors that are born when a kernel starts; returns those discarded before."""
        self._kernel = kernel
        return ()

    def leave(self, kernel: int) -> None:
        """Note which tensors are dead when a kernel has ended."""

    def sides(self, kernel: Kernel) -> Sides:
        """Return the ranges that a kernel reads, and those that it writes."""
        return kernel.inputs, kernel.outputs

    def is_dead(self, place: int) -> bool:
        """Tell whether nobody will read what lies at a range."""
        if self._persistent[place]:
            return False
        return not self.trace.births[place] <= self._kernel < self.trace.deaths[place]

    def discard(self, tensor: int) -> tuple[int, ...]:
        """Note that a tensor's contents are discarded; returns the ranges at which they lie."""
        return self.held(tensor)

    def reclaim(self, tensor: int) -> tuple[int, ...]:
        """Note that a tensor will need its ranges; returns those that were discarded."""
        return ()

    def tensor_at(self, place: int) -> int:
        """Return the tensor whose contents lie, or lay last, at a range."""
        return place

    def held(self, tensor: int) -> tuple[int, ...]:
        """Return the ranges at which a tensor's contents lie."""
        return (tensor,)

    def open_to(self, tensor: int) -> tuple[int, ...]:
        """Return the ranges at which a tensor's contents lie or may come to lie."""
        return (tensor,)


@dataclass(frozen=True, slots=True)
class _Stay:
    """A tensor's block from the start of kernel ``birth`` on; ``birth`` is -1 for a persistent tensor."""

    tensor: int
    birth: int
    block: Block


class PooledAddresses(OwnAddresses):
    """Tensors take turns at the address ranges that a framework's caching allocator hands out.

    Ranges stay mapped when a tensor dies, with what was in them, until somebody discards them; the next
    tensor there writes over it. Addresses are those of the steady state, in all iterations; sizes are whole
    pages. Source: PyTorch's CUDACachingAllocator, on whose managed memory DeepUM (ASPLOS 2023, section 5)
    runs.
    """

    are_shared = True

    def __init__(self, trace: Trace, page_bytes: int, chunk_bytes: int, spec: CachingPoolSpec) -> None:
        stays, chunks = _steady_stays(trace, page_bytes, spec)
        chunk_pages = max(1, chunk_bytes // page_bytes)
        cuts = sorted({edge for stay in stays for edge in (stay.block.start, stay.block.end)})
        index = {cut: number for number, cut in enumerate(cuts)}
        covers = [tuple(range(index[stay.block.start], index[stay.block.end])) for stay in stays]
        used = sorted({place for cover in covers for place in cover})
        number_of = {place: number for number, place in enumerate(used)}
        blocks = [Block(cuts[place], cuts[place + 1] - cuts[place]) for place in used]
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        found = (tuple(number_of[place] for place in cover) for cover in covers)
        self._ranges = [known.setdefault(ranges, ranges) for ranges in found]
        self._tenants = array("q", (stay.tensor for stay in stays))
        births = [stay.birth for stay in stays]  # ascending
        self._born = array("q", (bisect_left(births, kernel) for kernel in range(len(trace.kernels) + 1)))
        self._tensors = len(trace.tensors)
        self._now: list[tuple[int, ...]] = [()] * self._tensors
        self._owner = [0] * len(blocks)
        self._alive: set[int] = set()
        self._dying = released_after(trace)
        self._settle_in(reversed(range(len(stays))))
        self._alive = {stay.tensor for stay in stays if stay.birth < 0}
        self._sides = self._mapped_sides(trace)
        super().__init__(self._mapped(trace, blocks, page_bytes))
        self.chunks = _shared_chunks(blocks, chunks, chunk_pages)

    def _settle_in(self, stays: Iterable[int]) -> None:
        for number in stays:
            tensor = self._tenants[number]
            self._alive.add(tensor)
            self._now[tensor] = self._ranges[number]
            for place in self._ranges[number]:
                self._owner[place] = tensor

    def _mapped_sides(self, trace: Trace) -> list[Sides]:
        ranges = list(self._now)
        known: dict[Sides, Sides] = {}
        found: list[Sides] = []

        def at(tensors: tuple[int, ...]) -> tuple[int, ...]:
            return tuple([place for tensor in tensors for place in ranges[tensor]])

        inputs, outputs = (named(trace.kernels, attrgetter(side)) for side in ("inputs", "outputs"))
        for kernel, (read, written) in enumerate(zip(inputs, outputs, strict=True)):
            for number in self._stays_from(kernel):
                ranges[self._tenants[number]] = self._ranges[number]
            sides = at(read), at(written)
            found.append(known.setdefault(sides, sides))
        return found

    def _mapped(self, trace: Trace, blocks: Sequence[Block], page_bytes: int) -> Trace:
        tensors = tuple(
            Tensor(number, f"{block.start * page_bytes:#x}", block.pages * page_bytes, TensorKind.OTHER, True)
            for number, block in enumerate(blocks)
        )
        kernels = changed(trace.kernels, partial(_touching, self._sides))
        return replace(trace, tensors=tensors, kernels=kernels)

    def sides(self, kernel: Kernel) -> Sides:
        """Return the ranges that a kernel reads, and those that it writes."""
        return self._sides[kernel.id]

    def enter(self, kernel: int) -> tuple[int, ...]:
        """Give ranges to the tensors that are born when a kernel starts; returns those discarded before."""
        born = self._stays_from(kernel)
        self._settle_in(born)
        return self._reclaimed([place for number in born for place in self._ranges[number]])

    def _stays_from(self, kernel: int) -> range:
        """Return the stays that begin with a kernel, the last first."""
        return range(self._born[kernel + 1] - 1, self._born[kernel] - 1, -1)

    def reclaim(self, tensor: int) -> tuple[int, ...]:
        """Note that a tensor will need its ranges; returns those that were discarded."""
        return self._reclaimed(self.open_to(tensor)) if self.discarded else ()

    def _reclaimed(self, places: Sequence[int]) -> tuple[int, ...]:
        found = tuple([place for place in places if place in self.discarded])
        self.discarded.difference_update(found)
        return found

    def discard(self, tensor: int) -> tuple[int, ...]:
        """Note that a tensor's contents are discarded; returns the ranges at which they lie."""
        ranges = self.held(tensor)
        self.discarded.update(ranges)
        return ranges

    def leave(self, kernel: int) -> None:
        """Note which tensors are dead when a kernel has ended."""
        self._alive.difference_update(self._dying[kernel])

    def is_dead(self, place: int) -> bool:
        """Tell whether nobody will read what lies at a range."""
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


def _touching(sides: Sequence[Sides], kernel: Kernel) -> Kernel:
    """Return a kernel that touches ranges."""
    return kernel.with_tensors(*sides[kernel.id])


def _steady_stays(trace: Trace, page_bytes: int, spec: CachingPoolSpec) -> tuple[list[_Stay], list[Block]]:
    """Return every block of an iteration whose addresses repeat, and the allocator's chunks."""
    pool = CachingPool(_UNLIMITED_PAGES, page_bytes, spec)
    pages = trace.page_sizes(page_bytes)

    def block(tensor: int) -> Block:
        pool.allocate(tensor, pages[tensor], best_fit)
        return Block(pool.block(tensor).start, pages[tensor])

    lasting = each(trace.tensors, attrgetter("persistent"))
    kept = [_Stay(tensor, -1, block(tensor)) for tensor, lasts in enumerate(lasting) if lasts]
    dying = released_after(trace)
    stays: list[_Stay] = []
    for _ in range(_MOST_ITERATIONS):
        before, stays = stays, []
        for kernel, tensors in enumerate(named(trace.kernels, attrgetter("tensors"))):
            new = [tensor for tensor in tensors if tensor not in pool]
            stays += [_Stay(tensor, kernel, block(tensor)) for tensor in new]
            for tensor in dying[kernel]:
                pool.release(tensor)
        if stays == before:
            break
    return [*kept, *stays], pool.chunks


def _shared_chunks(blocks: Sequence[Block], pool_chunks: Sequence[Block], pages: int) -> list[list[int]]:
    """Return the ranges that lie together in one chunk of the driver's, of so many pages.

    The allocator's own chunks begin at multiples of the driver's.
    """
    starts = sorted(chunk.start for chunk in pool_chunks)
    members: dict[tuple[int, int], list[int]] = {}
    for number, block in enumerate(blocks):
        base = starts[bisect_right(starts, block.start) - 1]
        chunk = (block.start - base) // pages
        if chunk == (block.end - 1 - base) // pages:
            members.setdefault((base, chunk), []).append(number)
    return [together for together in members.values() if len(together) > 1]
