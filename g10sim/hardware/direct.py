"""Explicit copies of whole tensors between GPU, host memory and SSD, without unified memory."""

from __future__ import annotations

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import InvariantError
from g10sim.hardware.faults import demand_rate
from g10sim.hardware.fluid import FluidTransfers, _Flow, _Site
from g10sim.hardware.host_buffers import HostBuffers, HostMemory, StagedRun
from g10sim.hardware.links import Link, Topology
from g10sim.hardware.memory import Pool
from g10sim.hardware.recency import Run
from g10sim.hardware.transfers import Observer
from g10sim.records import Location


class DirectTransfers(FluidTransfers):
    """Copies flow like pages, one at a time per direction and other end; each waits for the SSD once.

    A copy needs no handling of page faults, and its space is new memory of an allocator's pool, which
    needs no mapping. Copies to and from host memory wait for their buffers there to be pinned or expanded;
    one that waits holds up those behind it.
    """

    def __init__(
        self,
        system: SystemSpec,
        behaviour: BehaviourSpec,
        host: Pool,
        flash: Pool,
        observer: Observer | None = None,
    ) -> None:
        if behaviour.copy_gigabyte == "binary":
            system = _binary_rates(system)
        topology = Topology(system) if behaviour.copy_host_path == "shared" else _SplitTopology(system)
        super().__init__(system, host, flash, observer, topology)
        self._copy_latency = self._flash_latency if behaviour.copy_latency == "ssd" else 0
        self._host_memory = HostMemory(system.host, system.gpu.clock)
        self._buffers: dict[int, HostBuffers] = {}

    def host_buffers(self, job: int, *, keeps: bool) -> HostBuffers:
        """Return the buffers in host memory of a job; ``keeps``: for the whole run."""
        self._buffers[job] = HostBuffers(self._host_memory, self._page_bytes, keeps=keeps, job=job)
        return self._buffers[job]

    def space_freed(self) -> bool:
        """Let jobs use the space that one of them has given back; returns whether any waits for it."""
        waits = self._waits_for_space()
        if waits:
            self._settle()
            self.changed()
        return waits

    def _settle(self) -> None:
        super()._settle()
        if any(len(sites) > 1 for sites in self._on_gpu.values()) and self._waits_for_space():
            super()._settle()  # what one job gave back is there for those before it, too

    def _waits_for_space(self) -> bool:
        return any(site.memory.waits_for_space for site in self._sites.values())

    def detach(self, job: int) -> None:
        """Stop serving a job that has ended, and give up its buffers."""
        super().detach(job)
        if job in self._buffers:
            self._buffers.pop(job).close()

    def advance(self, now: int) -> None:
        """Move everything that moves up to the cycle ``now``."""
        super().advance(now)
        self._host_memory.advance(now)

    def _move(self, flows: list[_Flow], cycles: int) -> None:
        super()._move(flows, cycles)
        self._host_memory.advance(self._now)

    def _site_flows(self, site: _Site) -> list[_Flow]:
        """Return the copies of one job that move now; all of them are needed sooner or later."""
        return [flow for flow in super()._site_flows(site) if self._is_ready(flow.run)]

    def _is_ready(self, run: Run) -> bool:
        return not isinstance(run, StagedRun) or run.is_ready(self._now)

    def _cycles_to_change(self, flows: list[_Flow]) -> int | None:
        """Cycles until a copy ends, or one that waits for the host may begin."""
        soonest = super()._cycles_to_change(flows)
        for site in self._sites.values():
            queues = site.memory.queues
            for queue in (queues.evict_host, queues.prefetch_host):
                if queue and not self._is_ready(queue[0]):
                    cycles = self._ready_at(queue[0]) - self._now
                    soonest = cycles if soonest is None else min(soonest, cycles)
        return soonest

    def _ready_at(self, run: Run) -> int:
        """Cycle at which a waiting copy may begin, or at which the host's workers are a step further."""
        if isinstance(run, StagedRun) and run.ready_at is not None:
            return run.ready_at
        step = self._host_memory.workers.next_event
        if step is None:
            raise InvariantError(f"a copy of tensor {run.tensor} waits for the host, which does nothing")
        return step

    def copy_rate(self, gpu: int, pages: int, place: Location, *, leaves: bool) -> int:
        """Fastest rate of a copy in bytes/second: its own path's, after the SSD's latency has passed."""
        links = self._topology.outward(gpu, place) if leaves else self._topology.inward(gpu, place)
        bandwidth = min(link.capacity for link in links)
        latency = self._copy_latency if place is Location.FLASH else 0
        size_bytes = pages * self._page_bytes
        return demand_rate(size_bytes, bandwidth, latency, size_bytes)


def _binary_rates(system: SystemSpec) -> SystemSpec:
    """Return the system with every GB/s of links and SSD taken for 2^30 bytes/s."""

    def binary(rate: int) -> int:
        return rate * 2**30 // 10**9

    ssd, pcie = system.ssd, system.pcie
    rates = {
        "read_bandwidth": binary(ssd.read_bandwidth),
        "write_bandwidth": binary(ssd.write_bandwidth),
    }
    shared = [link.model_copy(update={"bandwidth": binary(link.bandwidth)}) for link in pcie.shared]
    links = {"bandwidth": binary(pcie.bandwidth), "shared": tuple(shared)}
    return system.model_copy(
        update={"ssd": ssd.model_copy(update=rates), "pcie": pcie.model_copy(update=links)}
    )


class _SplitTopology(Topology):
    """Host copies always have what the SSD's rate leaves of the link, and never more."""

    def __init__(self, system: SystemSpec) -> None:
        super().__init__(system)
        gpus, link = range(system.gpu.count), system.pcie.bandwidth
        reads, writes = link - system.ssd.read_bandwidth, link - system.ssd.write_bandwidth
        self._from_host = [Link(f"GPU {gpu} from host", max(1, reads)) for gpu in gpus]
        self._to_host = [Link(f"GPU {gpu} to host", max(1, writes)) for gpu in gpus]
        self.links = (*self.links, *self._from_host, *self._to_host)

    def inward(self, gpu: int, source: Location) -> list[Link]:
        """Links that pages cross on their way in."""
        path = super().inward(gpu, source)
        return [*path, self._from_host[gpu]] if source is Location.HOST else path

    def outward(self, gpu: int, target: Location) -> list[Link]:
        """Links that pages cross on their way out."""
        path = super().outward(gpu, target)
        return [*path, self._to_host[gpu]] if target is Location.HOST else path
