"""Utilization of each link: from the traffic between locations to rates on links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from g10sim.config.system import SystemSpec
from g10sim.hardware.links import Link, Topology
from g10sim.records import Location, TrafficRecord


@dataclass(frozen=True)
class Stretch:
    """Bytes that crossed a link during [start, end] (cycles)."""

    start: int
    end: int
    size_bytes: float


def link_traffic(
    system: SystemSpec, traffic: Iterable[TrafficRecord], shortest_cycles: int
) -> Iterator[tuple[Link, list[Stretch]]]:
    """Yield each link that bytes crossed, with stretches from the first to the last of them.

    Rates are constant during a stretch, or averages where they change faster than ``shortest_cycles``: pages
    count when they are whole, so a very short stretch may have one more or one less than its rate says.
    """
    topology = Topology(system)
    users: dict[Link, list[TrafficRecord]] = {link: [] for link in topology.links}
    for record in traffic:
        for link in path(topology, record.gpu, record.source, record.target):
            users[link].append(record)
    for link, records in users.items():
        if records:
            yield link, list(_merged(_steps(records), shortest_cycles))


def path(topology: Topology, gpu: int, source: Location, target: Location) -> Sequence[Link]:
    """Return the links between two locations of a GPU's pages."""
    return topology.inward(gpu, source) if target == Location.GPU else topology.outward(gpu, target)


def _steps(records: Iterable[TrafficRecord]) -> Iterator[Stretch]:
    """Yield the sum of traffic as steps from change to change."""
    changes: dict[int, float] = {}
    for record in records:
        rate = record.size_bytes / max(1, record.end - record.start)
        changes[record.start] = changes.get(record.start, 0.0) + rate
        changes[record.end] = changes.get(record.end, 0.0) - rate
    rate, before = 0.0, None
    for time in sorted(changes):
        if before is not None:
            yield Stretch(before, time, max(0.0, rate * (time - before)))
        rate, before = rate + changes[time], time


def _merged(steps: Iterable[Stretch], shortest_cycles: int) -> Iterator[Stretch]:
    held: Stretch | None = None
    for step in steps:
        if held is not None and held.end - held.start < shortest_cycles:
            held = Stretch(held.start, step.end, held.size_bytes + step.size_bytes)
            continue
        if held is not None:
            yield held
        held = step
    if held is not None:
        yield held
