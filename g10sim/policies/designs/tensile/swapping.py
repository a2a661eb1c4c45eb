"""Planning one tensor's swaps, within an iteration or across its border."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from g10sim.policies.planning.channel import Interval
from g10sim.policies.planning.swapping.schedule import JobSchedule, Swap


def swap_within(
    schedule: JobSchedule,
    tensor: int,
    last_access: int,
    length: int,
    relieves: Callable[[list[Swap]], bool] = bool,
) -> list[Swap]:
    """Plan swaps of a tensor in an iteration: out as early as possible, in as late as possible.

    It leaves between its first access and ``last_access``, the time of the last access before the peak, and
    comes back for its next one; where it cannot, or where that does not ``relieve`` the peak, it is tried
    again after that access. Between later accesses it leaves again where there is time for both copies.
    Transfers take ``length`` cycles, those of frozen tensors out next to none; the channels of the schedule
    are taken for them. Empty: impossible.
    """
    accesses = schedule.accesses
    uses = accesses.uses[tensor]
    if len(uses) < 2:
        return []
    low, closed = accesses.interval(uses[0]).end, accesses.accesses(tensor)
    out_length = accesses.out_cycles(tensor, length)
    while low < last_access:
        out = schedule.out.earliest(Interval(low, last_access), out_length, accesses.period, closed)
        place = None if out is None else accesses.first_use_from(tensor, out.end)
        if out is None or place is None:
            return []
        window = Interval(out.end, accesses.interval(uses[place]).start)
        swap = schedule.take(tensor, out, window, length, uses[place])
        if swap is not None:
            later = _swap_again(schedule, tensor, place, length)
            if relieves([swap, *later]):
                return [swap, *later]
            for unwanted in (swap, *later):
                schedule.give_back(unwanted)
        low = accesses.interval(uses[place]).end
    return []


def swap_across(
    schedule: JobSchedule, tensor: int, length: int, relieves: Callable[[list[Swap]], bool] = bool
) -> list[Swap]:
    """Plan the absence of a persistent tensor from its last use to its first one in the next iteration.

    The copy out may run over the end of the iteration; the copy in is within the next one. Empty: impossible,
    or of no use at the peak.
    """
    accesses = schedule.accesses
    uses, period = accesses.uses[tensor], accesses.period
    if not uses:
        return []
    first, last = accesses.interval(uses[0]).start, accesses.interval(uses[-1]).end
    out_length = accesses.out_cycles(tensor, length)
    out = schedule.out.earliest(Interval(last, period + first), out_length, period)
    if out is None:
        return []
    swap = schedule.take(tensor, out, Interval(max(0, out.end - period), first), length, uses[0])
    if swap is None or relieves([swap]):
        return [] if swap is None else [swap]
    schedule.give_back(swap)
    return []


def _swap_again(schedule: JobSchedule, tensor: int, place: int, length: int) -> list[Swap]:
    """Take channels for swaps between later accesses of a tensor, wherever there is room."""
    accesses, found = schedule.accesses, []
    out_length = accesses.out_cycles(tensor, length)
    for before, after in pairwise(accesses.uses[tensor][place:]):
        window = Interval(accesses.interval(before).end, accesses.interval(after).start)
        out = schedule.out.earliest(window, out_length, accesses.period)
        if out is None:
            continue
        swap = schedule.take(tensor, out, Interval(out.end, window.end), length, after)
        if swap is not None:
            found.append(swap)
    return found
