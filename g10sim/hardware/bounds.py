"""The machine of a system as bounds see it: what limits the paths between one GPU and its memory tiers."""

from __future__ import annotations

from collections.abc import Iterator

from g10sim.analysis.bound.machine import Limit, Machine, Store
from g10sim.config.system import SystemSpec
from g10sim.hardware.links import Link, Topology
from g10sim.records import Location


def bound_machine(system: SystemSpec, gpu: int = 0) -> Machine:
    """Return the limits and tiers of a GPU with one job that has the machine to itself."""
    topology = Topology(system)
    numbers: dict[Link, int] = {}

    def ways(tier: Location) -> Iterator[tuple[int, ...]]:
        for path in (topology.inward(gpu, tier), topology.outward(gpu, tier)):
            yield tuple(numbers.setdefault(link, len(numbers)) for link in path)

    stores = tuple(Store(tier.name, tier.capacity, *ways(tier.place)) for tier in system.all_tiers)
    limits = tuple(Limit(link.name, link.capacity) for link in numbers)
    memory = system.gpu.memory - system.gpu.beside_tensors
    return Machine(memory, system.gpu.page_size, system.gpu.clock, limits, stores)
