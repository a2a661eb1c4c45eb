"""Pressure: evict just in time what the worst kernel to come lacks, fetch in the order of need what fits."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Literal

from g10sim.analysis.bound.demand import demand_of
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.designs.pressure.dropping import chosen_drops
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.designs.pressure.repeating import Repeating
from g10sim.policies.designs.pressure.shortage import Settings
from g10sim.policies.designs.pressure.steering import Steering
from g10sim.policies.interface.machine import planned_machines
from g10sim.policies.interface.moves import Move
from g10sim.policies.interface.parameters import Count, Declared, Share, parameter
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy, PolicyView, Requirements
from g10sim.policies.interface.registry import register_policy
from g10sim.trace.workload import Workload


@register_policy
class Pressure(Declared, Policy):
    """Steers every move by a forecast of memory pressure, which reaches over the whole next iteration.

    The shortage of a kernel to come is what is alive then, less what lies elsewhere and is not needed
    before, less GPU memory. As long as any kernel has a shortage, tensors leave, those first that are needed
    last, but only as many at a time as the links carry until the next decision. Tensors return in the order
    of need, as soon as no kernel until then lacks the room. What a kernel will write is mapped ahead where
    there is room.
    """

    name = "pressure"
    label = "Pressure"
    look = Look("#882255", "oo", "p")
    paper = "g10sim: the policy that follows from its bound (docs/bound.md)"

    backlog: float = parameter(default=0.02, ge=0, le=10)
    """Seconds for which the links have evictions queued beyond the running kernel."""
    births: Count = parameter(default=4)
    """Kernels ahead of which new tensors are mapped."""
    horizon: Share = parameter(default=1.0)
    """Share of an iteration that the forecast reaches over."""
    recompute: bool = parameter(default=False)
    """Also drop tensors and compute them again."""
    keep_copies: bool = parameter(default=False)
    """Let pages that no kernel has written since they came go back without a transfer."""

    def _set_up(self) -> None:
        self._jobs: tuple[Steering | Repeating, ...] = ()

    @property
    def requirements(self) -> Requirements:
        """Dead pages are dropped; what is computed again has its own addresses."""
        addresses: Literal["own", "pooled"] = "own" if self.recompute else "pooled"
        return Requirements(drops_dead_tensors=True, addresses=addresses, keeps_copies=self.keep_copies)

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Forecast each job; all else is decided kernel by kernel."""
        machines = planned_machines(workload, system, behaviour)
        jobs: list[Steering | Repeating] = []
        for job, machine in zip(workload.jobs, machines, strict=True):
            settings = Settings(
                backlog_cycles=self.backlog * machine.clock_hz,
                births=self.births,
                horizon=max(2, int(self.horizon * len(job.trace.kernels))),
            )
            demand = demand_of(job.trace, machine.clock_hz, machine.page_bytes)
            drops = chosen_drops(job.trace, demand, machine) if self.recompute else ()
            forecast = Forecast(job.trace, machine, demand, drops)
            steering = partial(Steering, forecast, machine, settings)
            jobs.append(Repeating(forecast, machine, steering) if len(machines) == 1 else steering())
        self._jobs = tuple(jobs)
        return (None,) * len(workload.jobs)

    def state(self, view: PolicyView) -> Hashable:
        """Return the job's account of what is where, and whether an iteration is repeated."""
        return self._jobs[view.job].state(view)

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Let the job's account decide."""
        return self._jobs[view.job].moves(view)

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Wait for the room that the next kernel needs."""
        return self._jobs[view.job].waits(view)

    def choose_victims(self, view: PolicyView) -> Iterable[int]:
        """Name those that are needed last."""
        return self._jobs[view.job].victims(view)
