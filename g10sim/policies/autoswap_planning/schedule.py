"""When the chosen tensors leave and come back, on one channel for each direction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from g10sim.policies.autoswap_planning.candidates import Candidate
from g10sim.policies.autoswap_planning.expectation import expected_overhead
from g10sim.policies.autoswap_planning.link import CopyTimes
from g10sim.policies.autoswap_planning.swap import Swap
from g10sim.policies.autoswap_planning.timeline import Load, Timeline


@dataclass(frozen=True)
class Schedule:
    """Swaps in the order of their copies out, and the load peak that they leave.

    ``overhead_cycles`` is what they are expected to lengthen an iteration by. ``summed_waits_cycles`` is the
    authors' estimate of that: the waits of all copies, each by itself.
    """

    swaps: tuple[Swap, ...]
    overhead_cycles: int
    summed_waits_cycles: int
    peak_bytes: int


@dataclass(slots=True)
class _Departure:
    candidate: Candidate
    gone: int


def stick_to_limit(
    timeline: Timeline, chosen: Iterable[Candidate], limit_bytes: int, copies: CopyTimes
) -> Schedule:
    """Keep the load within the limit, whatever that costs.

    A copy out that is not done when the limit needs its memory is waited for. A copy in begins as late
    as it can to be done in time, or after the last operation whose load leaves no room for it, and is then
    late. Memory is free when an operation starts, where the authors' planners have it free one operation
    earlier: their operations take no time, a kernel does.
    """
    load = Load(timeline)
    departures, waits = _depart(timeline, chosen, load, copies, limit_bytes)
    swaps = []
    channel_from: int | None = None
    for departure in sorted(departures, key=lambda d: (-d.candidate.end, -d.candidate.start)):
        candidate = departure.candidate
        wanted = _latest_start(timeline, candidate, copies, channel_from)
        in_time = max(wanted, timeline.time(departure.gone))
        back = max(departure.gone, timeline.last_until(in_time))
        load.change(back, candidate.end, candidate.size_bytes)
        above = load.last_above(limit_bytes, back, candidate.end)
        if above is not None:
            load.change(back, above + 1, -candidate.size_bytes)
            back = above + 1
            in_time = max(in_time, timeline.time(back))
        if departure.gone < back:
            waits += in_time - wanted
            channel_from = in_time
            swaps.append(Swap(candidate, departure.gone, back, in_time))
    overhead = expected_overhead(timeline, swaps, load.bytes, limit_bytes, copies)
    return Schedule(_by_departure(swaps), overhead, waits, load.peak_bytes)


def without_overhead(timeline: Timeline, chosen: Iterable[Candidate], copies: CopyTimes) -> Schedule:
    """Let no operation wait, whatever load that leaves; what cannot be away at the peak is not swapped."""
    left = [c for c in chosen if _fits_alone(timeline, c, copies)]
    while True:
        load = Load(timeline)
        departures, _ = _depart(timeline, left, load, copies, None)
        swaps = []
        channel_from: int | None = None
        for departure in sorted(departures, key=lambda d: (-d.candidate.end, -d.candidate.start)):
            candidate = departure.candidate
            in_time = _latest_start(timeline, candidate, copies, channel_from)
            back = timeline.last_until(in_time)
            if not departure.gone <= timeline.peak < back:
                continue
            load.change(back, candidate.end, candidate.size_bytes)
            channel_from = in_time
            swaps.append(Swap(candidate, departure.gone, back, in_time))
        if len(swaps) == len(left):
            return Schedule(_by_departure(swaps), 0, 0, load.peak_bytes)
        left = [swap.candidate for swap in swaps]


def _depart(
    timeline: Timeline,
    chosen: Iterable[Candidate],
    load: Load,
    copies: CopyTimes,
    limit_bytes: int | None,
) -> tuple[list[_Departure], int]:
    """Plan the copies out, first come first served; returns when memory is free, and the waits."""
    departures = []
    waits = 0
    done: int | None = None
    for candidate in sorted(chosen, key=lambda c: (c.start, c.end)):
        begin = timeline.time(candidate.start)
        begin = begin if done is None else max(begin, done)
        done = begin + copies.out_cycles(candidate.size_bytes)
        gone = min(timeline.first_from(done), candidate.end)
        load.change(gone, candidate.end, -candidate.size_bytes)
        needed = load.first_above(limit_bytes, candidate.start, gone) if limit_bytes is not None else None
        if needed is not None:
            load.change(needed, gone, -candidate.size_bytes)
            gone = needed
            waits += done - timeline.time(needed)
        departures.append(_Departure(candidate, gone))
    return departures, waits


def _latest_start(
    timeline: Timeline, candidate: Candidate, copies: CopyTimes, channel_from: int | None
) -> int:
    """Latest time for a copy in to begin, so that it is done in time and before the next one begins."""
    need = timeline.time(candidate.end)
    need = need if channel_from is None else min(need, channel_from)
    return need - copies.in_cycles(candidate.size_bytes)


def _fits_alone(timeline: Timeline, candidate: Candidate, copies: CopyTimes) -> bool:
    out = timeline.time(candidate.start) + copies.out_cycles(candidate.size_bytes)
    back = timeline.last_until(_latest_start(timeline, candidate, copies, None))
    return timeline.first_from(out) <= timeline.peak < back


def _by_departure(swaps: Iterable[Swap]) -> tuple[Swap, ...]:
    return tuple(sorted(swaps, key=lambda swap: (swap.candidate.start, swap.candidate.end)))
