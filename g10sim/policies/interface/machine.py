"""The machine as a planner sees it: sizes, and rates in bytes per GPU cycle."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.links import LinkSpec
from g10sim.config.system import SystemSpec
from g10sim.config.tiers import Tier
from g10sim.places import tier_name
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload
from g10sim.units import duration_to_cycles

_BINARY = 2**30 / 10**9


@dataclass(frozen=True, slots=True)
class PlannedTier:
    """A memory below the GPU's, as one GPU can count on it; rates are those on the way between the two.

    ``read_rate`` is that towards the GPU. Rates are bytes/cycle; a copy to the GPU waits for
    ``latency_cycles``, one off it for ``write_latency_cycles``. A tier of kind ``ssd`` counts as never full.
    One that ``keeps_copies`` takes what is frozen back without a copy.
    """

    name: str
    kind: str
    capacity_bytes: int
    read_rate: float
    write_rate: float
    latency_cycles: int = 0
    write_latency_cycles: int = 0
    keeps_copies: bool = True

    @property
    def rate(self) -> float:
        """Rate of the slower direction."""
        return min(self.read_rate, self.write_rate)

    def out_cycles(self, size_bytes: int) -> int:
        """Return the cycles that a copy off the GPU takes on idle links."""
        return self.write_latency_cycles + ceil(size_bytes / self.write_rate)

    def in_cycles(self, size_bytes: int) -> int:
        """Return the cycles that a copy to the GPU takes on idle links."""
        return self.latency_cycles + ceil(size_bytes / self.read_rate)

    def both_cycles(self, size_bytes: int) -> int:
        """Return the cycles of the copies off the GPU and back on idle links."""
        return self.out_cycles(size_bytes) + self.in_cycles(size_bytes)


@dataclass(frozen=True, slots=True)
class PlannedMachine:
    """The share of the machine that one GPU can count on. Rates are bytes/cycle, latencies cycles.

    ``in_rate`` and ``out_rate`` are those of the GPU's way from and to the host with both directions busy,
    ``lone_in_rate`` and ``lone_out_rate`` with the other one idle. ``fault_cycles`` is the latency of a page
    fault. ``tiers`` are the memories below the GPU's, fastest first.
    """

    gpu_bytes: int
    page_bytes: int
    clock_hz: int
    in_rate: float
    out_rate: float
    lone_in_rate: float
    lone_out_rate: float
    allocation_rate: float
    fault_cycles: int
    tiers: tuple[PlannedTier, ...]

    @property
    def link_rate(self) -> float:
        """Rate of the slower direction between GPU and host."""
        return min(self.in_rate, self.out_rate)

    @property
    def memory(self) -> PlannedTier:
        """The first tier of kind memory; without one, the first tier."""
        return next((tier for tier in self.tiers if tier.kind == "memory"), self.tiers[0])

    @property
    def ssd(self) -> PlannedTier:
        """The first SSD of the tiers; without one, the last tier."""
        return next((tier for tier in self.tiers if tier.kind == "ssd"), self.tiers[-1])

    def tier(self, word: str) -> PlannedTier:
        """Return the tier of a name; without it, the SSD for ``ssd`` or ``flash``, or else the memory."""
        name = tier_name(word)
        stand_in = self.ssd if name == "ssd" else self.memory
        return next((tier for tier in self.tiers if tier.name == name), stand_in)

    def sizes(self, trace: Trace) -> tuple[int, ...]:
        """Return the size of every tensor in whole pages."""
        return page_sizes(trace, self.page_bytes)

    def migration_cycles(self, size_bytes: int, tier: PlannedTier) -> float:
        """Return the cycles of one migration to or from a tier on idle links.

        Published simulator: fault handling, the tier's latency, and size / rate.
        """
        return self.fault_cycles + tier.latency_cycles + size_bytes / tier.rate


def page_sizes(trace: Trace, page_bytes: int) -> tuple[int, ...]:
    """Return the size of every tensor of a trace, rounded up to whole pages."""
    return tuple([pages * page_bytes for pages in trace.page_sizes(page_bytes)])


def link_bandwidth(
    system: SystemSpec,
    gpu: int,
    busy: Collection[int],
    *,
    inward: bool | None = None,
    at_once: bool = True,
    counts_host_memory: bool = False,
) -> Fraction:
    """Return the bandwidth between a GPU and host memory, in bytes/second, that ``busy`` GPUs leave it.

    That is the least, over the links that it crosses, of the capacity over the busy GPUs that cross it, with
    both directions busy if ``at_once``; ``inward`` names one direction, else it is that of the slower. With
    ``counts_host_memory``, the memory of its socket is shared by the GPUs at that socket in the same way.
    """

    def rate(link: LinkSpec) -> int:
        to_gpu, off_gpu = link.at_once if at_once else (link.inward, link.outward)
        return min(to_gpu, off_gpu) if inward is None else to_gpu if inward else off_gpu

    shared = [(rate(link), set(link.gpus)) for link in system.pcie.shared if gpu in link.gpus]
    if counts_host_memory and system.host.memory_bandwidth is not None:
        sockets = [set(socket.gpus) for socket in system.host.sockets if gpu in socket.gpus]
        shared.append((system.host.memory_bandwidth, sockets[0] if sockets else set(busy)))
    rates = (Fraction(bandwidth, max(1, len(gpus & set(busy)))) for bandwidth, gpus in shared)
    return min((Fraction(rate(system.pcie)), *rates))


def planned_machine(
    system: SystemSpec,
    behaviour: BehaviourSpec,
    gpus: Collection[int] = (0,),
    gpu: int = 0,
    neighbours: int = 1,
) -> PlannedMachine:
    """Return the part of a system that a job on ``gpu`` can count on when all of ``gpus`` are at work.

    GPUs share links, host memory and SSD evenly, and so do ``neighbours`` jobs on one GPU share its memory
    and host memory. They compute in turn: each has the links to itself for as much time as it computes. With
    ``planner_gigabyte: binary`` rates are read with GB = 2^30 bytes, as the published planner does.
    """
    scale = _BINARY if behaviour.planner_gigabyte == "binary" else 1.0
    share, clock = max(1, len(set(gpus))), system.gpu.clock
    into, out, lone_into, lone_out = (
        float(link_bandwidth(system, gpu, gpus, inward=inward, at_once=at_once))
        for at_once in (True, False)
        for inward in (True, False)
    )
    return PlannedMachine(
        gpu_bytes=system.gpu.memory // neighbours,
        page_bytes=system.gpu.page_size,
        clock_hz=clock,
        in_rate=into * scale / clock,
        out_rate=out * scale / clock,
        lone_in_rate=lone_into * scale / clock,
        lone_out_rate=lone_out * scale / clock,
        allocation_rate=system.gpu.allocation_rate / clock,
        fault_cycles=duration_to_cycles(system.page_fault.latency, clock),
        tiers=tuple(
            _planned_tier(tier, clock, (into, out), scale, share, neighbours) for tier in system.all_tiers
        ),
    )


def _planned_tier(
    tier: Tier, clock: int, links: tuple[float, float], scale: float, share: int, neighbours: int
) -> PlannedTier:
    """Return the part of a tier that one of ``share`` GPUs can count on.

    ``links`` are the rates to and from the GPU in bytes/second.

    The latency of an SSD leaves out a stop-over in host memory.
    """
    rates = zip((tier.read_bandwidth, tier.write_bandwidth), links, strict=True)
    read, write = (link if rate is None else min(rate / share, link) for rate, link in rates)
    return PlannedTier(
        name=tier.name,
        kind=tier.kind,
        capacity_bytes=tier.capacity // (share * neighbours) if tier.kind == "memory" else tier.capacity,
        read_rate=read * scale / clock,
        write_rate=write * scale / clock,
        latency_cycles=duration_to_cycles(tier.latency if tier.drive is None else tier.drive.latency, clock),
        write_latency_cycles=duration_to_cycles(
            tier.write_latency if tier.drive is None else tier.drive.first_write, clock
        ),
        keeps_copies=not isinstance(tier.drive, FlashSsdSpec),
    )


def planned_machines(
    workload: Workload, system: SystemSpec, behaviour: BehaviourSpec, *, shares_gpus: bool = True
) -> tuple[PlannedMachine, ...]:
    """Return the machine that each job of a workload can count on.

    Unless it ``shares_gpus``, a job counts on the whole memory of its GPU.
    """
    gpus = frozenset(job.gpu for job in workload.jobs)
    return tuple(
        planned_machine(system, behaviour, gpus, job.gpu, workload.neighbours(number) if shares_gpus else 1)
        for number, job in enumerate(workload.jobs)
    )
