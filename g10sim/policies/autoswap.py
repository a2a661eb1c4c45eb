"""AutoSwap: tensors that nobody uses around the load peak wait in host memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from g10sim.analysis.pools.search import ROUNDS
from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.autoswap_planning.link import copy_times
from g10sim.policies.autoswap_planning.moves import moves_of
from g10sim.policies.autoswap_planning.planner import MODES, SCORES, Mode, ScoreName, SwapPlan, plan_swaps
from g10sim.policies.autoswap_planning.pool import SwappedPool, plan_swapped_pool
from g10sim.policies.autoswap_planning.scores import SINGLE_SCORES
from g10sim.policies.autoswap_planning.timeline import whole_pages
from g10sim.policies.base import Action, Evict, Place, PlannedPlace, Policy, PolicyView
from g10sim.policies.farthest_use import farthest_idle
from g10sim.policies.g10_planning.machine import PlannedMachine, planned_machine
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.registry import register_policy
from g10sim.records import Location
from g10sim.registry import choices_text
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload
from g10sim.units import cycles_to_ms, format_bytes, parse_bytes

Pool: TypeAlias = Literal["planned", "first_fit", "caching"]
Target: TypeAlias = Literal["host", "flash"]

_PLACES: Mapping[str, Location] = {"host": Location.HOST, "flash": Location.FLASH}
_LOWER_LIMITS = tuple(1 - step / 50 for step in range(1, 11))
"""Shares of the limit that are tried while the pool takes more than the limit."""


@dataclass(frozen=True)
class PlannedSwaps:
    """A job's plan with what it is expected to do: the load in ``swaps``, its footprint in ``pool``."""

    swaps: SwapPlan
    pool: SwappedPool
    plan: MigrationPlan
    fits: bool
    clock_hz: int

    @property
    def overhead_ms(self) -> float:
        """Waits that the planner expects in an iteration, in ms."""
        return cycles_to_ms(self.swaps.schedule.overhead_cycles, self.clock_hz)


@register_policy
class AutoSwap(Policy):
    """Swaps tensors that nobody uses during the load peak, chosen by score, to a memory limit.

    Candidates are tensors with a use before and one after the kernel of the highest load. They are swapped
    in the order of their score until the load is within the limit, and scheduled on one channel for each
    direction. Memory is a pool, planned for the trace with these swaps (SmartPool): whole tensors
    are copied and need consecutive memory. Where kernels find no room all the same, the tensor whose next
    use is farthest away leaves.

    Parameters
    ----------
    score
        Order of candidates: ``doa``, ``aoa``, ``wdoa``, ``swdoa``, ``vote`` (majority of the first three), or
        ``combined`` (weights of the first four by Bayesian optimisation; extra ``bayesian``).
    mode
        ``stick_to_limit``: the limit is kept and kernels wait. ``no_overhead``: no kernel waits, and what
        memory that takes comes out.
    memory_limit
        Such as ``20 GiB``; none: GPU memory.
    pool
        ``planned``: SmartPool's addresses; ``first_fit``: first fit, swapped tensors at the other end;
        ``caching``: the pool of PyTorch.
    target
        Where tensors wait, ``host`` or ``flash``.
    least_tensor
        Smallest tensor that is swapped (the authors': 1 MiB).
    seed
        Of the search for the combined score.
    """

    name = "autoswap"
    label = "AutoSwap"
    paper = "Zhang et al., Efficient Memory Management for GPU-based Deep Learning Systems, arXiv 1903.06631"
    placement = "contiguous"

    def __init__(
        self,
        *,
        score: ScoreName = "swdoa",
        mode: Mode = "stick_to_limit",
        memory_limit: str | None = None,
        pool: Pool = "planned",
        target: Target = "host",
        least_tensor: str = "1 MiB",
        seed: int = 0,
    ) -> None:
        _check_choice("score", score, SCORES)
        _check_choice("mode", mode, MODES)
        _check_choice("pool", pool, get_args(Pool))
        _check_choice("target", target, tuple(_PLACES))
        self.score: ScoreName = score
        self.mode: Mode = mode
        self.memory_limit = memory_limit
        self.pool: Pool = pool
        self.target: Target = target
        self.least_tensor = least_tensor
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed: found {seed!r}; allowed: a whole number from 0")
        self.seed = seed
        self._limit_bytes = None if memory_limit is None else _parsed("memory_limit", memory_limit)
        self._least_bytes = _parsed("least_tensor", least_tensor)
        self.caching_pool = CachingPoolSpec() if pool == "caching" else None
        self._planned: tuple[PlannedSwaps, ...] = ()

    @property
    def planned(self) -> tuple[PlannedSwaps, ...]:
        """What was planned last, for every job."""
        return self._planned

    @property
    def note(self) -> str:
        """What the planner expects."""
        return "; ".join(_expectation(planned) for planned in self._planned)

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Plan every job; jobs on several GPUs share links evenly. Raises UnsupportedError."""
        gpus = frozenset(job.gpu for job in workload.jobs)
        self._planned = tuple(self._plan(job, system, behaviour, gpus) for job in workload.jobs)
        return tuple(planned.plan for planned in self._planned)

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan:
        """Plan one job that has the machine to itself. Raises UnsupportedError."""
        return self.plan(Workload((job,)), system, behaviour)[0]

    def places(
        self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec
    ) -> Sequence[Place | PlannedPlace]:
        """Return SmartPool's addresses, or ends of memory: right for what is swapped, left for the rest."""
        if self.pool == "caching":
            return (Place.BEST,) * len(job.trace.tensors)
        planned = next((planned for planned in self._planned if planned.plan is plan), None)
        if planned is not None and self.pool == "planned":
            fallback = None if planned.fits else Place.RIGHT
            return [
                PlannedPlace(found, fallback) if found else Place.RIGHT
                for found in planned.pool.addresses_bytes
            ]
        swapped = {move.tensor for move in plan.moves} if plan is not None else set()
        return [Place.RIGHT if tensor.id in swapped else Place.LEFT for tensor in job.trace.tensors]

    def on_out_of_memory(self, view: PolicyView) -> Iterable[Action]:
        """Let the tensor leave whose next use is farthest away."""
        victim = farthest_idle(view)
        return () if victim is None else (Evict(victim, _PLACES[self.target]),)

    def _plan(
        self, job: Job, system: SystemSpec, behaviour: BehaviourSpec, gpus: Collection[int]
    ) -> PlannedSwaps:
        """Plan a job. The combined score also has to do better than each single one with its own pool."""
        machine = planned_machine(system, behaviour, gpus, job.gpu)
        trace = whole_pages(job.trace, machine.page_bytes)
        wanted = machine.gpu_bytes if self._limit_bytes is None else self._limit_bytes
        wanted = min(wanted, machine.gpu_bytes)
        best = self._plan_with_pool(trace, machine, wanted, self.score)
        if self.score == "combined" and self._cost(best, wanted) > (False, 0):
            others = [self._plan_with_pool(trace, machine, wanted, name) for name in SINGLE_SCORES]
            best = min([best, *others], key=lambda found: self._cost(found, wanted))
        self._check_fit(trace, machine, best.swaps)
        return best

    def _cost(self, planned: PlannedSwaps, limit_bytes: int) -> tuple[bool, int]:
        """Whether the pool exceeds the limit, then the waits; without overhead, the load above the limit."""
        schedule = planned.swaps.schedule
        excess = max(0, schedule.peak_bytes - limit_bytes)
        waits = excess if self.mode == "no_overhead" else schedule.overhead_cycles
        return self.pool == "planned" and planned.pool.footprint_bytes > limit_bytes, waits

    def _plan_with_pool(
        self, trace: Trace, machine: PlannedMachine, wanted: int, score: ScoreName
    ) -> PlannedSwaps:
        """Plan to the limit, and to less where the pool would take more than that for it."""
        best = self._plan_to(trace, machine, score, wanted, wanted)
        for share in _LOWER_LIMITS:
            limit = round(wanted * share)
            fits = best.pool.footprint_bytes <= wanted or self.pool != "planned"
            if fits or limit < best.swaps.least_peak_bytes or best.swaps.schedule.peak_bytes > wanted:
                break
            planned = self._plan_to(trace, machine, score, limit, wanted, best.swaps.weights)
            best = min(best, planned, key=lambda found: found.pool.footprint_bytes)
        return best

    def _plan_to(
        self,
        trace: Trace,
        machine: PlannedMachine,
        score: ScoreName,
        limit_bytes: int,
        pool_bytes: int,
        weights: Mapping[str, float] | None = None,
    ) -> PlannedSwaps:
        """Plan the swaps to a limit, and a pool of at most ``pool_bytes`` if that can be."""
        place = _PLACES[self.target]
        swaps = plan_swaps(
            trace,
            machine.clock_hz,
            copy_times(machine, place),
            limit_bytes,
            score=score,
            mode=self.mode,
            least_bytes=self._least_bytes,
            seed=self.seed,
            weights=weights,
        )
        target = max(pool_bytes, swaps.schedule.peak_bytes)
        rounds = ROUNDS if self.pool == "planned" and weights is None else 0
        pool = plan_swapped_pool(trace, swaps.schedule.swaps, machine.page_bytes, target, rounds)
        moves = moves_of(swaps.schedule.swaps, len(trace.kernels), place)
        fits = pool.footprint_bytes <= machine.gpu_bytes
        return PlannedSwaps(swaps, pool, MigrationPlan(moves, self.name), fits, machine.clock_hz)

    def _check_fit(self, trace: Trace, machine: PlannedMachine, swaps: SwapPlan) -> None:
        if swaps.schedule.peak_bytes <= machine.gpu_bytes:
            return
        how = "without overhead" if self.mode == "no_overhead" else "with every candidate away"
        raise UnsupportedError(
            f"policy '{self.name}': '{trace.model}' needs {format_bytes(swaps.schedule.peak_bytes)} {how}; "
            f"the GPU has {format_bytes(machine.gpu_bytes)}"
        )


def _check_choice(parameter: str, value: object, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{parameter}: found {value!r}; allowed: {choices_text(allowed)}")


def _parsed(parameter: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"{parameter}: {error}") from None


def _expectation(planned: PlannedSwaps) -> str:
    schedule = planned.swaps.schedule
    return (
        f"{len(schedule.swaps)} of {len(planned.swaps.candidates)} candidates swapped; expected: "
        f"{planned.overhead_ms:.3f} ms of waits, load {format_bytes(schedule.peak_bytes)}, "
        f"pool {format_bytes(planned.pool.footprint_bytes)}"
    )
