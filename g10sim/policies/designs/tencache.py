"""10Cache: a cache of weights on the GPU, filled in the order of their uses from pinned buffers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain, pairwise
from math import inf
from operator import attrgetter
from typing import ClassVar, Literal

from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.looks import Look
from g10sim.policies.interface import PlannedMachine, Requirements
from g10sim.policies.interface.parameters import WITH_PAGEABLE, Size, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.fitting import fitting
from g10sim.policies.planning.moves import MovesByKernel
from g10sim.policies.planning.offloading.gradients import Gradients, host_bytes
from g10sim.policies.planning.offloading.on_cpu import InBuckets, WeightsBelow, offloaded, read_weights
from g10sim.policies.planning.offloading.room import gpu_peak, require_gpu
from g10sim.policies.planning.offloading.windows import Window
from g10sim.trace.model import Trace
from g10sim.units import parse_bytes

PinnedBuffers = Literal["size_classes", "uniform", "none"]


@register_policy
class TenCache(InBuckets, WeightsBelow):
    """The GPU memory that nothing else needs is a cache of weights; the CPU runs the optimizer.

    A table has all uses of weights in an iteration. The cache holds the next ones: when a kernel has ended, a
    weight that is used again later than the next one in the table makes room for it. Weights and gradients
    have pinned buffers in host memory that are reused, each for one size. Optimizer states, then weights,
    lie in host memory as far as they fit, the others on the SSD.
    """

    name = "tencache"
    label = "10Cache"
    look = Look("#AA4499", "..\\\\", "_", "4 1 1 1")
    paper = (
        "Afroz et al., 10Cache: Heterogeneous Resource-Aware Tensor Caching and Migration for LLM Training, "
        "SoCC 2025"
    )

    prefetch: bool = parameter(default=True, published="true, paper")
    """Fill the cache ahead of uses; otherwise a weight comes with the kernel that needs it."""
    buffers: PinnedBuffers = parameter(
        default="size_classes", published="size_classes, paper", effect=WITH_PAGEABLE
    )
    """Buffers in pinned host memory. ``size_classes``: as large as the tensor; ``uniform``: all as large as
    the largest tensor; ``none``: all is pageable, as what finds no buffer within system.host.pinned.limit."""
    cache: Size | None = parameter(default=None, published="what is free, paper")
    """Memory of the GPU for weights; none: what is left when all else takes most."""
    reduce_bucket_size: int = parameter(default=50_000_000, ge=1, published="50000000, authors' scripts")
    """Gradients that fill a bucket."""
    optimizer_buffers: int = parameter(default=5, ge=1, published="5, authors' scripts")
    """Steps whose states are in host memory at a time, of those with states on the SSD."""

    _kept: ClassVar[Mapping[str, str]] = dict.fromkeys(("host", "ssd"), "what is offloaded")

    @property
    def requirements(self) -> Requirements:
        """Separate addresses, and buffers for states on the SSD."""
        return replace(super().requirements, pins_on_use=False, cpu_buffers=self.optimizer_buffers)

    def pageable(self, job: int) -> Collection[int]:
        """Return the weights and gradients that have no pinned buffer."""
        planned: MovesByKernel = self.jobs[job]
        return planned.pageable

    def _plan_job(self, trace: Trace, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        sizes, weights = machine.sizes(trace), read_weights(trace)
        gradients = Gradients(trace, self._bucket_bytes(trace), self.births, weights)
        ends = gradients.departures
        others, _ = gpu_peak(trace, sizes, ends, self.births, gradients.stays, below=weights)
        room = machine.gpu_bytes // machine.page_bytes * machine.page_bytes - others
        capacity = room if self.cache is None else min(room, parse_bytes(self.cache))
        found, share = cached(trace, weights, sizes, capacity, looks_ahead=self.prefetch)
        stays, kept = _released(trace, found)
        peak = gpu_peak(trace, sizes, ends, self.births, [*stays, *kept, *gradients.stays])
        require_gpu(self.name, system, peak, "weights of one kernel and activations")
        homes = _homes(trace, machine, weights, self.optimizer_buffers)
        in_host = [tensor for tensor, home in homes.items() if home == "host" and tensor in weights]
        below = [*in_host, *ends]
        pinned = self._pinned(below, sizes, system)
        note = (
            f"{capacity / 1e9:.3g} GB of cache, asked ahead for {share:.1%} of uses; "
            f"{sum(pinned.values()) / 1e9:.3g} GB pinned for {len(pinned)} of {len(below)} tensors"
        )
        pageable = frozenset(below) - pinned.keys()
        moves = offloaded(trace, gradients, homes, stays, kept=kept)
        return replace(moves, note=note, pageable=pageable)

    def _pinned(self, tensors: Sequence[int], sizes: Sequence[int], system: SystemSpec) -> dict[int, int]:
        """Return the bytes of pinned buffers, which the first tensors have."""
        limit = None if system.host.pinned is None else system.host.pinned.limit
        most = inf if limit is None else limit // len(self.workload.jobs)
        largest = max((sizes[tensor] for tensor in tensors), default=0)
        buffers = [largest] * len(sizes) if self.buffers == "uniform" else sizes
        return fitting(() if self.buffers == "none" else tensors, buffers, most)


def _released(trace: Trace, stays: Sequence[Window]) -> tuple[list[Window], list[Window]]:
    """Part stays that end from those that go on into the next iteration.

    Those are of weights that are there all the time and that the CPU does not update.
    """
    leaves = {stay.tensor for stay in stays if stay.fetched > 0 or stay.last < trace.uses[stay.tensor][-1]}
    leaves |= trace.used_on_cpu
    end = len(trace.kernels) - 1
    lasting = [replace(stay, last=end) for stay in stays if stay.tensor not in leaves]
    return [stay for stay in stays if stay.tensor in leaves], lasting


def _homes(trace: Trace, machine: PlannedMachine, weights: Collection[int], buffers: int) -> dict[int, str]:
    """Return the tiers of optimizer states, and then of weights in order of their first use.

    That is host memory as far as they fit, or the SSD.
    """
    sizes = machine.sizes(trace)
    states = sorted(tensor for tensor in trace.only_on_cpu if trace.lasting[tensor])
    below = [*states, *sorted(weights, key=lambda tensor: (trace.uses[tensor][0], tensor))]
    capacity, on_cpu = machine.memory.capacity_bytes, trace.used_on_cpu
    others = sum(sizes[tensor] for tensor in weights if tensor not in on_cpu)
    if machine.ssd.kind != "ssd" or host_bytes(trace, sizes) + others <= capacity:
        return dict.fromkeys(below, "host")
    room = capacity - host_bytes(trace, sizes, frozenset(below), buffers)
    return dict.fromkeys(below, "ssd") | dict.fromkeys(fitting(below, sizes, room), "host")


def cached(
    trace: Trace, weights: Collection[int], sizes: Sequence[int], capacity_bytes: int, *, looks_ahead: bool
) -> tuple[list[Window], float]:
    """Return the stays of weights in a cache, in the order of their beginnings, and the share of hits.

    Hits are the uses of weights that came with an earlier kernel, or before the first one. ``sizes`` are
    those of all tensors in bytes.

    A kernel's weights come with it at the latest, whether or not they fit. To make room, those leave that are
    used again last (Belady, IBM Systems Journal 1966). If it ``looks_ahead``, the cache is filled before the
    first kernel; after each, the next weights in the table of uses come in as long as what is used after them
    makes room.
    """
    uses = ((kernel.id, tensor) for kernel in trace.kernels for tensor in kernel.tensors)
    table = [(kernel, tensor) for kernel, tensor in uses if tensor in weights]
    cache = _Cache(trace, table, sizes, capacity_bytes)
    if looks_ahead:
        cache.fill(0)
        cache.misses = 0
    for kernel, rows in grouped((kernel, row) for row, (kernel, _) in enumerate(table)).items():
        cache.demand(kernel, rows)
        if looks_ahead:
            cache.fill(kernel + 1)
    stays = sorted((*cache.gone, *cache.there.values()), key=attrgetter("fetched", "first", "tensor"))
    hits = len(table) - cache.misses
    return stays, hits / len(table) if table else 1.0


class _Cache:
    """Contents of the cache while time passes, kernel by kernel.

    ``_table`` has (kernel, weight) for every use, in order; ``_following`` has for each row the next one of
    the same weight. Weights that are ``there`` leave after their last use if nothing makes them leave before;
    ``gone`` are the stays that have ended.
    """

    def __init__(
        self, trace: Trace, table: Sequence[tuple[int, int]], sizes: Sequence[int], capacity_bytes: int
    ) -> None:
        self._table, self._sizes, self._uses = table, sizes, trace.uses
        rows = grouped((tensor, row) for row, (_, tensor) in enumerate(table))
        self._next = {tensor: own[0] for tensor, own in rows.items()}
        self._following = dict(chain.from_iterable(pairwise([*own, len(table)]) for own in rows.values()))
        self.there: dict[int, Window] = {}
        self.gone: list[Window] = []
        self._order: list[tuple[int, int]] = []
        self._free = capacity_bytes
        self._ahead = self._kernels_end = self.misses = 0

    def demand(self, kernel: int, rows: Sequence[int]) -> None:
        """Bring in what a kernel needs, in rows of the table, and note that its weights have been used."""
        self._kernels_end = rows[-1] + 1
        for row in rows:
            self._bring(self._table[row][1], kernel, self._kernels_end)
        for row in rows:
            tensor = self._table[row][1]
            self._next[tensor] = self._following[row]
            heappush(self._order, (-self._next[tensor], tensor))

    def fill(self, kernel: int) -> None:
        """Bring in what is used next when a kernel starts, as long as only what is used later makes room."""
        self._ahead = max(self._ahead, self._kernels_end)
        while self._ahead < len(self._table):
            if not self._bring(self._table[self._ahead][1], kernel, self._ahead + 1):
                return
            self._ahead += 1

    def _bring(self, tensor: int, kernel: int, row: int) -> bool:
        """Bring in a weight when a kernel starts; return whether it is there.

        What is not used before a row leaves, what is used last first, with the end of the kernel before.
        Nothing leaves where that is not enough, unless a kernel needs the weight.
        """
        if tensor in self.there:
            return True
        leaving, size, free = list[tuple[int, int]](), self._sizes[tensor], self._free
        while self._order and free < size and -self._order[0][0] >= row:
            use, other = heappop(self._order)
            if other in self.there and -use == self._next[other]:
                leaving.append((use, other))
                free += self._sizes[other]
        if free < size and row > self._kernels_end:
            for entry in leaving:
                heappush(self._order, entry)
            return False
        self.gone += [replace(self.there.pop(other), last=kernel - 1) for _, other in leaving]
        first = self._table[self._next[tensor]][0]
        self.misses += kernel == first
        self.there[tensor] = Window(tensor, kernel, first, self._uses[tensor][-1])
        heappush(self._order, (-self._next[tensor], tensor))
        self._free = free - size
        return True
