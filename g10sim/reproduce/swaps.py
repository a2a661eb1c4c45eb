"""AutoSwap on one trace at several memory limits: planned and simulated times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.autoswap.autoswap import AutoSwap, PlannedSwaps
from g10sim.policies.designs.autoswap.planner import Mode, ScoreName
from g10sim.policies.designs.autoswap.timeline import (
    find_candidates,
    least_peak_bytes,
    timeline_of,
    whole_pages,
)
from g10sim.sim.engine import run
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload

_ITERATIONS = 3
"""The first starts from a GPU that holds all weights; the last is reported."""


@dataclass(frozen=True, slots=True)
class SwapOutcome:
    """One limit and score. Cycles are those by which swaps lengthen an iteration.

    ``expected_cycles`` is the planner's own estimate, ``summed_waits_cycles`` that of the authors' planners,
    ``simulated_cycles`` the simulated value, None if it was not simulated or could not run; ``message`` gives
    the reason. ``plan`` is None if the limit cannot be kept.
    """

    limit_bytes: int
    score: str
    mode: str
    ideal_cycles: int
    plan: PlannedSwaps | None = None
    simulated_cycles: int | None = None
    peak_gpu_bytes: int | None = None
    message: str = ""

    def record(self) -> dict[str, Any]:
        """Return the columns of a table; sizes in bytes, times in cycles, empty where there is nothing."""
        schedule = None if self.plan is None else self.plan.swaps.schedule
        return {
            **{name: getattr(self, name) for name in ("limit_bytes", "score", "mode", "ideal_cycles")},
            "candidates": None if self.plan is None else len(self.plan.swaps.candidates),
            "swapped": None if schedule is None else len(schedule.swaps),
            "load_bytes": None if schedule is None else schedule.peak_bytes,
            "pool_bytes": None if self.plan is None else self.plan.pool.footprint_bytes,
            "expected_cycles": None if schedule is None else schedule.overhead_cycles,
            "summed_waits_cycles": None if schedule is None else schedule.summed_waits_cycles,
            **{name: getattr(self, name) for name in ("simulated_cycles", "peak_gpu_bytes", "message")},
        }


def load_range_bytes(trace: Trace, system: SystemSpec, least_bytes: int = 2**20) -> tuple[int, int]:
    """Return the load peak with every candidate away, were copies free, and with nothing swapped."""
    pages = whole_pages(trace, system.gpu.page_size)
    timeline = timeline_of(pages, system.gpu.clock)
    candidates = find_candidates(pages, timeline.peak, least_bytes)
    return least_peak_bytes(timeline, candidates), timeline.peak_bytes


def explore_swaps(
    trace: Trace,
    system: SystemSpec,
    limits_bytes: Iterable[int],
    scores: Iterable[ScoreName],
    mode: Mode = "stick_to_limit",
    *,
    simulates: bool = True,
) -> Iterator[SwapOutcome]:
    """Plan for, and simulate, a GPU with the memory of each limit."""
    ideal = sum(trace.durations_cycles(system.gpu.clock))
    names = tuple(scores)
    for limit in limits_bytes:
        machine = system.with_gpu_memory(limit)
        for score in names:
            yield _outcome(trace, machine, AutoSwap(score=score, mode=mode), ideal, simulates)


def _outcome(
    trace: Trace, system: SystemSpec, policy: AutoSwap, ideal_cycles: int, simulates: bool
) -> SwapOutcome:
    job = Job(trace, iterations=_ITERATIONS)
    found = SwapOutcome(system.gpu.memory, policy.score, policy.mode, ideal_cycles)
    try:
        policy.plan_job(job, system, BehaviourSpec())
        (plan,) = policy.jobs
        found = replace(found, plan=plan)
        if not simulates:
            return found
        last = run(Workload((job,)), system, policy).iterations[-1]
    except UnsupportedError as error:
        return replace(found, message=str(error))
    overhead = last.end - last.start - ideal_cycles
    return replace(found, simulated_cycles=overhead, peak_gpu_bytes=last.peak_gpu_bytes)
