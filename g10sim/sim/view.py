"""The read-only window through which policies look at the simulation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence

from g10sim.hardware.gpu_memory.contiguous import Contiguous
from g10sim.sim.context import JobContext
from g10sim.trace.model import Trace


def kernels_to_next_use(trace: Trace, tensor: int, kernel: int) -> int:
    """Kernels until a tensor is used again after a kernel: see ``PolicyView.next_use``."""
    uses, kernels = trace.uses[tensor], len(trace.kernels)
    place = bisect_right(uses, kernel)
    if place < len(uses):
        return uses[place] - kernel
    if uses and trace.lasting[tensor]:
        return uses[0] + kernels - kernel
    return 2 * kernels


class View:
    """Implements ``g10sim.policies.interface.policy.PolicyView`` for one job.

    ``measured`` and ``own`` are the cycles of its kernels so far. Of tensors that take turns at ranges of
    addresses, one that is not alive has what lies in the ranges that it will get, as far as that is dead.
    """

    def __init__(
        self, context: JobContext, dropped: Container[int], measured: Sequence[int], own: Sequence[int]
    ) -> None:
        self._sending, self._addresses = context.sending, context.addresses
        self._job, self._gpu, self._trace = context.number, context.gpu, context.job.trace
        self._memory, self._clock = context.memory, context.fabric.clock
        self._page_bytes, is_shared = self._memory.page_bytes, self._addresses.are_shared
        self._pages = self._trace.page_sizes(self._page_bytes) if is_shared else self._memory.sizes
        self._measured, self._own, self._dropped = measured, own, dropped
        self._places = {pool.tier.name: place for place, pool in self._memory.pools.items()}
        self._idle, self._moving = self._memory.idle, self._memory.moving
        self._away = {name: self._memory.pages[place] for name, place in self._places.items()}
        self._iteration = self._kernel = 0

    def enter(self, iteration: int, kernel: int) -> None:
        """Say which kernel is about to start (for the executor)."""
        self._iteration, self._kernel = iteration, kernel

    @property
    def job(self) -> int:
        """Position of the running job in the workload."""
        return self._job

    @property
    def gpu(self) -> int:
        """GPU that the job runs on."""
        return self._gpu

    @property
    def trace(self) -> Trace:
        """The job's trace."""
        return self._trace

    @property
    def now_cycles(self) -> int:
        """Current simulated time in cycles."""
        return self._clock.cycle

    @property
    def iteration(self) -> int:
        """Iteration in progress, counted from 0."""
        return self._iteration

    @property
    def kernel(self) -> int:
        """Kernel that is about to start (or running)."""
        return self._kernel

    @property
    def free_bytes(self) -> int:
        """Empty GPU memory, and what was discarded."""
        return (self._memory.frames.free + self._memory.discarded_pages) * self._page_bytes

    @property
    def largest_hole_bytes(self) -> int:
        """Largest tensor that could be allocated."""
        return self._memory.largest_hole_pages * self._page_bytes

    @property
    def host_free_bytes(self) -> int:
        """Empty host memory."""
        return self.free_bytes_of("host")

    @property
    def tiers(self) -> tuple[str, ...]:
        """Names of the memory tiers, fastest first."""
        return tuple(self._places)

    @property
    def in_place_tiers(self) -> tuple[str, ...]:
        """Names of the memory tiers that kernels can use where tensors lie, fastest first."""
        pools = self._memory.pools
        return tuple(name for name, place in self._places.items() if pools[place].tier.kernel_access)

    def free_bytes_of(self, tier: str) -> int:
        """Empty memory of a tier; 0 for one that the system does not have."""
        place = self._places.get(tier)
        return 0 if place is None else self._memory.pools[place].free * self._page_bytes

    def bytes_in(self, tensor: int, tier: str) -> int:
        """Bytes of a tensor in a tier and not in transfer; 0 for one that the system does not have."""
        counts = self._away.get(tier)
        return 0 if counts is None else self._addresses.pages(tensor, counts) * self._page_bytes

    def away_bytes(self, tensor: int) -> int:
        """Bytes of a tensor in all memory tiers together and not in transfer."""
        places = self._addresses.open_to(tensor)
        return sum([counts[place] for counts in self._away.values() for place in places]) * self._page_bytes

    @property
    def measured_cycles(self) -> tuple[int, ...]:
        """Cycles that each kernel computed when it last ran."""
        return tuple(self._measured)

    @property
    def own_cycles(self) -> tuple[int, ...]:
        """Cycles of computing that each kernel asked for when it last ran."""
        return tuple(self._own)

    def size_bytes(self, tensor: int) -> int:
        """Size of a tensor in whole pages."""
        return self._pages[tensor] * self._page_bytes

    def resident_bytes(self, tensor: int) -> int:
        """Bytes of a tensor on the GPU and not in transfer."""
        return self._addresses.pages(tensor, self._idle) * self._page_bytes

    def host_bytes(self, tensor: int) -> int:
        """Bytes of a tensor in host memory and not in transfer."""
        return self.bytes_in(tensor, "host")

    def flash_bytes(self, tensor: int) -> int:
        """Bytes of a tensor on flash and not in transfer."""
        return self.bytes_in(tensor, "ssd")

    def in_transfer_bytes(self, tensor: int) -> int:
        """Bytes of a tensor that wait in a queue or are on a link."""
        return self._addresses.pages(tensor, self._moving) * self._page_bytes

    def is_whole(self, tensor: int) -> bool:
        """Return whether all of a tensor is on the GPU and not in transfer."""
        return self._addresses.pages(tensor, self._idle) == self._pages[tensor]

    @property
    def whole_tensors(self) -> frozenset[int]:
        """Tensors of which all is on the GPU and not in transfer."""
        if isinstance(self._memory, Contiguous):
            return frozenset(self._memory.whole).difference(self._sending.tensors)
        return frozenset(filter(self.is_whole, range(len(self._trace.tensors))))

    def is_needed(self, tensor: int) -> bool:
        """Return whether the current kernel needs the tensor."""
        return not self._memory.needed.isdisjoint(self._addresses.held(tensor))

    def is_dropped(self, tensor: int) -> bool:
        """Return whether the tensor was dropped and will be computed again."""
        return tensor in self._dropped

    def is_dead(self, tensor: int) -> bool:
        """Return whether the tensor's contents will not be read any more in this iteration."""
        return self._kernel >= self._trace.deaths[tensor]

    def next_use(self, tensor: int) -> int:
        """Kernels until the tensor is used again after the current one, at least 1."""
        return kernels_to_next_use(self._trace, tensor, self._kernel)
