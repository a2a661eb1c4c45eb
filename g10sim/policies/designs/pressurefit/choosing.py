"""Of all plans the one that simulates as fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from operator import attrgetter

from g10sim.policies.designs.pressurefit.arriving import RULES, Arrivals, arrivals
from g10sim.policies.designs.pressurefit.replay import Replay
from g10sim.policies.designs.pressurefit.residency import Residency
from g10sim.policies.designs.pressurefit.tasks import Program
from g10sim.policies.planning.limit import Limit

_REPAIRS = 16
"""Times that the best plan gets more room where it lacked some; the source repairs every plan, 256 times."""


@dataclass(frozen=True)
class Fitted:
    """A plan for a share of blocks that are computed again: when tensors are asked for, and its cycles."""

    program: Program
    share: float
    residency: Residency
    rule: Callable[..., Arrivals]
    arrivals: Arrivals
    cycles: float
    lacks: Mapping[int, int]


def fastest(programs: Mapping[float, Program], limit: Limit) -> Fitted:
    """Return the fastest plan of the programs of some shares, or of those that there was time for."""
    plans = _plans(programs)
    best = next(plans)
    least = min(int(program.begins[-1]) for program in programs.values())
    while best.cycles > least and not limit.is_over() and (found := next(plans, None)):
        best = min(best, found, key=attrgetter("cycles"))
    tried = best
    for _ in range(_REPAIRS):
        if best.cycles <= least or limit.is_over() or not tried.residency.relieve(tried.lacks):
            break
        tried = _fitted(tried.program, tried.share, tried.residency, tried.rule)
        best = min(best, tried, key=attrgetter("cycles"))
    return best


def _plans(programs: Mapping[float, Program]) -> Iterator[Fitted]:
    for share, program in programs.items():
        known = list[set[int]]()
        for stall_first, headroom in product((True, False), (True, False)):
            residency = Residency(program, stall_first=stall_first, headroom=headroom)
            if residency.cut not in known:
                known.append(set(residency.cut))
                yield from (_fitted(program, share, residency, rule) for rule in RULES)


def _fitted(program: Program, share: float, residency: Residency, rule: Callable[..., Arrivals]) -> Fitted:
    replay = Replay(program, residency, arrivals(rule, program, residency))
    cycles = replay.cycles()
    return Fitted(program, share, residency, rule, replay.arrivals, cycles, replay.lacks)
