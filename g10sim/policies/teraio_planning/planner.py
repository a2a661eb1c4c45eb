"""TERAIO's planner: again and again the absence that takes away most critical pressure for its copies.

Li et al., TERAIO, NeurIPS 2025, section 3: the benefit of an absence is the critical memory pressure that it
takes away between the end of its copy out and the start of its copy in, with the bandwidth that is left; its
cost is the time of both copies. The SSD comes first, host memory only where the SSD is busy.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

from g10sim.analysis.timeline import Integers, kernel_durations
from g10sim.analysis.vitality import InactivePeriod, inactive_periods
from g10sim.policies.moves import Evict, Fetch
from g10sim.policies.plan import MigrationPlan, Planned
from g10sim.policies.planning.channel import Channel, Interval, earliest, latest
from g10sim.policies.planning.limit import Limit
from g10sim.policies.planning.machine import PlannedMachine, PlannedTier
from g10sim.policies.planning.occupancy import Occupancy, unmoved_bytes
from g10sim.policies.planning.timeline import Timeline
from g10sim.policies.teraio_planning.pressure import CriticalPressure
from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Absence:
    """A tensor leaves for a tier and returns: when it is copied, and what that takes away.

    ``relief`` is in bytes x cycles, ``score`` that over the cycles of both copies: bytes.
    """

    period: InactivePeriod
    size_bytes: int
    tier: PlannedTier
    out: Interval
    back: Interval
    relief: int

    @property
    def score(self) -> float:
        """Benefit over cost."""
        return self.relief / (self.out.end - self.out.start + self.back.end - self.back.start)


class Planner:
    """Plans one iteration of a trace for ``capacity_bytes`` of GPU memory, with limited room in host memory.

    SSD and host memory have a channel for copies in each direction, or share one where a link has no room for
    both at once.
    """

    def __init__(
        self, trace: Trace, machine: PlannedMachine, capacity_bytes: int, host_bytes: int, time: Limit
    ) -> None:
        self._trace, self._sizes, self._time = trace, machine.sizes(trace), time
        self._beyond = unmoved_bytes(trace, self._sizes) - capacity_bytes
        self._ssd, self._host = machine.ssd, _host(machine)
        self._windows: dict[InactivePeriod, Interval] = {}
        self._host_room = Occupancy(self._beyond * 0)
        self._host_bytes = min(host_bytes, machine.memory.capacity_bytes) if self._host else 0
        self.out = {tier.name: Channel() for tier in machine.tiers}
        self.back = {tier.name: Channel() for tier in machine.tiers}
        if self._host is not None:
            for channels, in_turn in zip((self.out, self.back), _in_turn(machine), strict=True):
                if in_turn:
                    channels[self._host.name] = channels[self._ssd.name]
        self._timeline = Timeline(self._durations(kernel_durations(trace, machine.clock_hz)))
        self.pressure = CriticalPressure(self._timeline.starts, self._beyond)

    @property
    def kernel_cycles(self) -> int:
        """The time of an iteration in which nothing is waited for but what the plan counts with."""
        return self._timeline.period

    @property
    def expected_cycles(self) -> float:
        """The time of an iteration: what stays beyond GPU memory leaves and returns while kernels wait."""
        left, (out_rate, in_rate) = self.pressure.highest_bytes, self._rates()
        return self.kernel_cycles + left / out_rate + left / in_rate

    def absence(self, period: InactivePeriod) -> Absence | None:
        """Return what an absence achieves with the bandwidth that is left; None: nothing.

        It is on the SSD, but in host memory if the SSD is busy when the tensor could leave or return, and
        host memory has room.
        """
        start, end = self._window(period)
        found = self._absence(period, self._ssd)
        if found is not None and found.out.start == start and found.back.end == end:
            return found
        if self._host is None or not self._has_room(period):
            return found
        other = self._absence(period, self._host)
        return found if other is None or (found and found.relief >= other.relief) else other

    def choose(self) -> list[Absence]:
        """Take the best absences until memory suffices or nothing helps any more, in the order of choice."""
        chosen: list[Absence] = []
        heap: list[tuple[float, int, InactivePeriod]] = []
        for number, period in enumerate(inactive_periods(self._trace)):
            first = self.absence(period)
            if first is not None:
                heapq.heappush(heap, (-first.score, number, period))
        while heap and self.pressure.highest_bytes and not self._time.is_over():
            _, number, period = heapq.heappop(heap)
            best = self.absence(period)
            if best is None:
                continue
            if heap and (-best.score, number) > heap[0][:2]:
                heapq.heappush(heap, (-best.score, number, period))
                continue
            self.take(best)
            chosen.append(best)
        return chosen

    def take(self, absence: Absence) -> None:
        """Reserve the bandwidth and the room of an absence."""
        cycles = self._timeline.period
        self.out[absence.tier.name].fill(absence.out, cycles)
        self.back[absence.tier.name].fill(absence.back, cycles)
        self.pressure.lower(Interval(absence.out.end, absence.back.start), absence.size_bytes)
        if absence.tier is self._host:
            self._host_room.add(*self._kernels(absence.period), absence.size_bytes)

    def host_bytes_left(self, first: int, stop: int) -> int:
        """Return what the plan leaves of host memory within its limit, from a kernel to another."""
        return self._host_bytes - self._host_room.most(first, stop)

    def plan(self) -> MigrationPlan:
        """Return the moves of the best absences: each copy is asked for when it is to begin."""
        moves = []
        for absence in self.choose():
            tensor = absence.period.tensor
            moves.append(self._planned(absence.out.start, Evict(tensor, absence.tier.name)))
            moves.append(self._planned(absence.back.start, Fetch(tensor)))
        return MigrationPlan.ordered(moves, planner="teraio")

    def _durations(self, alone: Integers) -> Integers:
        """Return the cycles of kernels that take so long alone: no kernel waits."""
        return alone

    def _earliest(self, channel: Channel, window: Interval, length: int) -> Interval | None:
        """Return the earliest time for a copy in a window."""
        return earliest(channel, window, length, self._timeline.period)

    def _latest(self, channel: Channel, window: Interval, length: int) -> Interval | None:
        """Return the latest time for a copy in a window."""
        return latest(channel, window, length, self._timeline.period)

    def _rates(self) -> tuple[float, float]:
        """Return the bytes/cycle off the GPU and to it of the SSD and, if it may be used, host memory."""
        out_rate, in_rate = self._ssd.write_rate, self._ssd.read_rate
        if self._host is not None and self._host_bytes:
            name, ssd = self._host.name, self._ssd.name
            out_rate += self._host.write_rate if self.out[name] is not self.out[ssd] else 0
            in_rate += self._host.read_rate if self.back[name] is not self.back[ssd] else 0
        return out_rate, in_rate

    def _planned(self, time: int, move: Evict | Fetch) -> Planned:
        time %= self._timeline.period
        kernel = self._timeline.lap_last_until(time)
        return Planned(kernel, move, time - self._timeline.times[kernel])

    def _kernels(self, period: InactivePeriod) -> tuple[int, int]:
        kernels = len(self._trace.kernels)
        return period.start, period.end + (kernels if period.start >= period.end else 0)

    def _window(self, period: InactivePeriod) -> Interval:
        if period not in self._windows:
            self._windows[period] = Interval(*map(self._timeline.lap_time, self._kernels(period)))
        return self._windows[period]

    def _has_room(self, period: InactivePeriod) -> bool:
        return self._sizes[period.tensor] <= self.host_bytes_left(*self._kernels(period))

    def _absence(self, period: InactivePeriod, tier: PlannedTier) -> Absence | None:
        size, window = self._sizes[period.tensor], self._window(period)
        out = self._earliest(self.out[tier.name], window, tier.out_cycles(size))
        if out is None:
            return None
        rest = Interval(out.end, window.end)
        back = self._latest(self.back[tier.name], rest, tier.in_cycles(size))
        if back is None:
            return None
        relief = self.pressure.relief(Interval(out.end, back.start), size)
        return Absence(period, size, tier, out, back, relief) if relief else None


def _in_turn(machine: PlannedMachine) -> tuple[bool, bool]:
    """Tell of copies out and in whether the SSD takes all of the link, so that host memory waits for it."""
    ssd = machine.ssd
    return ssd.write_rate >= machine.out_rate, ssd.read_rate >= machine.in_rate


def _host(machine: PlannedMachine) -> PlannedTier | None:
    """Return host memory with the rates that the SSD leaves it; None where there is none beside an SSD."""
    memory, ssd = machine.memory, machine.ssd
    if memory is ssd or memory.kind != "memory":
        return None
    waits_out, waits_in = _in_turn(machine)
    write = machine.out_rate - (0 if waits_out else ssd.write_rate)
    read = machine.in_rate - (0 if waits_in else ssd.read_rate)
    return replace(memory, read_rate=min(read, memory.read_rate), write_rate=min(write, memory.write_rate))
