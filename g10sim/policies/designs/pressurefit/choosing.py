"""Of all plans the one that simulates as fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from operator import attrgetter

from g10sim.policies.designs.pressure.forecast import Dropped
from g10sim.policies.designs.pressurefit.arriving import RULES, Arrivals, Windows
from g10sim.policies.designs.pressurefit.replay import Replay
from g10sim.policies.designs.pressurefit.residency import Residency
from g10sim.policies.designs.pressurefit.tasks import Program, Programs
from g10sim.policies.planning.limit import Limit

_REPAIRS = 16
"""Times that the best plan gets more room where it lacked some; the source repairs every plan, 256 times."""


@dataclass(frozen=True)
class Fitted:
    """A plan: when tensors are asked for, and the cycles that an iteration takes."""

    program: Program
    residency: Residency
    rule: Callable[[Windows], Arrivals]
    arrivals: Arrivals
    cycles: float
    lacks: Mapping[int, int]


def fastest(programs: Programs, drops: Sequence[Sequence[Dropped]], limit: Limit) -> Fitted:
    """Return the fastest plan where one of some groups is dropped, or of those that there was time for."""
    best = min(_tried(programs, drops, limit), key=attrgetter("cycles"))
    return min([best, *_repaired(best, limit)], key=attrgetter("cycles"))


def _tried(programs: Programs, drops: Sequence[Sequence[Dropped]], limit: Limit) -> Iterator[Fitted]:
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


def _repaired(plan: Fitted, limit: Limit) -> Iterator[Fitted]:
    """Yield plans, each of which has more room where the one before lacked some."""
    for _ in range(_REPAIRS):
        if (
            plan.cycles <= plan.program.begins[-1]
            or limit.is_over()
            or not plan.residency.relieve(plan.lacks)
        ):
            return
        plan = _fitted(plan.program, plan.residency, plan.rule, Windows(plan.program, plan.residency))
        yield plan


def _plans(program: Program) -> Iterator[Fitted]:
    known = list[set[int]]()
    for stall_first, headroom in product((True, False), (True, False)):
        residency = Residency(program, stall_first=stall_first, headroom=headroom)
        if residency.cut not in known:
            known.append(set(residency.cut))
            windows = Windows(program, residency)
            yield from (_fitted(program, residency, rule, windows) for rule in RULES)


def _fitted(
    program: Program, residency: Residency, rule: Callable[[Windows], Arrivals], windows: Windows
) -> Fitted:
    replay = Replay(program, residency, rule(windows))
    cycles = replay.cycles()
    return Fitted(program, residency, rule, replay.arrivals, cycles, replay.lacks)
