"""Use of links, and stalls of an iteration by kernel, tensor and link, from the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from g10sim.config.system import SystemSpec
from g10sim.hardware.links import Link, Topology
from g10sim.records import Location, StallReason, TrafficRecord
from g10sim.results.columns import stall_reasons
from g10sim.results.reading import covered_until

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd


@dataclass(frozen=True)
class LinkUse:
    """Bytes that crossed one direction of a link, and how much of its capacity that is.

    ``share`` is of the whole iteration, ``stalled_share`` of the time during which kernels stalled.
    """

    name: str
    capacity: int
    size_bytes: float
    stalled_bytes: float
    share: float
    stalled_share: float


def by_main_reason(kernels: pd.DataFrame) -> dict[StallReason, pd.DataFrame]:
    """Return the kernels that stalled by the reason for which they stalled longest, longest sum first."""
    stalled = kernels[kernels["stall_cycles"] > 0]
    if stalled.empty:
        return {}
    reasons = stall_reasons(kernels)
    mostly = stalled[list(reasons)].idxmax(axis="columns")
    groups = {reasons[str(column)]: group for column, group in stalled.groupby(mostly)}
    return dict(sorted(groups.items(), key=lambda item: -int(item[1]["stall_cycles"].sum())))


def within(moves: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    """Return the migrations that overlap a span of time, cut to it: bytes in proportion to time."""
    found = moves.loc[(moves["end"] > start) & (moves["start"] < end)]
    length = (found["end"] - found["start"]).clip(lower=1)
    first, last = found["start"].clip(lower=start), found["end"].clip(upper=end)
    sizes = found["size_bytes"] * ((last - first) / length)
    return found.assign(start=first, end=last, size_bytes=sizes).reset_index(drop=True)


def tensor_waits(
    kernels: pd.DataFrame, moves: pd.DataFrame, tensors: Sequence[Sequence[int]] | None
) -> pd.DataFrame:
    """Divide the stall of each kernel among its tensors that arrived meanwhile, by the time that took.

    ``tensors`` lists those of each kernel; without it everything that arrives counts. Columns:
    ``waited_cycles``, ``kernels`` (how many waited), ``source`` (from where most of the time); rows by
    tensor, longest first. A stall in which none of its tensors arrived belongs to nobody.
    """
    import pandas as pd

    arriving = moves[moves["target"] == "GPU"]
    number, source = arriving["tensor"].to_numpy(), arriving["source"].to_numpy()
    first, last = arriving["start"].to_numpy(), arriving["end"].to_numpy()
    found: list[tuple[int, str, float, int]] = []
    stalled = kernels.loc[kernels["stall_cycles"] != 0, ["kernel", "start", "stall_cycles"]]
    for kernel, start, stall in zip(*(stalled[name].tolist() for name in stalled), strict=True):
        meanwhile = np.minimum(last, start + stall) - np.maximum(first, start)
        counts = meanwhile > 0
        if tensors is not None:
            counts &= np.isin(number, tensors[kernel])
        total = meanwhile[counts].sum()
        found += [
            (int(number[place]), str(source[place]), float(stall * meanwhile[place] / total), kernel)
            for place in np.flatnonzero(counts)
        ]
    table = pd.DataFrame(found, columns=["tensor", "source", "waited_cycles", "kernel"])
    by_source = table.groupby(["tensor", "source"])["waited_cycles"].sum().reset_index()
    mostly = by_source.sort_values("waited_cycles").groupby("tensor")["source"].last()
    summed = table.groupby("tensor").agg(
        waited_cycles=("waited_cycles", "sum"), kernels=("kernel", "nunique")
    )
    return summed.join(mostly).sort_values("waited_cycles", ascending=False, kind="stable")


def link_use(
    kernels: pd.DataFrame, moves: pd.DataFrame, system: SystemSpec, waiting: pd.DataFrame
) -> list[LinkUse]:
    """Return the use of every link that bytes crossed, the busiest while kernels stalled first.

    ``kernels`` are those of the iteration, ``moves`` its migrations, cut to it; ``waiting`` those kernels
    whose stalls count. Within one migration bytes count as evenly spread over its time.
    """
    topology, clock = Topology(system), system.gpu.clock
    iteration = int(kernels["end"].max() - kernels["start"].min())
    stalled = int(waiting["stall_cycles"].sum())
    during = _stalled_part(waiting, moves)
    places = {place.name: place for place in (Location.NONE, Location.GPU)}
    places |= {tier.place.name: tier.place for tier in system.all_tiers}
    crossing = {link.name: np.zeros(2) for link in topology.links}
    ways = moves.assign(stalled=moves["size_bytes"] * during).groupby(["gpu", "source", "target"])
    for way in ways[["size_bytes", "stalled"]].sum().reset_index().to_dict("records"):
        for link in path(topology, way["gpu"], places[way["source"]], places[way["target"]]):
            crossing[link.name] += way["size_bytes"], way["stalled"]
    uses = []
    for link in topology.links:
        size, in_stalls = crossing[link.name].tolist()
        if size:
            per_cycle = link.capacity / clock
            share = size / (per_cycle * iteration) if iteration else 0.0
            stalled_share = in_stalls / (per_cycle * stalled) if stalled else 0.0
            uses.append(LinkUse(link.name, link.capacity, size, in_stalls, share, stalled_share))
    return sorted(uses, key=lambda use: (-use.stalled_share, use.name))


def _stalled_part(kernels: pd.DataFrame, moves: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the share of the time of each migration during which some kernel stalled."""
    waits = kernels[kernels["stall_cycles"] > 0]
    bounds = moves[["start", "end"]].to_numpy()
    until = covered_until(bounds, waits["start"], waits["start"] + waits["stall_cycles"])
    return np.diff(until).ravel() / np.maximum(1, np.diff(bounds).ravel())


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
            yield link, _merged(_steps(records), shortest_cycles)


def path(topology: Topology, gpu: int, source: Location, target: Location) -> Sequence[Link]:
    """Return the links between two locations of a GPU's pages."""
    return topology.inward(gpu, source) if target == Location.GPU else topology.outward(gpu, target)


def _steps(records: Iterable[TrafficRecord]) -> Iterator[Stretch]:
    """Yield the sum of traffic as steps from change to change."""
    changes = defaultdict[int, float](float)
    for record in records:
        rate = record.size_bytes / max(1, record.end - record.start)
        changes[record.start] += rate
        changes[record.end] -= rate
    rate = 0.0
    for start, end in pairwise(sorted(changes)):
        rate += changes[start]
        yield Stretch(start, end, max(0.0, rate * (end - start)))


def _merged(steps: Iterable[Stretch], shortest_cycles: int) -> list[Stretch]:
    """Let every stretch but the last take in what follows until it is long enough."""
    found: list[Stretch] = []
    for step in steps:
        if found and found[-1].end - found[-1].start < shortest_cycles:
            short = found.pop()
            step = Stretch(short.start, step.end, short.size_bytes + step.size_bytes)
        found.append(step)
    return found
