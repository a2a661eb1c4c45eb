"""Where tensors lie: at addresses of their own, or at those of a caching allocator, from docs/model.md."""

import math
from dataclasses import dataclass

MIB = 1 << 20


@dataclass
class Range:
    """Pages with consecutive addresses that always belong to the same tensors."""

    pages: int
    neighbours: tuple = ()


def last_uses(trace):
    """For each tensor in use its first kernel, and the last that reads it (its first, where none does)."""
    first, last = {}, {}
    for kernel in trace.kernels:
        for tensor in kernel.inputs:
            last[tensor] = kernel.id
        for tensor in touched(kernel):
            first.setdefault(tensor, kernel.id)
            last.setdefault(tensor, kernel.id)
    return first, last


def dying(trace):
    """For each kernel the tensors that are dead when it has ended."""
    _, last = last_uses(trace)
    return [
        [t for t in touched(kernel) if not trace.tensors[t].persistent and last[t] <= kernel.id]
        for kernel in trace.kernels
    ]


def touched(kernel):
    """Tensors of a kernel, inputs first, each once."""
    return list(dict.fromkeys(kernel.inputs + kernel.outputs))


class Own:
    """A range for every tensor."""

    stays_mapped = False

    def __init__(self, trace, page):
        self.trace = trace
        self.first, self.last = last_uses(trace)
        self.ranges = [Range(math.ceil(tensor.size_bytes / page)) for tensor in trace.tensors]
        self.kernel = 0
        self.discarded = set()

    def start(self, kernel):
        """A kernel starts; returns ranges that were discarded and are used again."""
        self.kernel = kernel
        return []

    def end(self, kernel):
        """A kernel ends."""

    def of(self, tensor):
        """Ranges that a tensor has now."""
        return [tensor]

    def open_to(self, tensor):
        """Ranges that a tensor has, or will get and that are dead."""
        return [tensor]

    def is_one(self, coming, number):
        """Two ranges are one, or of one tensor that is alive."""
        return coming == number

    def is_dead(self, tensor):
        """Nobody will read what a range holds."""
        if self.trace.tensors[tensor].persistent:
            return False
        return tensor not in self.first or not self.first[tensor] <= self.kernel <= self.last[tensor]


class Hole:
    """Free pages of one of the allocator's chunks."""

    def __init__(self, chunk, start, pages):
        self.chunk, self.start, self.pages = chunk, start, pages


class Allocator:
    """PyTorch's caching allocator with room for everything, in whole pages."""

    def __init__(self, page):
        self.page = page
        self.holes = {"small": [], "large": []}
        self.chunks = 0
        self.blocks = {}

    def pages(self, size):
        return math.ceil(size / self.page)

    def allocate(self, tensor, pages):
        """Give a tensor a block; returns (chunk, first page)."""
        kind = "small" if pages <= MIB // self.page else "large"
        holes = self.holes[kind]
        fitting = [hole for hole in holes if hole.pages >= pages]
        if not fitting:
            if kind == "small":
                size = self.pages(2 * MIB)
            elif pages < self.pages(10 * MIB):
                size = self.pages(20 * MIB)
            else:
                size = math.ceil(pages / self.pages(2 * MIB)) * self.pages(2 * MIB)
            fitting = [Hole(self.chunks, 0, size)]
            holes.append(fitting[0])
            self.chunks += 1
        hole = min(fitting, key=lambda one: (one.pages, one.chunk, one.start))
        rest = hole.pages - pages
        least_rest = 1 if kind == "small" else self.pages(MIB)
        taken = pages if rest >= least_rest else hole.pages
        self.blocks[tensor] = kind, hole.chunk, hole.start, taken
        hole.start, hole.pages = hole.start + taken, hole.pages - taken
        if not hole.pages:
            holes.remove(hole)
        return self.blocks[tensor][1:3]

    def free(self, tensor):
        """Take a block back and join it with the holes beside it."""
        kind, chunk, start, pages = self.blocks.pop(tensor)
        holes = self.holes[kind]
        for hole in [hole for hole in holes if hole.chunk == chunk]:
            if hole.start + hole.pages == start:
                start, pages = hole.start, pages + hole.pages
                holes.remove(hole)
            elif start + pages == hole.start:
                pages += hole.pages
                holes.remove(hole)
        holes.append(Hole(chunk, start, pages))


class Pooled:
    """Ranges of a caching allocator, which tensors use in turn."""

    stays_mapped = True

    def __init__(self, trace, page, group, by_chunks):
        kept, born = steady_blocks(trace, page)
        self.discarded = set()
        self.dying = dying(trace)
        blocks = [*kept, *(block for kernel in born for block in kernel)]
        edges = sorted(
            {edge for _, chunk, start, pages in blocks for edge in ((chunk, start), (chunk, start + pages))}
        )
        place = {edge: number for number, edge in enumerate(edges)}
        covers = {
            block: [*range(place[block[1], block[2]], place[block[1], block[2] + block[3]])]
            for block in blocks
        }
        used = sorted({number for cover in covers.values() for number in cover})
        name = {number: i for i, number in enumerate(used)}
        self.ranges = [Range(edges[number + 1][1] - edges[number][1]) for number in used]
        if by_chunks:
            self._find_neighbours([edges[number] for number in used], max(1, group // page))
        self.born = [[(block[0], [name[n] for n in covers[block]]) for block in kernel] for kernel in born]
        self.now, self.owner, self.alive = {}, {}, set()
        for kernel in reversed(self.born):
            for tensor, ranges in reversed(kernel):
                self._settle(tensor, ranges)
        for block in reversed(kept):
            self._settle(block[0], [name[n] for n in covers[block]])
        self.alive = {block[0] for block in kept}

    def _settle(self, tensor, ranges):
        self.now[tensor] = ranges
        self.alive.add(tensor)
        for number in ranges:
            self.owner[number] = tensor

    def _find_neighbours(self, edges, chunk_pages):
        chunks = {}
        for number, (chunk, start) in enumerate(edges):
            first, last = start // chunk_pages, (start + self.ranges[number].pages - 1) // chunk_pages
            if first == last:
                chunks.setdefault((chunk, first), []).append(number)
        for members in chunks.values():
            for number in members:
                self.ranges[number].neighbours = tuple(other for other in members if other != number)

    def start(self, kernel):
        """Tensors are born; returns ranges that were discarded and are used again."""
        again = []
        for tensor, ranges in self.born[kernel]:
            self._settle(tensor, ranges)
            again += [number for number in ranges if number in self.discarded]
        self.discarded.difference_update(again)
        return again

    def end(self, kernel):
        """Tensors die."""
        self.alive.difference_update(self.dying[kernel])

    def of(self, tensor):
        """Ranges that a tensor has now."""
        return [number for number in self.now.get(tensor, ()) if self.owner[number] == tensor]

    def open_to(self, tensor):
        """Ranges that a tensor has, or will get and that are dead."""
        return [
            number
            for number in self.now.get(tensor, ())
            if self.owner[number] == tensor or self.owner[number] not in self.alive
        ]

    def is_one(self, coming, number):
        """Two ranges are one, or of one tensor that is alive."""
        alike = self.owner.get(coming) == self.owner.get(number)
        return coming == number or (alike and not self.is_dead(number))

    def is_dead(self, number):
        """Nobody will read what a range holds."""
        return self.owner[number] not in self.alive


def steady_blocks(trace, page):
    """Blocks (tensor, chunk, first page, pages) of persistent tensors, and of those that each kernel bears.

    The allocator serves iteration after iteration until addresses repeat, eight at most.
    """
    allocator = Allocator(page)

    def block(tensor):
        pages = allocator.pages(trace.tensors[tensor].size_bytes)
        return (tensor, *allocator.allocate(tensor, pages), pages)

    kept = [block(tensor.id) for tensor in trace.tensors if tensor.persistent]
    ends, born, before = dying(trace), None, None
    for _ in range(8):
        before, born = born, []
        for kernel in trace.kernels:
            born.append([block(tensor) for tensor in touched(kernel) if tensor not in allocator.blocks])
            for tensor in ends[kernel.id]:
                allocator.free(tensor)
        if born == before:
            break
    return kept, born
