"""AutoSwap: tensors that nobody uses around the load peak wait in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from g10sim.analysis.pools.placement import ROUNDS
from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.looks import WHITE, Look
from g10sim.policies.designs.autoswap.planner import (
    Mode,
    ScoreName,
    SwappedPool,
    SwapPlan,
    SwapPlanner,
    plan_of,
    plan_swapped_pool,
)
from g10sim.policies.designs.autoswap.scores import SINGLE_SCORES
from g10sim.policies.designs.autoswap.timeline import whole_pages
from g10sim.policies.designs.farthest_use import WholeTensors, WholeTensorsJob
from g10sim.policies.interface import MigrationPlan, Place, PlannedMachine, PlannedPlace, Requirements
from g10sim.policies.interface.parameters import Count, Size, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.limit import Limited, TimeLimit
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job
from g10sim.units import cycles_to_ms, format_bytes, parse_bytes

Pool: TypeAlias = Literal["planned", "first_fit", "caching"]
Target: TypeAlias = Literal["host", "ssd", "flash"]

_COMBINED = Effect(
    lambda run, policy: policy.score == "combined", "with score combined", "no other score is searched for"
)
_LOWER_LIMITS = tuple(1 - step / 50 for step in range(1, 11))
"""Shares of the limit that are tried while the pool takes more than the limit."""


class PlannedSwaps(WholeTensorsJob):
    """A job's plan with what it is expected to do: the load in ``swaps``, its footprint in ``pool``."""

    def __init__(
        self, plan: MigrationPlan, tier: str, swaps: SwapPlan, pool: SwappedPool, machine: PlannedMachine
    ) -> None:
        super().__init__(plan, tier)
        self.swaps, self.pool, self.clock_hz = swaps, pool, machine.clock_hz
        self.fits = pool.footprint_bytes <= machine.gpu_bytes


@register_policy
class AutoSwap(Limited, WholeTensors):
    """Swaps tensors that nobody uses during the load peak, chosen by score, to a memory limit.

    Candidates are tensors with a use before and one after the kernel of the highest load. They are swapped
    in the order of their score until the load is within the limit, and scheduled on one channel for each
    direction. Memory is a pool, planned for the trace with these swaps (SmartPool): whole tensors
    are copied and need consecutive memory. Where kernels find no room all the same, the tensor whose next
    use is farthest away leaves.
    """

    name = "autoswap"
    label = "AutoSwap"
    look = Look(WHITE, "||||", "<", "-.")
    paper = "Zhang et al., Efficient Memory Management for GPU-based Deep Learning Systems, arXiv 1903.06631"

    score: ScoreName = parameter(default="swdoa", published="vote, the last version of the authors' code")
    """Order of candidates: ``doa``, ``aoa``, ``wdoa``, ``swdoa``, ``vote`` (majority of the first three), or
    ``combined`` (weights of the first four by Bayesian optimisation; extra ``bayesian``)."""
    mode: Mode = parameter(default="stick_to_limit")
    """``stick_to_limit``: the limit is kept and kernels wait. ``no_overhead``: no kernel waits, and what
    memory that takes comes out; GPU memory too small for its pool is refused."""
    memory_limit: Size | None = parameter(default=None)
    """Limit of the load; none: GPU memory."""
    pool: Pool = parameter(default="planned", published="planned, paper (SmartPool)")
    """``planned``: SmartPool's addresses; ``first_fit``: first fit, swapped tensors at the other end;
    ``caching``: the pool of PyTorch."""
    target: Target = parameter(default="host", published="host, paper")
    """Tier in which tensors wait."""
    least_tensor: Size = parameter(default="1 MiB", published="1 MiB, the authors' code")
    """Smallest tensor that is swapped."""
    seed: Count = parameter(default=0, effect=_COMBINED)
    """Of the search for the combined score."""

    job_class = PlannedSwaps

    @property
    def requirements(self) -> Requirements:
        """Contiguous memory, from a caching pool if that is chosen."""
        pool = CachingPoolSpec() if self.pool == "caching" else None
        return Requirements(placement="contiguous", caching_pool=pool)

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> PlannedSwaps:
        """Plan a job. The combined score also has to do better than each single one with its own pool.

        Raises UnsupportedError.
        """
        self._time = TimeLimit(self.planning_limit)
        trace, tier = whole_pages(job.trace, machine.page_bytes), machine.tier(self.target)
        least = parse_bytes(self.least_tensor)
        planner = SwapPlanner(
            trace, machine.clock_hz, tier, mode=self.mode, least_bytes=least, seed=self.seed
        )
        wanted = machine.gpu_bytes
        if self.memory_limit is not None:
            wanted = min(wanted, parse_bytes(self.memory_limit))
        best = self._plan_with_pool(planner, machine, wanted, self.score)
        if self.score == "combined" and self._cost(best, wanted) > (False, 0):
            others = [self._plan_with_pool(planner, machine, wanted, name) for name in SINGLE_SCORES]
            best = min([best, *others], key=lambda found: self._cost(found, wanted))
        self._check_fit(job.trace, machine, best)
        best.note = "; ".join(filter(None, (_expectation(best), self._time.note)))
        return best

    def places(
        self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec
    ) -> Sequence[Place | PlannedPlace]:
        """Return SmartPool's addresses, or ends of memory: right for what is swapped, left for the rest."""
        if self.pool == "caching":
            return (Place.BEST,) * len(job.trace.tensors)
        planned = next((planned for planned in self.jobs if planned.plan is plan), None)
        if planned is not None and self.pool == "planned":
            fallback = None if planned.fits else Place.RIGHT
            addresses = planned.pool.addresses_bytes
            return [PlannedPlace(found, fallback) if found else Place.RIGHT for found in addresses]
        return super().places(job, plan, behaviour)

    def _cost(self, planned: PlannedSwaps, limit_bytes: int) -> tuple[bool, int]:
        """Rank by whether the pool exceeds the limit, then by waits (without overhead: excess load)."""
        schedule = planned.swaps.schedule
        excess = max(0, schedule.peak_bytes - limit_bytes)
        waits = excess if self.mode == "no_overhead" else schedule.overhead_cycles
        return self.pool == "planned" and planned.pool.footprint_bytes > limit_bytes, waits

    def _plan_with_pool(
        self, planner: SwapPlanner, machine: PlannedMachine, wanted: int, score: ScoreName
    ) -> PlannedSwaps:
        """Plan to the limit, and to less where the pool would take more than that for it."""
        best = self._with_pool(planner.trace, machine, wanted, planner.plan(wanted, score), ROUNDS)
        for share in _LOWER_LIMITS:
            limit = round(wanted * share)
            fits = best.pool.footprint_bytes <= wanted or self.pool != "planned"
            may_fit = best.swaps.least_peak_bytes <= limit and best.swaps.schedule.peak_bytes <= wanted
            if fits or self._time.is_over() or not may_fit:
                break
            swaps = planner.plan(limit, score, best.swaps.weights)
            planned = self._with_pool(planner.trace, machine, wanted, swaps)
            best = min(best, planned, key=lambda found: found.pool.footprint_bytes)
        return best

    def _with_pool(
        self, trace: Trace, machine: PlannedMachine, wanted: int, swaps: SwapPlan, rounds: int = 0
    ) -> PlannedSwaps:
        """Place swaps in a pool of at most ``wanted`` bytes if that can be, by ``rounds`` of local search."""
        schedule = swaps.schedule
        target = max(wanted, schedule.peak_bytes)
        is_refused = self.mode == "stick_to_limit" and schedule.peak_bytes > machine.gpu_bytes
        rounds = 0 if self.pool != "planned" or is_refused else rounds
        pool = plan_swapped_pool(trace, schedule.swaps, machine.page_bytes, target, rounds)
        tier = machine.tier(self.target).name
        return PlannedSwaps(plan_of(schedule.swaps, len(trace.kernels), tier), tier, swaps, pool, machine)

    def _check_fit(self, trace: Trace, machine: PlannedMachine, planned: PlannedSwaps) -> None:
        """Refuse what cannot be kept: the load, or without overhead the pool, which would have to wait."""
        needed, how = planned.swaps.schedule.peak_bytes, "with every candidate away"
        if self.mode == "no_overhead":
            how = "without overhead"
            if self.pool == "planned" and not planned.fits:
                needed, how = planned.pool.footprint_bytes, "for its pool without overhead"
        if needed > machine.gpu_bytes:
            raise UnsupportedError(
                f"policy '{self.name}': '{trace.model}' needs {format_bytes(needed)} {how}; "
                f"the GPU has {format_bytes(machine.gpu_bytes)}"
            )


def _expectation(planned: PlannedSwaps) -> str:
    schedule = planned.swaps.schedule
    return (
        f"{len(schedule.swaps)} of {len(planned.swaps.candidates)} candidates swapped; expected: "
        f"{cycles_to_ms(schedule.overhead_cycles, planned.clock_hz):.3f} ms of waits, "
        f"load {format_bytes(schedule.peak_bytes)}, pool {format_bytes(planned.pool.footprint_bytes)}"
    )
