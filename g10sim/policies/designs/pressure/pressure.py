"""Pressure: evict just in time what the worst kernel to come lacks, fetch in the order of need what fits."""

from __future__ import annotations

from functools import partial
from typing import Literal

from g10sim.analysis.bound.demand import demand_of
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.designs.pressure.account import Settings
from g10sim.policies.designs.pressure.dropping import chosen_drops
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.designs.pressure.repeating import Repeating
from g10sim.policies.designs.pressure.steering import Steering
from g10sim.policies.interface import PlannedMachine, PolicyPerJob, Requirements
from g10sim.policies.interface.parameters import Count, Declared, Share, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.trace.workload import Job


@register_policy
class Pressure(Declared, PolicyPerJob):
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

    job_class = Repeating

    @property
    def requirements(self) -> Requirements:
        """Dead pages are dropped; what is computed again has its own addresses."""
        addresses: Literal["own", "pooled"] = "own" if self.recompute else "pooled"
        return Requirements(drops_dead_tensors=True, addresses=addresses, keeps_copies=self.keep_copies)

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> Repeating:
        """Forecast a job; all else is decided kernel by kernel. One that is alone may repeat iterations."""
        backlog, horizon = self.backlog * machine.clock_hz, max(2, int(self.horizon * len(job.trace.kernels)))
        settings = Settings(backlog_cycles=backlog, births=self.births, horizon=horizon)
        demand = demand_of(job.trace, machine.clock_hz, machine.page_bytes)
        drops = chosen_drops(demand, machine, self.keep_copies) if self.recompute else ()
        forecast = Forecast(demand, machine, drops)
        steering = partial(Steering, forecast, machine, settings)
        return Repeating(forecast, machine, steering, is_alone=len(self.workload.jobs) == 1)
