"""Of all plans the one that simulates as fastest, and whose tensors have addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, inf
from operator import attrgetter

from g10sim.analysis.pools.placement import Block, place_blocks
from g10sim.grouping import grouped
from g10sim.policies.designs.pressure.forecast import Dropped
from g10sim.policies.designs.pressurefit.replay import TaskReplay
from g10sim.policies.designs.pressurefit.residency import RULES, GapChoice, Rule, Windows
from g10sim.policies.designs.pressurefit.tasks import Program, Programs
from g10sim.policies.planning.limit import TimeLimit

_REPAIRS = 16
"""Times that the best plan gets more room where it lacked some; the source repairs every plan, 256 times."""
_LEAST_GIVEN_UP = 128
"""Part of memory that a plan without addresses gives up at least: each new plan takes as long as the last."""


@dataclass(frozen=True)
class Fitted:
    """A plan that was replayed.

    For some of its tensors there are no addresses, as they span ``excess_bytes`` more than there are.
    """

    program: Program
    residency: GapChoice
    rule: Rule
    replay: TaskReplay
    excess_bytes: int = 0

    @property
    def cycles(self) -> float:
        """Duration of an iteration; infinite for a plan that does not end."""
        return self.replay.cycles


def fastest(programs: Programs, drops: Sequence[Sequence[Dropped]], limit: TimeLimit) -> Fitted:
    """Return the fastest plan where one of some groups is dropped, or of those that there was time for."""
    first, *others = sorted(_tried(programs, drops, limit), key=attrgetter("cycles"))
    pool_bytes = first.program.capacity_bytes
    best = _with_addresses(first, pool_bytes, inf, limit)
    for plan in others:
        if limit.is_over() or _worth(plan) >= _worth(best):
            break
        most = inf if best.excess_bytes else best.cycles
        best = min(best, _with_addresses(plan, pool_bytes, most, limit), key=_worth)
    for plan in _repaired(best, limit):
        if plan.cycles < best.cycles and extent_bytes(plan.program, plan.replay) <= pool_bytes:
            best = plan
    return best


def _worth(plan: Fitted) -> tuple[bool, float]:
    """Return what is less for the better plan."""
    return plan.excess_bytes > 0, plan.cycles


def _with_addresses(plan: Fitted, pool_bytes: int, most_cycles: float, limit: TimeLimit) -> Fitted:
    """Return a plan by the same rules for as much memory as its tensors take with addresses.

    One that takes that many cycles or more is not looked at any further.
    """
    while plan.replay.arrivals and plan.cycles < most_cycles:
        excess = extent_bytes(plan.program, plan.replay) - pool_bytes
        if excess <= 0:
            break
        given_up = max(excess, pool_bytes // _LEAST_GIVEN_UP)
        smaller = replace(plan.program, capacity_bytes=plan.program.capacity_bytes - given_up)
        if limit.is_over() or not (residency := plan.residency.of(smaller)).fits:
            return replace(plan, excess_bytes=excess)
        plan = _fitted(smaller, residency, plan.rule, Windows(smaller, residency))
    return plan


def _tried(programs: Programs, drops: Sequence[Sequence[Dropped]], limit: TimeLimit) -> Iterator[Fitted]:
    """Yield the plans of all groups whose kernels alone take less than the fastest plan before."""
    best = inf
    for dropped in drops:
        least = programs.least_cycles(dropped)
        if least < best:
            for plan in _plans(programs.of(dropped)):
                yield plan
                best = min(best, plan.cycles)
                if best <= least:
                    break
                if limit.is_over():
                    return


def _repaired(plan: Fitted, limit: TimeLimit) -> Iterator[Fitted]:
    """Yield plans, each of which has more room where the one before lacked some."""
    for _ in range(_REPAIRS):
        is_ideal = plan.cycles <= plan.program.begins[-1]
        if is_ideal or limit.is_over() or not plan.residency.relieve(plan.replay.lacks):
            return
        plan = _fitted(plan.program, plan.residency, plan.rule, Windows(plan.program, plan.residency))
        yield plan


def _plans(program: Program) -> Iterator[Fitted]:
    known = list[set[int]]()
    for stall_first, headroom in product((True, False), (True, False)):
        residency = GapChoice(program, stall_first=stall_first, headroom=headroom)
        if residency.cut not in known:
            known.append(set(residency.cut))
            windows = Windows(program, residency)
            yield from (_fitted(program, residency, rule, windows) for rule in RULES)


def _fitted(program: Program, residency: GapChoice, rule: Rule, windows: Windows) -> Fitted:
    return Fitted(program, residency, rule, TaskReplay(program, residency, rule(windows)))


def extent_bytes(program: Program, replay: TaskReplay) -> int:
    """Return the bytes from the first to the last address of a plan that was replayed.

    A tensor takes memory from when its copy in starts, or its task, until it is gone. What one task alone
    needs is one block. The largest blocks come first, each at the lowest free address
    (als244/shadowspill, docs/architecture/physical-admission.md); all addresses are multiples of what all
    sizes are.
    """
    gaps, sizes, period = program.gaps, program.sizes, int(replay.cycles)
    in_order = sorted(replay.arrivals, key=lambda number: gaps[number].start)
    cut = grouped((gaps[number].tensor, number) for number in in_order)
    spans = [(replay.started[i], replay.ended[i], int(size)) for i, size in enumerate(program.scratch)]
    for tensor, first, last in program.stays:
        own = [number for number in cut.get(tensor, ()) if first < gaps[number].start <= last]
        starts = [replay.started[first], *(replay.came_at[number] for number in own)]
        ends = [*(replay.gone_at[number] for number in own), replay.ended[last]]
        spans += [(start, end, sizes[tensor]) for start, end in zip(starts, ends, strict=True)]
    for tensor in filter(cut.__contains__, program.lasting):
        own = cut[tensor]
        pairs = zip(own, own[1:] + own[:1], strict=True)
        spans += [(replay.came_at[one], replay.gone_at[following], sizes[tensor]) for one, following in pairs]
    always = sum(sizes[tensor] for tensor in program.lasting if tensor not in cut)
    whole = ((int(start), int(end), size) for start, end, size in spans if size)
    blocks = [Block(start, start + ((end - start) % period or period), size) for start, end, size in whole]
    unit = gcd(*(block.size_bytes for block in blocks)) or 1
    return always + place_blocks(blocks, period=period, fit="first", alignment_bytes=unit).footprint_bytes
