"""When offloaded tensors are prefetched: as late as hides the copy, no earlier than memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from g10sim.policies.vdnn_multi_planning.timeline import Bytes, Offloaded, Timeline


@dataclass(frozen=True)
class Trigger:
    """A tensor is prefetched when kernel ``issue`` is about to start; kernel ``needed`` reads it."""

    tensor: int
    issue: int
    needed: int


@dataclass(frozen=True)
class _Want:
    tensor: int
    size_bytes: int
    gone: int
    needed: int


def plan_prefetches(
    timeline: Timeline,
    offloads: Iterable[Offloaded],
    budget_bytes: int,
    copy_cycles: Callable[[int], int],
    shifts: Mapping[int, int],
) -> tuple[Trigger, ...]:
    """Return the triggers of all prefetches, in the order of issue (a reading of Kim et al., FAS*W 2018).

    From the last use to the first the latest start of each copy follows, one after another on the link:
    L = min(time of use, L of the next) - copy. The earliest is the kernel from which on the tensor fits
    beside all that is there until its use. It is issued with the last kernel that starts by L, or the
    earliest one when that is later. ``shifts`` move triggers by so many kernel boundaries, to earlier ones
    when positive.
    """
    wants = [want for offloaded in offloads for want in _wants(timeline, offloaded)]
    wants.sort(key=lambda want: (want.needed, want.tensor))
    used = timeline.occupancy()
    for want in wants:
        used[want.gone : want.needed] -= want.size_bytes
    latest = _latest_starts(timeline, wants, copy_cycles)
    triggers, before = [], timeline.first_backward
    for want, cycle in zip(wants, latest, strict=True):
        kernel = _shifted(timeline, timeline.kernel_at(max(0, cycle)), shifts.get(want.tensor, 0))
        earliest = _earliest(want, used, budget_bytes, max(before, want.gone))
        before = min(want.needed, max(kernel, earliest))
        used[before : want.needed] += want.size_bytes
        triggers.append(Trigger(want.tensor, before, want.needed))
    return tuple(triggers)


def _wants(timeline: Timeline, offloaded: Offloaded) -> Iterable[_Want]:
    uses, gone = timeline.trace.uses, offloaded.gone
    for tensor in offloaded.tensors:
        needed = next(use for use in uses[tensor] if use >= gone)
        yield _Want(tensor, timeline.size_bytes(tensor), gone, needed)


def _latest_starts(timeline: Timeline, wants: list[_Want], copy_cycles: Callable[[int], int]) -> list[int]:
    starts, until = [0] * len(wants), timeline.starts[-1]
    for position in reversed(range(len(wants))):
        want = wants[position]
        until = min(until, timeline.starts[want.needed]) - copy_cycles(want.size_bytes)
        starts[position] = until
    return starts


def _earliest(want: _Want, used: Bytes, budget_bytes: int, first: int) -> int:
    """Return the first kernel, from ``first`` on, after which the tensor always fits until it is needed."""
    if first >= want.needed:
        return want.needed
    short = np.flatnonzero(used[first : want.needed] + want.size_bytes > budget_bytes)
    return first + int(short[-1]) + 1 if short.size else first


def _shifted(timeline: Timeline, kernel: int, boundaries: int) -> int:
    for _ in range(boundaries):
        kernel = timeline.boundary_before(kernel)
    for _ in range(-boundaries):
        kernel = timeline.boundary_after(kernel)
    return kernel
