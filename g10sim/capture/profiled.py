"""Joins the device times of profiled steps to the operators that were recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from difflib import SequenceMatcher
from statistics import median_low
from typing import NamedTuple

from g10sim.errors import TraceError
from g10sim.importers.kineto_events import Profile, Span

STEP = "g10sim step "
CALL = "g10sim call "
"""What annotations of steps and of operators begin with; the operator's name ends the latter."""


class Call(NamedTuple):
    """One operator of a step, and the time its kernels take on the device in each profiled step."""

    name: str
    times_ns: tuple[int, ...]

    @property
    def time_ns(self) -> int:
        """Median over the steps (of two middle ones the lower)."""
        return median_low(self.times_ns)


def profiled_calls(profile: Profile) -> list[Call]:
    """Return the operators of the profiled steps in order, with their times.

    A device event belongs to the operator whose annotation its launch lies in. Raises TraceError when there
    are no steps or no device events, and when steps run different operators.
    """
    steps = [span for span in profile.annotations if span.name.startswith(STEP)]
    calls = [span for span in profile.annotations if span.name.startswith(CALL)]
    if not steps or not profile.device:
        what = "step" if not steps else "device event"
        raise TraceError(f"{profile.path}: found no {what}; allowed: a profile of steps on a CUDA device")
    groups = _by_step(steps, calls)
    names = [[_name(calls[position]) for position in group] for group in groups]
    for number, found in enumerate(names):
        if found != names[0]:
            raise TraceError(
                f"{profile.path}: found other operators in step {number} than in the first; "
                "allowed: steps that run the same operators"
            )
    times = [sum(event.duration_ns for event in events) for events in profile.device_times(calls)]
    rows = zip(*([times[position] for position in group] for group in groups), strict=True)
    return [Call(name, tuple(row)) for name, row in zip(names[0], rows, strict=True)]


def _by_step(steps: Sequence[Span], calls: Sequence[Span]) -> list[list[int]]:
    """Positions of the calls in each step; the backward pass may run on a thread of its own."""
    starts = [step.start_ns for step in steps]
    groups: list[list[int]] = [[] for _ in steps]
    for position, call in enumerate(calls):
        step = bisect_right(starts, call.start_ns) - 1
        if step >= 0:
            groups[step].append(position)
    return groups


def _name(call: Span) -> str:
    return call.name.removeprefix(CALL).partition(" ")[2]


def joined(recorded: Sequence[str], calls: Sequence[Call]) -> dict[int, int]:
    """Return times in nanoseconds by position among the recorded operators.

    Both are matched in order by name, so an operator that only one of them has takes no other's time; names
    that differ between devices count as one (fused attention, batch normalization).
    """
    measured = [call.name for call in calls]
    matcher = SequenceMatcher(None, [*map(_common, recorded)], [*map(_common, measured)], autojunk=False)
    return {
        block.a + offset: calls[block.b + offset].time_ns
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def _common(name: str) -> str:
    """Return a name that operators for CPU and for CUDA share."""
    short = name.rpartition("::")[2]
    backward = "_backward" if "backward" in short else ""
    for family in ("attention", "batch_norm", "rms_norm"):
        if family in short:
            return family + backward
    return short


def split(total_ns: int, weights: Sequence[int]) -> list[int]:
    """Split a time in proportion to weights, to whole nanoseconds that add up to it."""
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    shares, given, before = [], 0, 0
    for weight in weights:
        before += weight
        share = total_ns * before // whole - given
        shares.append(share)
        given += share
    return shares
