"""TERAIO's planner: again and again the absence that takes away most critical pressure for its copies.

Li et al., TERAIO, NeurIPS 2025, section 3: the benefit of an absence is the critical memory pressure that it
takes away between the end of its copy out and the start of its copy in, with the bandwidth that is left; its
cost is the time of both copies. The SSD comes first, host memory only where the SSD is busy.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import reduce
from heapq import heappop, heappush
from operator import add

import numpy as np

from g10sim.analysis.footprint import unmoved_bytes
from g10sim.analysis.timeline import Floats, Integers, Numbers, kernel_durations, prefix_sums
from g10sim.policies.interface import Evict, Fetch, MigrationPlan, Planned, PlannedMachine, PlannedTier
from g10sim.policies.planning.channel import NEVER, Channel, Gaps, Interval, groups
from g10sim.policies.planning.choice import Ranking
from g10sim.policies.planning.limit import TimeLimit
from g10sim.policies.planning.occupancy import Occupancy
from g10sim.policies.planning.swapping.peak import add_between
from g10sim.policies.planning.timeline import Absence, Timeline, absences, spans_of
from g10sim.trace.model import Trace

_LARGEST, _LOW_BITS = np.iinfo(np.int64).max, 20


class CriticalPressure:
    """Bytes beyond GPU memory (negative: room), the same in every iteration, in steps at any time.

    ``highest_bytes`` are the most, 0 where all fits.
    ``starts`` has the start of every kernel and the end of the last one, in cycles. Reliefs are worked out
    from the steps between the first and the last one beyond GPU memory.
    """

    def __init__(self, starts: Integers, beyond_bytes: Integers) -> None:
        self._times, self._beyond = array("q", starts.tobytes()), array("q", beyond_bytes.tobytes())
        self._period = max(1, int(starts[-1]))
        self._renew()

    def reliefs(self, starts: Integers, ends: Integers, sizes: Integers) -> Numbers:
        """Return the pressure that absences of these sizes would take away, in bytes x cycles.

        They end within the next iteration; one of no bytes takes nothing away.
        """
        found: Numbers = np.zeros_like(sizes)
        times = np.stack((starts, ends))
        laps = (times >= self._period).astype(np.int64)
        rest = np.minimum(np.maximum(times - self._period * laps, self._steps[0]), self._steps[-1])
        steps = self._steps[:-1].searchsorted(rest, side="right") - 1
        rest -= self._steps.take(steps)
        for size, some in groups(sizes):
            if not size:
                continue
            step, left, lap = (values.take(some, axis=1) for values in (steps, rest, laps))
            parts: list[Numbers] = []
            for shift, taken, sums in self._taken(size):
                before, until = sums.take(step) + taken.take(step) * left + lap * sums[-1]
                parts.append(until - before if not shift else (until - before).astype(object) << shift)
            relief = reduce(add, parts)
            found = found.astype(np.promote_types(found.dtype, relief.dtype), copy=False)
            found[some] = relief
        return found

    def _taken(self, size_bytes: int) -> list[tuple[int, Integers, Integers]]:
        """Return the bytes of an absence that are critical in each of these steps, and their sums x cycles.

        Where reliefs may be too large, sums are those of the high and of the low bits, after how far they are
        shifted. Sums that are too large themselves have right differences. They are kept until pressure
        changes.
        """
        if size_bytes not in self._of_size:
            taken = np.minimum(self._above, size_bytes)
            parts = [(0, taken)]
            if size_bytes * self._period > _LARGEST:
                parts = [(0, taken & ((1 << _LOW_BITS) - 1)), (_LOW_BITS, taken >> _LOW_BITS)]
            self._of_size[size_bytes] = [
                (shift, part, prefix_sums(part * self._lengths)) for shift, part in parts
            ]
        return self._of_size[size_bytes]

    def lower(self, absence: Interval, size_bytes: int) -> None:
        """Let some bytes be absent."""
        for start, end in absence.within(self._period):
            add_between(self._times, self._beyond, start, end, -size_bytes)
        self._renew()

    def _renew(self) -> None:
        times, beyond = (np.frombuffer(values, dtype=np.int64) for values in (self._times, self._beyond))
        is_critical = beyond > 0
        first, last = int(is_critical.argmax()), len(is_critical) - int(is_critical[::-1].argmax())
        self._steps: Integers = times[first : last + 1].copy()
        self._lengths: Integers = self._steps[1:] - self._steps[:-1]
        self._above: Integers = np.maximum(beyond[first:last], 0)
        self.highest_bytes = int(self._above.max(initial=0))
        self._of_size: dict[int, list[tuple[int, Integers, Integers]]] = {}


@dataclass(frozen=True, slots=True)
class Offload:
    """A tensor leaves for a tier and returns: when it is copied."""

    absence: Absence
    tier: PlannedTier
    out: Interval
    back: Interval


class Planner:
    """Plans one iteration of a trace for ``capacity_bytes`` of GPU memory, with limited room in host memory.

    SSD and host memory have a channel for copies in each direction, or share one where a link has no room for
    both at once. Nothing is waited for in the ``timeline`` but what the plan counts with.
    """

    _earliest, _latest = staticmethod(Gaps.earliest), staticmethod(Gaps.latest)
    """Times of copies in windows."""

    def __init__(
        self, trace: Trace, machine: PlannedMachine, capacity_bytes: int, host_bytes: int, time: TimeLimit
    ) -> None:
        sizes, self._time = machine.sizes(trace), time
        self._absences = absences(trace, sizes)
        self._beyond = unmoved_bytes(trace, sizes) - capacity_bytes
        self._ssd, self._host = machine.ssd, _host(machine)
        self._host_room = Occupancy(self._beyond * 0)
        self._host_bytes = min(host_bytes, machine.memory.capacity_bytes) if self._host else 0
        self.out = {tier.name: Channel() for tier in machine.tiers}
        self.back = {tier.name: Channel() for tier in machine.tiers}
        for channels, in_turn in zip((self.out, self.back), _in_turn(machine), strict=True):
            if in_turn and self._host is not None:
                channels[self._host.name] = channels[self._ssd.name]
        self.timeline = Timeline(self._durations(kernel_durations(trace, machine.clock_hz)))
        self.pressure = CriticalPressure(self.timeline.starts, self._beyond)
        self._set_up_absences()

    def _set_up_absences(self) -> None:
        found = self._absences
        starts, ends, self._bytes = spans_of(found)
        self._windows = self.timeline.lap_times(starts), self.timeline.lap_times(ends)
        self._tiers = [self._ssd] if self._host is None else [self._ssd, self._host]
        self._lengths = [
            [np.array([*map(cycles, self._bytes.tolist())], dtype=np.int64) for cycles in ways]
            for ways in ((tier.out_cycles, tier.in_cycles) for tier in self._tiers)
        ]
        if self._host is not None and self._ssd.keeps_copies:
            # Not off the SSD as well: it would take all that is frozen, and is the slower one to return from.
            self._lengths[1][0][[absence.frozen for absence in found]] = 0
        self._copies = np.zeros((4, len(found)), dtype=np.int64)
        self._tier_of = np.zeros(len(found), dtype=np.int64)
        self._may_be_on_host = np.full(len(found), self._host is not None)

    @property
    def expected_cycles(self) -> float:
        """The time of an iteration: what stays beyond GPU memory leaves and returns while kernels wait."""
        left, (out_rate, in_rate) = self.pressure.highest_bytes, self._rates()
        return self.timeline.period + left / out_rate + left / in_rate

    def scores(self, numbers: Integers) -> Floats:
        """Work out absences with the bandwidth that is left; return their benefits over costs, 0 for none.

        Each is on the SSD, but in host memory if the SSD is busy when the tensor could leave or return, and
        host memory has room.
        """
        copies, reliefs = self._on(0, numbers)
        first, last = (edge[numbers] for edge in self._windows)
        is_best = (copies[0] == first) & (copies[3] == last) & (reliefs > 0)
        self._tier_of[numbers] = 0
        others = self._with_room(np.flatnonzero(~is_best), numbers)
        if len(others):
            on_host, host_reliefs = self._on(1, numbers[others])
            is_better = (host_reliefs > reliefs[others]).astype(np.bool_)
            better = others[is_better]
            self._tier_of[numbers[better]] = 1
            reliefs = reliefs.astype(np.promote_types(reliefs.dtype, host_reliefs.dtype), copy=False)
            copies[:, better], reliefs[better] = on_host[:, is_better], host_reliefs[is_better]
        self._copies[:, numbers] = copies
        costs = np.maximum(copies[1] - copies[0] + copies[3] - copies[2], 1)
        if reliefs.dtype == object:
            return np.asarray(reliefs / costs, dtype=np.float64)
        whole, rest = np.divmod(reliefs, costs)  # so that what is worth as much has the same quotient
        return np.asarray(whole + rest / costs)

    def offload(self, number: int) -> Offload:
        """Return an absence as it was last worked out."""
        times = self._copies[:, number].tolist()
        tier = self._tiers[self._tier_of[number]]
        return Offload(self._absences[number], tier, Interval(*times[:2]), Interval(*times[2:]))

    def choose(self) -> list[Offload]:
        """Take the best offloads until memory suffices or nothing helps any more, in the order of choice."""
        chosen: list[Offload] = []
        ranking = Ranking(self.scores(np.arange(len(self._absences))))
        while self.pressure.highest_bytes and not self._time.is_over():
            number = ranking.pop(self.scores)
            if number is None:
                break
            chosen.append(self.offload(number))
            self.take(chosen[-1])
        return chosen

    def take(self, offload: Offload) -> None:
        """Reserve the bandwidth and the room of an absence."""
        absence, cycles = offload.absence, self.timeline.period
        self.out[offload.tier.name].take(offload.out, cycles)
        self.back[offload.tier.name].take(offload.back, cycles)
        self.pressure.lower(Interval(offload.out.end, offload.back.start), absence.size_bytes)
        if offload.tier is self._host:
            self._host_room.add(absence.start, absence.end, absence.size_bytes)

    def host_bytes_left(self, first: int, stop: int) -> int:
        """Return what the plan leaves of host memory within its limit, from a kernel to another."""
        return self._host_bytes - self._host_room.most(first, stop)

    def plan(self) -> MigrationPlan:
        """Return the moves of the best absences: each copy is asked for when it is to begin."""
        moves = []
        for offload in self.choose():
            tensor = offload.absence.tensor
            moves.append(self._planned(offload.out.start, Evict(tensor, offload.tier.name)))
            moves.append(self._planned(offload.back.start, Fetch(tensor)))
        return MigrationPlan.ordered(moves, planner="teraio")

    def _durations(self, alone: Integers) -> Integers:
        """Return the cycles of kernels that take so long alone: no kernel waits."""
        return alone

    def _rates(self) -> tuple[float, float]:
        """Return the bytes/cycle off the GPU and to it of the SSD and, if it may be used, host memory."""
        out_rate, in_rate = self._ssd.write_rate, self._ssd.read_rate
        if self._host is not None and self._host_bytes:
            name, ssd = self._host.name, self._ssd.name
            out_rate += self._host.write_rate if self.out[name] is not self.out[ssd] else 0
            in_rate += self._host.read_rate if self.back[name] is not self.back[ssd] else 0
        return out_rate, in_rate

    def _planned(self, time: int, move: Evict | Fetch) -> Planned:
        return self.timeline.planned(time, move)

    def _with_room(self, places: Integers, numbers: Integers) -> Integers:
        """Return the places of those of some absences that host memory has room for."""
        places = places[self._may_be_on_host[numbers[places]]]
        some = numbers[places]
        room = self._host_bytes - self._host_room.peak_bytes
        for number in some[self._bytes[some] > room].tolist():
            absence = self._absences[number]
            left = self.host_bytes_left(absence.start, absence.end)
            self._may_be_on_host[number] = absence.size_bytes <= left
        with_room: Integers = places[self._may_be_on_host[some]]
        return with_room

    def _on(self, place: int, numbers: Integers) -> tuple[Integers, Numbers]:
        """Return the times of copies to a tier and back, and the relief of each absence; 0: it cannot be."""
        name, period = self._tiers[place].name, self.timeline.period
        first, last = (edge[numbers] for edge in self._windows)
        to_tier, to_gpu = (lengths[numbers] for lengths in self._lengths[place])
        out = self._earliest(self.out[name].gaps(period), first, last, to_tier)
        back = self._latest(self.back[name].gaps(period), out[1], last, to_gpu)
        sizes = np.where(back[0] < NEVER, self._bytes[numbers], 0)
        return np.stack((*out, *back)), self.pressure.reliefs(out[1], back[0], sizes)


def _in_turn(machine: PlannedMachine) -> tuple[bool, bool]:
    """Tell of copies out and in whether the SSD takes all of the link, so that host memory waits for it."""
    ssd = machine.ssd
    return ssd.write_rate >= machine.out_rate, ssd.read_rate >= machine.in_rate


def _host(machine: PlannedMachine) -> PlannedTier | None:
    """Return host memory with the rates that the SSD leaves it; None without either."""
    memory, ssd = machine.memory, machine.ssd
    if memory is ssd or memory.kind != "memory":
        return None
    waits_out, waits_in = _in_turn(machine)
    write = machine.out_rate - (0 if waits_out else ssd.write_rate)
    read = machine.in_rate - (0 if waits_in else ssd.read_rate)
    return replace(memory, read_rate=min(read, memory.read_rate), write_rate=min(write, memory.write_rate))


class WaitingPlanner(Planner):
    """Plans an iteration whose kernels take at least as long as what must be copied for them.

    Copies run in parts between others: where links are always busy, whole ones leave gaps too short for any.
    How long kernels wait is an estimate, so that copies are asked for when a kernel begins, in order.
    """

    _earliest, _latest = staticmethod(Gaps.earliest_in_parts), staticmethod(Gaps.latest_in_parts)

    def _durations(self, alone: Integers) -> Integers:
        out, back = self._copied_bytes()
        out_rate, in_rate = self._rates()
        waits = np.ceil(np.maximum(out / out_rate, back / in_rate)).astype(np.int64)
        return np.maximum(alone, waits)

    def _copied_bytes(self) -> tuple[Integers, Integers]:
        """Return the bytes that leave and return for each kernel, if tensors come when a kernel needs them.

        Those leave whose next use is farthest away (Belady, IBM Systems Journal 1966). It is that of a second
        iteration.
        """
        count = len(self._beyond)
        starting, returning = defaultdict[int, list[tuple[int, int]]](list), defaultdict[int, int](int)
        for absence in self._absences:
            starting[absence.start].append((absence.end - absence.start, absence.size_bytes))
        out, back = np.zeros((2, count), dtype=np.int64)
        idle, beyond = list[tuple[int, int]](), self._beyond.tolist()
        absent = 0
        for now in range(2 * count):
            kernel = now % count
            back[kernel] = returning.pop(now, 0)
            absent -= int(back[kernel])
            for length, size in starting[kernel]:
                heappush(idle, (-now - length, size))
            before = absent
            while absent < beyond[kernel] and idle and -idle[0][0] > now:
                use, size = heappop(idle)
                returning[-use] += size
                absent += size
            out[kernel] = absent - before
        return out, back

    def _planned(self, time: int, move: Evict | Fetch) -> Planned:
        return replace(super()._planned(time, move), delay_cycles=0)
