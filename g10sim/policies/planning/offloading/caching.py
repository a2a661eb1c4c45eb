"""A cache of weights on the GPU: what comes in the order of use, and what makes room for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from g10sim.policies.planning.offloading.windows import Window
from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Cached:
    """Stays of weights in a cache, in the order of their beginnings.

    Of all ``uses``, ``hits`` are those of weights that came with an earlier kernel, or before the first one.
    """

    stays: tuple[Window, ...]
    uses: int
    hits: int


def cached(
    trace: Trace,
    weights: Collection[int],
    sizes: Sequence[int],
    capacity_bytes: int,
    *,
    looks_ahead: bool,
) -> Cached:
    """Return the stays of weights in a cache; ``sizes`` are those of all tensors in bytes.

    A kernel's weights come with it at the latest, whether or not they fit. To make room, those leave that are
    used again last (Belady, IBM Systems Journal 1966). If it ``looks_ahead``, the cache is filled before the
    first kernel; after each, the next weights in the table of uses come in as long as what is used after them
    makes room.
    """
    cache = _Cache(trace, weights, sizes, capacity_bytes)
    if looks_ahead:
        cache.fill(0)
        cache.misses = 0
    for kernel, first in cache.rows_by_kernel():
        cache.demand(kernel, first)
        if looks_ahead:
            cache.fill(kernel + 1)
    stays = sorted(cache.stays(), key=lambda stay: (stay.fetched, stay.first, stay.tensor))
    return Cached(tuple(stays), cache.uses, cache.uses - cache.misses)


class _Cache:
    """Contents of the cache while time passes, kernel by kernel.

    ``_table`` has (kernel, weight) for every use, in order; ``_following`` has for each row the next one of
    the same weight. ``_there`` has for each weight in the cache the kernel with which it came and that of its
    first use since then.
    """

    def __init__(
        self, trace: Trace, weights: Collection[int], sizes: Sequence[int], capacity_bytes: int
    ) -> None:
        self._sizes = sizes
        self._table = [(k.id, t) for k in trace.kernels for t in k.tensors if t in weights]
        self._never = len(self._table)
        self._following = [self._never] * len(self._table)
        self._next: dict[int, int] = {}
        for row in reversed(range(len(self._table))):
            tensor = self._table[row][1]
            self._following[row] = self._next.get(tensor, self._never)
            self._next[tensor] = row
        self._there: dict[int, tuple[int, int]] = {}
        self._order: list[tuple[int, int]] = []
        self._free = capacity_bytes
        self._ahead = self._kernels_end = 0
        self._stays: list[Window] = []
        self._uses, self.misses = trace.uses, 0

    @property
    def uses(self) -> int:
        """Rows of the table."""
        return len(self._table)

    def rows_by_kernel(self) -> Iterator[tuple[int, int]]:
        """Yield every kernel that uses weights with its first row; its uses count when it is asked again."""
        row = 0
        while row < len(self._table):
            kernel, first = self._table[row][0], row
            while row < len(self._table) and self._table[row][0] == kernel:
                row += 1
            self._kernels_end = row
            yield kernel, first

    def demand(self, kernel: int, first: int) -> None:
        """Bring in what a kernel needs and is not there, and note that its weights have been used."""
        rows = range(first, self._kernels_end)
        for row in rows:
            tensor = self._table[row][1]
            if tensor not in self._there:
                self._make_room(self._sizes[tensor], self._kernels_end, kernel - 1)
                self._enter(tensor, kernel)
        for row in rows:
            tensor = self._table[row][1]
            self._next[tensor] = self._following[row]
            heappush(self._order, (-self._next[tensor], tensor))

    def fill(self, kernel: int) -> None:
        """Bring in what is used next when a kernel starts, as long as only what is used later makes room."""
        self._ahead = max(self._ahead, self._kernels_end)
        while self._ahead < len(self._table):
            tensor = self._table[self._ahead][1]
            if tensor not in self._there:
                if not self._make_room(self._sizes[tensor], self._ahead + 1, kernel - 1):
                    return
                self._enter(tensor, kernel)
            self._ahead += 1

    def _enter(self, tensor: int, kernel: int) -> None:
        first = self._table[self._next[tensor]][0]
        self.misses += kernel == first
        self._there[tensor] = (kernel, first)
        heappush(self._order, (-self._next[tensor], tensor))
        self._free -= self._sizes[tensor]

    def _make_room(self, size_bytes: int, row: int, kernel: int) -> bool:
        """Let what is not used before a row leave with a kernel's end, what is used last first.

        Returns whether there is room then. Nothing leaves where that is not enough, unless a kernel needs it.
        """
        leaving, free = list[tuple[int, int]](), self._free
        while self._order and free < size_bytes and -self._order[0][0] >= row:
            use, tensor = heappop(self._order)
            if tensor in self._there and -use == self._next[tensor]:
                leaving.append((use, tensor))
                free += self._sizes[tensor]
        is_demanded = row == self._kernels_end
        if free < size_bytes and not is_demanded:
            for entry in leaving:
                heappush(self._order, entry)
            return False
        for _, tensor in leaving:
            self._leave(tensor, kernel)
        return True

    def _leave(self, tensor: int, kernel: int) -> None:
        fetched, first = self._there.pop(tensor)
        self._stays.append(Window(tensor, fetched, first, kernel))
        self._free += self._sizes[tensor]

    def stays(self) -> list[Window]:
        """Return all stays; what is still there leaves after its last use."""
        for tensor in list(self._there):
            self._leave(tensor, self._uses[tensor][-1])
        return self._stays
