"""How long copies of swapped tensors take."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from g10sim.policies.g10_planning.machine import PlannedMachine
from g10sim.records import Location


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """Duration of a copy, latency + size / rate, for each direction; cycles and bytes/cycle.

    Measured by the AutoSwap authors as a line for each direction, pinned host memory, PCIe x16.
    """

    out_rate: float
    in_rate: float
    out_latency: int = 0
    in_latency: int = 0

    def out_cycles(self, size_bytes: int) -> int:
        """Cycles that a copy off the GPU takes."""
        return self.out_latency + ceil(size_bytes / self.out_rate)

    def in_cycles(self, size_bytes: int) -> int:
        """Cycles that a copy to the GPU takes."""
        return self.in_latency + ceil(size_bytes / self.in_rate)


def copy_times(machine: PlannedMachine, place: Location) -> CopyTimes:
    """Return the times of copies between the GPU and HOST or FLASH on links that nothing else uses."""
    if place is Location.HOST:
        return CopyTimes(machine.link_rate, machine.link_rate)
    return CopyTimes(machine.write_rate, machine.read_rate, machine.ssd_cycles, machine.ssd_cycles)
