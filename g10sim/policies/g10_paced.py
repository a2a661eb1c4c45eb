"""G10 with plans in the time that the GPU will really take, and a choice among them by simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal, TypeAlias

from g10sim.analysis.timeline import kernel_durations
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.base import JointPolicy, Policy, PolicyView, Trials
from g10sim.policies.g10_planning.draft import PlannerOptions, PlanningParameters
from g10sim.policies.g10_planning.planner import draft_g10, to_plan
from g10sim.policies.g10_planning.recovery import Recovery
from g10sim.policies.moves import Move
from g10sim.policies.parameters import Count, parameter
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.planning.machine import PlannedMachine, planned_machines
from g10sim.policies.registry import register_policy
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload

Method: TypeAlias = Literal["fastest", "paced", "unpaced", "published"]


@register_policy
class G10Paced(PlannerOptions, JointPolicy):
    """G10's plan in the time that the GPU will really take, or without, whichever is faster.

    The paced plan counts the stalls that it expects; the unpaced one is that of the policy g10. What leaves
    the GPU against a plan may be fetched back ahead of use. Trial iterations of all of them decide, and where
    an SSD is needed of those of the published planner, too; of equals the simplest is taken.
    """

    name = "g10_paced"
    label = "G10 paced"
    look = Look("#117733", "//||", "8", "2 2")
    paper = (
        "G10 (Zhang et al., MICRO 2023) with plans that count stalls, chosen by simulation: this project's"
    )

    method: Method = parameter(default="fastest")
    """How to plan; ``fastest``: trial iterations decide."""
    pacing_rounds: int = parameter(
        default=20,
        ge=1,
        le=100,
        effect=Effect(
            lambda run, policy: policy.method in ("fastest", "paced"),
            "with method fastest or paced",
            "no plan is paced",
        ),
    )
    """Most rounds of planning with the stalls that the round before expects."""
    recovery_look_ahead: Count = parameter(default=128)
    """Kernels ahead of which tensors are fetched back that left the GPU against the plan; 0: page faults do
    it. With method fastest trial iterations decide between the two."""

    def _set_up(self) -> None:
        self._recoveries: tuple[Recovery, ...] = ()
        self._ideal_cycles: list[int] = []
        self._weighs_published = False

    def settle(self, obstacle: Trials) -> Policy:
        """Choose the fastest plan by trial iterations."""
        if self.method != "fastest":
            return self
        look_aheads = tuple(dict.fromkeys((0, self.recovery_look_ahead)))
        designs = [self._variant(method, ahead) for method in ("unpaced", "paced") for ahead in look_aheads]
        speeds = [design._speed(obstacle) for design in designs]
        if designs[0]._weighs_published:
            published = [self._variant("published", ahead) for ahead in look_aheads]
            speeds += [design._speed(obstacle) for design in published]
            designs += published
        return designs[speeds.index(max(speeds))]

    def _variant(self, method: Method, look_ahead: int) -> G10Paced:
        return type(self)(**{**self.parameters(), "method": method, "recovery_look_ahead": look_ahead})

    def _speed(self, obstacle: Trials) -> float:
        """Mean over jobs of ideal over actual time; 0 when the plan cannot be carried out."""
        cycles = obstacle.cycles(self, until_steady=True)
        if cycles is None:
            return 0.0
        return fmean(ideal / took for ideal, took in zip(self._ideal_cycles, cycles, strict=True))

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Plan every job; they share links, host memory, SSD, and GPUs that they are on together, evenly."""
        parameters = PlanningParameters(
            **self.parameters_of(PlannerOptions),
            planner="published" if self.method == "published" else "live",
            published_order=behaviour.planner == "published",
            pacing_rounds=1 if self.method == "unpaced" else self.pacing_rounds,
        )
        plans, recoveries, tiers = [], [], set[str]()
        for job, machine in zip(workload.jobs, planned_machines(workload, system, behaviour), strict=True):
            draft = draft_g10(*self._counted(job.trace, machine, behaviour), parameters)
            plans.append(to_plan(draft, job.trace, parameters))
            tiers.update(eviction.tier.kind for eviction in draft.evictions)
            kernels = [kernel.tensors for kernel in job.trace.kernels]
            recoveries.append(Recovery(draft, kernels, system.gpu.memory))
        self._recoveries = tuple(recoveries)
        self._weighs_published = "ssd" in tiers or behaviour.planner == "published"
        clock = system.gpu.clock
        self._ideal_cycles = [int(kernel_durations(job.trace, clock).sum()) for job in workload.jobs]
        return tuple(plans)

    def _counted(
        self, trace: Trace, machine: PlannedMachine, behaviour: BehaviourSpec
    ) -> tuple[Trace, PlannedMachine]:
        """Leave out what the published planner counts, or refuses, although it is never used.

        Those are tensors behind the last one in use, and further tiers without room.
        """
        if self.method != "published" or behaviour.planner == "published":
            return trace, machine
        count = max(tensor for kernel in trace.kernels for tensor in kernel.tensors) + 1
        tiers = tuple(tier for tier in machine.tiers if tier.capacity_bytes or tier == machine.tiers[0])
        return replace(trace, tensors=trace.tensors[:count]), replace(machine, tiers=tiers)

    @property
    def note(self) -> str:
        """The plan that was chosen."""
        recovery = f"recovery {self.recovery_look_ahead} kernels ahead" if self.recovery_look_ahead else ""
        return ", ".join(filter(None, (f"plan {self.method}", recovery)))

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Fetch back what left the GPU against the plan."""
        if not self.recovery_look_ahead or view.job >= len(self._recoveries):
            return ()
        return self._recoveries[view.job].prefetches(view, self.recovery_look_ahead)
