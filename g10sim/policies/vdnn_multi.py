"""Offloading of layers on several GPUs that share links: a ladder from vDNN to planning for contention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import get_args

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.base import Action, Evict, Policy, PolicyView, Synchronize, Trials
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.registry import register_policy
from g10sim.policies.vdnn_multi_planning.ladder import (
    CHOSEN_BY_TRIAL,
    LADDER,
    Arbitration,
    Offload,
    Prefetching,
    Step,
)
from g10sim.policies.vdnn_multi_planning.offload_set import OffloadSet, by_window, just_in_time
from g10sim.policies.vdnn_multi_planning.rescue import Rescue
from g10sim.policies.vdnn_multi_planning.search import Plan, Search
from g10sim.policies.vdnn_multi_planning.shares import fair_share
from g10sim.policies.vdnn_multi_planning.steering import Steering
from g10sim.policies.vdnn_multi_planning.timeline import Timeline
from g10sim.policies.vdnn_planning.design import Allocator, LayerWise, Order, check_choice, check_flag
from g10sim.policies.vdnn_planning.layers import layers_of
from g10sim.policies.vdnn_planning.schedule import Schedule, make_schedule, schedule_of
from g10sim.policies.vdnn_planning.selection import heavy_kind, managed_layers
from g10sim.records import Location
from g10sim.trace.workload import Job, Workload


@register_policy
class VdnnMulti(LayerWise):
    """Layer-wise offloading of several GPUs that share links to host memory; a reading of an abstract.

    The paper's algorithm is not public. This is a ladder from vDNN on, of which every step adds something:

    - K0 offloads nothing
    - K1 is vDNN_conv on every GPU by itself
    - K2 does without the join at the end of layers
    - K3 offloads what memory asks for and fair shares of the links can carry, and serves copies one at a
      time, the most urgent first
    - K4 issues prefetches as late as hides them, no earlier than memory allows

    K3 and K4 begin with that and end with the fastest plan that trial iterations find among those that the
    ladder up to them makes up (:class:`.vdnn_multi_planning.search.Search`).

    Parameters
    ----------
    ladder
        The step, K0 to K4, from which the parameters that are not given follow.
    offload
        Layers that offload: ``none``, ``conv``, or ``contention_aware``.
    layer_end_join
        Whether a layer ends only with the copies that it issued.
    arbitration
        How copies share links: ``fair``, ``first_come``, ``deadline``, or as the ``machine`` says.
    prefetch
        When to prefetch: by vDNN's ``window``, or ``planned``.
    feedback
        Whether planned prefetches move when they were late or early in the iteration before.
    headroom
        Share of GPU memory that the offload set leaves free for fragmentation; without it trial iterations
        decide on that, and on K3 and K4 on all parameters above that are not given.
    allocator, order, fuse_activations
        As for vDNN.
    """

    name = "vdnn_multi"
    label = "vDNN multi-GPU"
    paper = (
        "after Kim et al., Efficient Multi-GPU Memory Management for Deep Learning Acceleration, FAS*W 2018"
    )
    keeps_host_buffers = True

    def __init__(
        self,
        *,
        ladder: Step = "K4",
        offload: Offload | None = None,
        layer_end_join: bool | None = None,
        arbitration: Arbitration | None = None,
        prefetch: Prefetching | None = None,
        feedback: bool = True,
        headroom: float | None = None,
        allocator: Allocator | dict[str, object] = "best_fit",
        order: Order = "prefetch_first",
        fuse_activations: bool = True,
    ) -> None:
        super().__init__(mode="none", allocator=allocator, order=order, fuse_activations=fuse_activations)
        self.ladder, self.offload, self.layer_end_join = ladder, offload, layer_end_join
        self.arbitration, self.prefetch = arbitration, prefetch
        self.feedback, self.headroom = feedback, headroom
        self._check()
        step = LADDER[ladder]
        self._offloads = offload or step.offload
        self._joins = step.layer_end_join if layer_end_join is None else layer_end_join
        service = arbitration or step.arbitration
        self.link_service = None if service == "machine" else service
        self._plans_prefetches = (prefetch or step.prefetch) == "planned"
        self._ideal_cycles: list[int] = []
        self._steerings: list[Steering] = []
        self._rescues: list[Rescue] = []
        self._backward_ends: list[set[int]] = []
        self._by_job: dict[tuple[int, int], Schedule] = {}

    def _check(self) -> None:
        check_choice("ladder", self.ladder, get_args(Step))
        for key, kind in (
            ("offload", Offload),
            ("arbitration", Arbitration),
            ("prefetch", Prefetching),
        ):
            if getattr(self, key) is not None:
                check_choice(key, getattr(self, key), get_args(kind))
        if self.layer_end_join is not None:
            check_flag("layer_end_join", self.layer_end_join)
        check_flag("feedback", self.feedback)
        share = self.headroom
        if share is not None and (
            isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1
        ):
            raise ValueError(f"headroom: found {share!r}; allowed: a number from 0 to less than 1")

    def settle(self, obstacle: Trials) -> Policy:
        """Choose by trial iterations what is left open, with an offload set that memory asks for."""
        if self.headroom is not None or self._offloads != "contention_aware":
            return self
        search = Search(partial(self._speed, obstacle), self._given())
        return self._variant(search.best(self.ladder))

    def _given(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in LADDER[self.ladder].__annotations__}
        return {name: value for name, value in values.items() if value is not None}

    def _speed(self, obstacle: Trials, plan: Plan) -> float:
        """Mean over jobs of ideal over actual time; 0 when the plan cannot be carried out."""
        design = self._variant(plan)
        cycles = obstacle.cycles(design)
        if cycles is None:
            return 0.0
        return fmean(ideal / took for ideal, took in zip(design._ideal_cycles, cycles, strict=True))

    def _variant(self, plan: Plan) -> VdnnMulti:
        return type(self)(**{**self.parameters(), **vars(plan)})

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Decide what every job offloads; it is carried out kernel by kernel."""
        gpus = {job.gpu for job in workload.jobs}
        alike: dict[tuple[int, int], Schedule] = {}
        self._by_job = {}
        for job in workload.jobs:
            rate = fair_share(system, job.gpu, gpus)
            key = id(job.trace), rate
            if key not in alike:
                alike[key] = self._schedule_for(job, system, rate)
            self._by_job[id(job.trace), job.gpu] = alike[key]
        self._schedules = [self._schedule_of(job) for job in workload.jobs]
        self._steerings = [
            self._steering(job, schedule, system, fair_share(system, job.gpu, gpus))
            for job, schedule in zip(workload.jobs, self._schedules, strict=True)
        ]
        self._rescues = [Rescue(job.trace) for job in workload.jobs]
        self._backward_ends = [
            {layer.backward[-1] for layer in schedule.layers if layer.backward}
            for schedule in self._schedules
        ]
        clock = system.gpu.clock
        self._ideal_cycles = [
            sum(job.trace.duration_cycles(kernel, clock) for kernel in job.trace.kernels)
            for job in workload.jobs
        ]
        self._note = self._describe()
        return (None,) * len(workload.jobs)

    def _schedule_of(self, job: Job) -> Schedule:
        return self._by_job[id(job.trace), job.gpu]

    def _budget(self, system: SystemSpec) -> int:
        return int(system.gpu.memory * (1 - (self.headroom or 0)))

    def _schedule_for(self, job: Job, system: SystemSpec, rate: int) -> Schedule:
        trace = job.trace
        if self._offloads != "contention_aware":
            return make_schedule(trace, self._offloads, fuse_activations=self.fuse_activations)
        clock, page = system.gpu.clock, system.gpu.page_size
        layers = layers_of(trace, fuse_activations=self.fuse_activations)
        heavy = heavy_kind(layers)
        durations = [trace.duration_cycles(kernel, clock) for kernel in trace.kernels]
        timeline = Timeline(trace, durations, page)
        returns = just_in_time(timeline) if self._plans_prefetches else by_window(layers, heavy)
        offload_set = OffloadSet(timeline, self._budget(system), heavy)
        chosen = offload_set.choose(
            managed_layers(layers, heavy), partial(_copy_cycles, clock, rate), returns
        )
        return schedule_of(trace, layers, heavy, chosen)

    def _steering(self, job: Job, schedule: Schedule, system: SystemSpec, rate: int) -> Steering:
        return Steering(
            job.trace,
            schedule.layers,
            list(schedule.offloads.values()),
            system.gpu.page_size,
            self._budget(system),
            partial(_copy_cycles, system.gpu.clock, rate),
            feedback=self.feedback,
        )

    def _describe(self) -> str:
        if self.ladder not in CHOSEN_BY_TRIAL:
            return ""
        counts = sorted({len(schedule.offloads) for schedule in self._schedules})
        plan = [f"{' or '.join(map(str, counts))} layers offload"]
        if self._offloads == "contention_aware":
            plan.append(f"headroom {self.headroom or 0:.0%}")
        else:
            plan.append(f"offload {self._offloads}")
        step = LADDER[self.ladder]
        if self.arbitration not in (None, step.arbitration):
            plan.append(f"arbitration {self.arbitration}")
        if self.prefetch not in (None, step.prefetch):
            plan.append(f"prefetch by {self.prefetch}")
        return ", ".join([*plan, *(["layers join"] if self._joins else [])])

    def on_iteration_start(self, view: PolicyView) -> MigrationPlan | None:
        """Plan the prefetches of the iteration."""
        if self._plans_prefetches:
            self._steerings[view.job].start_iteration(view)
        return None

    def on_kernel_start(self, view: PolicyView) -> Iterable[Action]:
        """Offload what a layer reads as it begins, and prefetch what is due."""
        if not self._plans_prefetches:
            yield from super().on_kernel_start(view)
            return
        layer = self._schedules[view.job].offloads.get(view.kernel)
        if layer is not None:
            yield from self._offload(view, layer)
        yield from self._steerings[view.job].prefetches(view)

    def on_kernel_end(self, view: PolicyView) -> Iterable[Action]:
        """Let a layer end with the copies that it issued, where layers join."""
        if not self._joins:
            return
        schedule = self._schedules[view.job]
        if view.kernel in schedule.offload_ends:
            yield Synchronize(frozenset(schedule.offload_ends[view.kernel].inputs))
        if self._plans_prefetches:
            if view.kernel in self._backward_ends[view.job]:
                yield Synchronize(evictions=False, prefetches=True)
        elif view.kernel in schedule.fetch_ends:
            yield Synchronize(
                frozenset(schedule.fetch_ends[view.kernel].inputs), evictions=False, prefetches=True
            )

    def on_out_of_memory(self, view: PolicyView) -> Iterable[Action]:
        """Offload what is used farthest ahead, from step K3 on."""
        if self.ladder in CHOSEN_BY_TRIAL:
            victim = self._rescues[view.job].victim(view)
            if victim is not None:
                yield Evict(victim, Location.HOST)


def _copy_cycles(clock: int, rate: int, size_bytes: int) -> int:
    """Return the cycles that a copy takes at a rate."""
    return -(-size_bytes * clock // rate)
