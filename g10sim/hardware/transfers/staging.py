"""Needs of copies of whole tensors besides links: buffers in host memory, and the latency of the SSD."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec, published_drive
from g10sim.errors import InvariantError
from g10sim.hardware.faults import demand_rate
from g10sim.hardware.host_memory.host_buffers import HostBuffers, HostMemory, StagedRun, Work, slower
from g10sim.hardware.links import Link, Message, Topology, bandwidth_of
from g10sim.hardware.runs import Run
from g10sim.records import Location


class Staging:
    """The part of explicit copies (without unified memory) that is not the links'.

    A copy needs no handling of page faults, and its space is new memory of an allocator's pool, which
    needs no mapping. It waits for the SSD once. Copies to and from host memory wait until their buffers there
    are pinned or expanded; one that waits holds up those behind it.
    """

    def __init__(self, system: SystemSpec, behaviour: BehaviourSpec) -> None:
        if behaviour.copy_gigabyte == "binary":
            system = _binary_rates(system)
        self.topology = Topology(system)
        if behaviour.copy_host_path == "split":
            _split(self.topology, system)
        waits = behaviour.copy_latency == "ssd"
        self._latencies = {
            tier.place: (tier.latency, tier.write_latency) if waits else (0, 0) for tier in system.all_tiers
        }
        self.place = next((tier.place for tier in system.all_tiers if tier.name == "host"), None)
        """The tier whose memory the buffers are in."""
        self._page_bytes = system.gpu.page_size
        self._host_memory = HostMemory(system.host, system.gpu.clock)
        self._buffers: dict[int, HostBuffers] = {}

    def diverted_rate(self, rate: int, place: Location) -> int:
        """Limit of a copy (bytes/second, 0: none) that finds its tier full and goes somewhere else.

        Host memory is not pinned for it.
        """
        return slower(rate, self._host_memory.spec.pageable_bandwidth or 0) if place == self.place else rate

    def host_buffers(self, job: int, gpu: int, *, keeps: bool) -> HostBuffers:
        """Return the buffers in host memory of a job on a GPU; ``keeps``: for the whole run."""
        self._buffers[job] = HostBuffers(self._host_memory, self._page_bytes, keeps=keeps, job=job, gpu=gpu)
        return self._buffers[job]

    def share_memory(self, carry: Callable[[Work], Message]) -> None:
        """Let the host's workers share the bandwidth of host memory with copies."""
        self._host_memory.workers.carry = carry

    def close(self, job: int) -> None:
        """Give up the buffers of a job that has ended."""
        if job in self._buffers:
            self._buffers.pop(job).close()

    def advance(self, now: int) -> None:
        """Let the host work up to the cycle ``now``."""
        self._host_memory.advance(now)

    def is_ready(self, run: Run) -> bool:
        """Return whether a copy may move."""
        return not isinstance(run, StagedRun) or run.is_ready(self._host_memory.now)

    def changes(self, heads: Iterable[Run], now: int) -> list[int | None]:
        """Cycles until copies at the head of their queues may begin, and until the host's workers go on."""
        found = [self._cycles_until(run, now) for run in heads if not self.is_ready(run)]
        workers = self._host_memory.workers
        if workers.carry is not None and workers.next_event is not None:
            found.append(max(1, workers.next_event - now))
        return found

    def _cycles_until(self, run: Run, now: int) -> int | None:
        """Cycles until a waiting copy may begin, or until the host's workers are a step further.

        None where that depends on what moves.
        """
        if isinstance(run, StagedRun) and run.ready_at is not None:
            return run.ready_at - now
        workers = self._host_memory.workers
        if not workers.is_busy:
            raise InvariantError(f"a copy of tensor {run.tensor} waits for the host, which does nothing")
        return None if workers.next_event is None else workers.next_event - now

    def copy_rate(self, gpu: int, pages: int, place: Location, *, leaves: bool) -> int:
        """Fastest rate of a copy in bytes/second: its own path's, after the tier's latency has passed."""
        links = self.topology.outward(gpu, place) if leaves else self.topology.inward(gpu, place)
        latency = self._latencies[place][leaves] + self.topology.per_copy(gpu, place)
        return demand_rate(pages * self._page_bytes, bandwidth_of(links), latency, 1)


def _binary_rates(system: SystemSpec) -> SystemSpec:
    """Return the system with every GB/s of links and SSD taken for 2^30 bytes/s."""
    ssd, pcie = published_drive(system), system.pcie
    rates = {name: getattr(ssd, name) * 2**30 // 10**9 for name in ("read_bandwidth", "write_bandwidth")}
    shared = tuple(link.times(2**30, 10**9) for link in pcie.shared)
    links = pcie.times(2**30, 10**9).model_copy(update={"shared": shared})
    return system.model_copy(update={"ssd": ssd.model_copy(update=rates), "pcie": links})


def _split(topology: Topology, system: SystemSpec) -> None:
    """Give host copies what the SSD's rate leaves of the link, always, and never more."""
    pcie, ssd = system.pcie, published_drive(system)

    def rest(gpu: int, inward: bool) -> Link:
        link, drive = (pcie.inward, ssd.read_bandwidth) if inward else (pcie.outward, ssd.write_bandwidth)
        return Link(f"GPU {gpu} {'from' if inward else 'to'} host", max(1, link - drive))

    for tier in system.all_tiers:
        if tier.kind == "memory":
            topology.restrict(tier.place, rest)
