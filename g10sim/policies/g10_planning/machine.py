"""The machine as a planner sees it: sizes, and rates in bytes per GPU cycle."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.records import Location
from g10sim.units import duration_to_cycles

_BINARY = 2**30 / 10**9


@dataclass(frozen=True, slots=True)
class PlannedMachine:
    """What one GPU can count on. Rates are bytes/cycle, latencies cycles.

    ``link_rate`` is that of the GPU's way to the host, in each direction; ``write_rate`` and ``read_rate``
    are the SSD's. ``fault_cycles`` and ``ssd_cycles`` are latencies of page faults and of the SSD.
    """

    gpu_bytes: int
    host_bytes: int
    page_bytes: int
    clock_hz: int
    link_rate: float
    write_rate: float
    read_rate: float
    allocation_rate: float
    fault_cycles: int
    ssd_cycles: int

    def pages_bytes(self, size_bytes: int) -> int:
        """Round a size up to whole pages."""
        return -(-size_bytes // self.page_bytes) * self.page_bytes

    def transfer_cycles(self, size_bytes: int, place: Location) -> float:
        """Cycles that one transfer of a tensor to or from HOST or FLASH takes on idle links.

        Published simulator: fault handling + size / rate, and the SSD's latency.
        """
        if place is Location.HOST:
            return self.fault_cycles + size_bytes / self.link_rate
        rate = min(self.write_rate, self.read_rate)
        return self.fault_cycles + self.ssd_cycles + size_bytes / rate


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
    link = float(system.pcie.bandwidth)
    for shared in system.pcie.shared:
        if gpu in shared.gpus:
            link = min(link, shared.bandwidth / max(1, len(set(shared.gpus) & set(gpus))))
    share = max(1, len(set(gpus)))
    clock = system.gpu.clock
    return PlannedMachine(
        gpu_bytes=system.gpu.memory // neighbours,
        host_bytes=system.host.memory // (share * neighbours),
        page_bytes=system.gpu.page_size,
        clock_hz=clock,
        link_rate=link * scale / clock,
        write_rate=min(system.ssd.write_bandwidth / share, link) * scale / clock,
        read_rate=min(system.ssd.read_bandwidth / share, link) * scale / clock,
        allocation_rate=system.gpu.allocation_rate / clock,
        fault_cycles=duration_to_cycles(system.page_fault.latency, clock),
        ssd_cycles=duration_to_cycles(system.ssd.latency, clock),
    )
