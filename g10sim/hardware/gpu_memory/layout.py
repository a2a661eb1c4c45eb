"""Blocks of one job's tensors in GPU memory: where they go, and how much they take over time."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from operator import truediv

from g10sim.hardware.gpu_memory.allocators.space import Allocator
from g10sim.hardware.gpu_memory.placement import FitRule, PlannedAddresses
from g10sim.hardware.host_memory.host_buffers import Expanded, HostBuffers, index_owner
from g10sim.records import Location

_BUFFER = -1

CopyRate = Callable[[int, Location, bool], int]
"""Fastest rate in bytes/second of a copy of that many pages from or to a place; True for one that leaves."""


@dataclass(kw_only=True, eq=False)
class Blocks:
    """Blocks of one job's tensors and of scratch space, and the pages in use, each cycle for itself.

    ``sizes`` are the tensors' pages. ``rules`` say for each tensor where its block goes; a tensor without a
    rule needs none. ``scratch_pages`` are set aside for all. What is fetched while it leaves is called back
    (``recalls``) or read once more, unless it is one of the ``weights``. Where space
    ``returns_between_kernels`` only, what has left while a kernel ran keeps its block until the kernel has
    ended. ``buffers`` are those in the memory of the ``staged`` tier. Tensors that are ``expanded`` take more
    pages here than move, and leave an index behind.
    """

    sizes: Sequence[int]
    allocator: Allocator
    rules: Sequence[FitRule | None]
    copy_rate: CopyRate
    recalls: bool
    buffers: HostBuffers
    staged: Location | None
    weights: Container[int] = frozenset()
    returns_between_kernels: bool = False
    expanded: Mapping[int, Expanded] = field(default_factory=dict)
    scratch_pages: int = 0

    def __post_init__(self) -> None:
        """Begin to count."""
        self._page_cycles = self._counted_at = self._counted_from = 0

    def needs_space(self, tensor: int) -> bool:
        """Return whether a tensor has its own block when it is on the GPU."""
        return self.rules[tensor] is not None

    def is_missing(self, tensor: int) -> bool:
        """Return whether a tensor needs a block and has none."""
        return self.needs_space(tensor) and tensor not in self.allocator

    def pages(self, tensor: int) -> int:
        """Pages of GPU memory that a tensor needs."""
        expanded = self.expanded.get(tensor)
        return self.sizes[tensor] if expanded is None else expanded.block_pages

    def allocate(self, tensor: int) -> bool:
        """Give a tensor its block; False where there is no room, or it needs none."""
        return self._allocate(tensor, self.pages(tensor), self.rules[tensor])

    def reserve_scratch(self, rule: FitRule) -> bool:
        """Set a block aside for scratch space, if there is to be any; False where there is no room."""
        return not self.scratch_pages or self._allocate(_BUFFER, self.scratch_pages, rule)

    def keep_index(self, tensor: int) -> None:
        """Give what it takes to expand a tensor that has left a block: there is room, as it has just left."""
        expanded = self.expanded.get(tensor)
        if expanded is not None and expanded.index_pages:
            self._allocate(index_owner(tensor), expanded.index_pages, self.rules[tensor])

    def _allocate(self, owner: int, pages: int, rule: FitRule | None) -> bool:
        self._count()
        return rule is not None and self.allocator.allocate(owner, pages, rule)

    def release(self, tensor: int = _BUFFER) -> None:
        """Take back a tensor's block, if it has one, or that of scratch space."""
        self._count()
        self.allocator.release(tensor)

    def _count(self) -> None:
        """Add up the pages in use so far: called before their number changes."""
        now = self.buffers.now
        self._page_cycles += self.allocator.used_pages * (now - self._counted_at)
        self._counted_at = now

    @property
    def pages_of_others(self) -> int:
        """GPU pages that other jobs have."""
        frames = self.allocator.frames
        return 0 if frames is None else frames.used - self.allocator.used_pages

    def restart(self) -> None:
        """Begin to count again, and with the first of every tensor's planned addresses."""
        self._counted_at = self._counted_from = self.buffers.now
        self._page_cycles = 0
        self.allocator.restart()
        self.buffers.watch()
        for rule in self.rules:
            if isinstance(rule, PlannedAddresses):
                rule.restart()

    def mean_pages(self) -> float | None:
        """Return the pages in use on average since the count was restarted; None: no time has passed."""
        self._count()
        cycles = self._counted_at - self._counted_from
        # Compiled code would round integers beyond 2 ** 53 before it divides them.
        return truediv(self._page_cycles, cycles) if cycles else None
