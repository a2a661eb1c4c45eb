"""Offloading of layers on several GPUs that share links: a ladder from vDNN to planning for contention."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from functools import cache, partial

from g10sim.analysis.timeline import kernel_durations
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.looks import DARK_GREY, Look
from g10sim.policies.designs.vdnn.layers import (
    Schedule,
    heavy_kind,
    layers_of,
    make_schedule,
    managed_layers,
    schedule_of,
)
from g10sim.policies.designs.vdnn.vdnn import OFFLOADING, LayerWise, layer_joins
from g10sim.policies.designs.vdnn_multi.offload_set import (
    OffloadTimeline,
    by_window,
    just_in_time,
    layers_to_offload,
)
from g10sim.policies.designs.vdnn_multi.search import (
    CHOSEN_BY_TRIAL,
    LADDER,
    Arbitration,
    Offload,
    Plan,
    Prefetching,
    Search,
    Step,
)
from g10sim.policies.designs.vdnn_multi.steering import Rescue, SteeredJob
from g10sim.policies.interface import Await, MigrationPlan, Move, PlannedMachine, Policy, Requirements, Trials
from g10sim.policies.interface.machine import link_bandwidth
from g10sim.policies.interface.parameters import parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.limit import Limited, TimeLimit, speed
from g10sim.trace.workload import Job, Workload

_Key = tuple[int, int]
"""Trace of a job and its fair share of the links: those of jobs that offload alike."""
_TRIED_KERNELS = 60_000
"""Kernels of a trace times trials: those of long traces take seconds each, so that there are few."""
_MOST_KERNELS = 10_000
"""Kernels of the longest trace for which anything is tried out."""


_PLANNED = Effect(
    lambda run, policy: policy.offloads and policy.plans_prefetches,
    "with planned prefetches",
    "no prefetches are planned",
)
_WEIGHED = Effect(
    lambda run, policy: policy.offloads and (policy.weighs_memory or policy.plans_prefetches),
    "with offload contention_aware, or planned prefetches",
    "memory decides on no offloads and prefetches",
)


@register_policy
class VdnnMulti(Limited, LayerWise):
    """Layer-wise offloading of several GPUs that share links to host memory; a reading of an abstract.

    The paper's algorithm is not public. This is a ladder from vDNN on, of which every step adds something:

    - K0 offloads nothing
    - K1 is vDNN_conv on every GPU by itself
    - K2 does without the join at the end of layers
    - K3 offloads what memory asks for and fair shares of the links can carry, and serves copies one at a
      time, the most urgent first
    - K4 issues prefetches as late as hides them, no earlier than memory allows

    K3 and K4 begin with that and end with the fastest plan that trial iterations find among those that the
    ladder up to them makes up (:class:`.search.Search`). Traces of more than 10,000 kernels are not tried
    out.
    """

    name = "vdnn_multi"
    label = "vDNN multi-GPU"
    look = Look(DARK_GREY, "oooo", ">", ":")
    paper = (
        "after Kim et al., Efficient Multi-GPU Memory Management for Deep Learning Acceleration, FAS*W 2018"
    )

    ladder: Step = parameter(default="K4")
    """The step, K0 to K4, from which the parameters that are not given follow."""
    offload: Offload | None = parameter(default=None)
    """Layers that offload."""
    layer_end_join: bool | None = parameter(default=None, effect=OFFLOADING)
    """Let a layer end only with the copies that it issued."""
    arbitration: Arbitration | None = parameter(default=None)
    """Service of links; ``machine``: as the system says."""
    prefetch: Prefetching | None = parameter(default=None, effect=OFFLOADING)
    """Time of prefetches: by vDNN's ``window``, or ``planned``."""
    feedback: bool = parameter(default=True, effect=_PLANNED)
    """Move planned prefetches that were late or early in the iteration before."""
    headroom: float | None = parameter(default=None, ge=0, lt=1, effect=_WEIGHED)
    """Share of GPU memory that the offload set leaves free for fragmentation; without it trial iterations
    decide on that, and on K3 and K4 on all parameters above that are not given."""

    job_class = SteeredJob

    def _set_up(self) -> None:
        super()._set_up()
        self._chosen = replace(LADDER[self.ladder], **self._given())  # type: ignore[arg-type]
        self.plans_prefetches = self._chosen.prefetch == "planned"
        self._tried = ""

    @property
    def offloads(self) -> bool:
        """Return True if any layers offload, or tensors leave when a kernel finds no room."""
        return self._chosen.offload != "none" or self.ladder in CHOSEN_BY_TRIAL

    @property
    def weighs_memory(self) -> bool:
        """Return True if memory and links decide which layers offload."""
        return self._chosen.offload == "contention_aware"

    @property
    def requirements(self) -> Requirements:
        """Those of every layer-wise design, pinned buffers that are kept, and a service of links."""
        service = self._chosen.arbitration
        own = None if service == "machine" else service
        return replace(super().requirements, keeps_host_buffers=True, link_service=own)

    def settle(self, obstacle: Trials) -> Policy:
        """Choose by trial iterations what is left open, with an offload set that memory asks for."""
        if self.headroom is not None or not self.weighs_memory:
            return self
        self._check_tiers(obstacle.system)
        kernels = max(len(job.trace.kernels) for job in obstacle.workload.jobs)
        if kernels > _MOST_KERNELS:
            untried = type(self)(**{**self.parameters(), "headroom": 0.0})
            untried._tried = f"nothing tried with more than {_MOST_KERNELS:,} kernels"
            return untried
        time, offloading = TimeLimit(self.planning_limit), cache(partial(self._offloading, obstacle))

        def tried(plan: Plan, to_beat: float) -> float:
            return speed(self._variant(plan), obstacle, to_beat)

        key, trials = partial(_what_differs, offloading), _TRIED_KERNELS // kernels
        search = Search(tried, self._given(), key, trials, time)
        best = self._variant(search.best(self.ladder))
        best._tried = f"the fastest of {search.trials} trials" + (f", {time.note}" if time.note else "")
        return best

    def _given(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in LADDER[self.ladder].__annotations__}
        return {name: value for name, value in values.items() if value is not None}

    def _offloading(self, obstacle: Trials, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Return the first kernels of the layers that offload, for each job that is not like another."""
        schedules = self._variant(plan)._alike(obstacle.workload, obstacle.system)
        return tuple(tuple(one.kernels[0] for one in found.offloads) for found in schedules.values())

    def _variant(self, plan: Plan) -> VdnnMulti:
        return type(self)(**{**self.parameters(), **vars(plan)})

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Decide what every job offloads; it is carried out kernel by kernel."""
        self._check_tiers(system)
        self._schedules = self._alike(workload, system)
        plans = super().plan(workload, system, behaviour)
        self.note = self._describe()
        return plans

    def _alike(self, workload: Workload, system: SystemSpec) -> dict[_Key, Schedule]:
        """Return the schedules of jobs that are not alike, and note the fair shares of all GPUs."""
        gpus = {job.gpu for job in workload.jobs}
        self._rates = {gpu: fair_share(system, gpu, gpus) for gpu in gpus}
        distinct = {(id(job.trace), self._rates[job.gpu]): job for job in workload.jobs}
        return {key: self._schedule_for(job, system, key[1]) for key, job in distinct.items()}

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> SteeredJob:
        """Decide what a job offloads, as those like it; a layer waits for all that is planned to come."""
        trace, rate = job.trace, self._rates[job.gpu]
        schedule = self._schedules[id(trace), rate]
        arrivals = list[tuple[int, Move]]()
        if self.plans_prefetches:
            schedule, arrived = replace(schedule, fetches=()), Await(evictions=False, prefetches=True)
            arrivals = [(layer.backward[-1], arrived) for layer in schedule.layers if layer.backward]
        return SteeredJob(
            grouped(self._copies(trace, schedule)),
            grouped([*layer_joins(schedule), *arrivals]) if self._chosen.layer_end_join else {},
            schedule=schedule,
            trace=trace,
            planned=schedule.offloads if self.plans_prefetches else (),
            feedback=self.plans_prefetches and self.feedback,
            page_bytes=system.gpu.page_size,
            budget_bytes=self._budget(system),
            copy_cycles=partial(_copy_cycles, system.gpu.clock, rate),
            rescue=Rescue(trace) if self.ladder in CHOSEN_BY_TRIAL else None,
        )

    def _budget(self, system: SystemSpec) -> int:
        return int(system.gpu.memory * (1 - self._chosen.headroom))

    def _schedule_for(self, job: Job, system: SystemSpec, rate: int) -> Schedule:
        trace = job.trace
        if self._chosen.offload != "contention_aware":
            return make_schedule(trace, self._chosen.offload, fuse_activations=self.fuse_activations)
        clock, page = system.gpu.clock, system.gpu.page_size
        layers = layers_of(trace, fuse_activations=self.fuse_activations)
        heavy = heavy_kind(layers)
        timeline = OffloadTimeline(trace, kernel_durations(trace, clock), page)
        returns = just_in_time(timeline) if self.plans_prefetches else by_window(layers, heavy)
        managed, copy_cycles = managed_layers(layers, heavy), partial(_copy_cycles, clock, rate)
        chosen = layers_to_offload(timeline, managed, self._budget(system), heavy, copy_cycles, returns)
        return schedule_of(trace, layers, heavy, chosen)

    def _describe(self) -> str:
        if self.ladder not in CHOSEN_BY_TRIAL:
            return ""
        counts = sorted({len(schedule.offloads) for schedule in self._schedules.values()})
        step, chosen = LADDER[self.ladder], self._chosen
        words = [
            f"{' or '.join(map(str, counts))} layers offload",
            f"headroom {chosen.headroom:.0%}" if self.weighs_memory else f"offload {chosen.offload}",
            f"arbitration {chosen.arbitration}" if chosen.arbitration != step.arbitration else "",
            f"prefetch by {chosen.prefetch}" if chosen.prefetch != step.prefetch else "",
            "layers join" if chosen.layer_end_join else "",
            self._tried,
        ]
        return ", ".join(filter(None, words))


def fair_share(system: SystemSpec, gpu: int, busy: Collection[int]) -> int:
    """Return the rate between a GPU and host memory when all ``busy`` GPUs copy, in whole bytes/second."""
    return max(1, int(link_bandwidth(system, gpu, busy, counts_host_memory=True)))


def _what_differs(offloading: Callable[[Plan], tuple[tuple[int, ...], ...]], plan: Plan) -> Hashable:
    """Return what sets a plan apart: without layers that offload it is the service of links alone."""
    offloads = offloading(replace(plan, layer_end_join=False, arbitration="machine"))
    if not any(offloads):
        return plan.arbitration
    headroom = plan.headroom if plan.prefetch == "planned" else 0.0
    return replace(plan, offload="none", headroom=headroom), offloads


def _copy_cycles(clock: int, rate: int, size_bytes: int) -> int:
    """Return the cycles that a copy takes at a rate."""
    return -(-size_bytes * clock // rate)
