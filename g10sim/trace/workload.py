"""Workloads: one or several jobs, each of which repeats a trace on a GPU, and variation of kernel times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from g10sim.config.sharing import ExchangeSpec, SharingSpec, VariationSpec
from g10sim.trace.model import FaultProfile, Kernel, Trace
from g10sim.trace.repetition import Changed

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Job:
    """``iterations`` of a trace on one GPU, not before ``arrival_cycles``.

    ``auto``: as many as it takes until they repeat; for a job on its own, or for replicas
    on their own GPUs, which all run equally many.
    If jobs on one GPU compute side by side, a job of priority p gets p times the share of one of priority 1.
    """

    trace: Trace
    gpu: int = 0
    arrival_cycles: int = 0
    iterations: int | Literal["auto"] = 2
    priority: int = 1


@dataclass(frozen=True)
class Workload:
    """Jobs that share one machine.

    ``sharing`` describes how jobs share one GPU; by default they run one after another, in order of arrival
    and then of position. With an ``exchange`` the jobs are data-parallel replicas of one training, each on
    its own GPU, that exchange gradients. With a ``variation`` kernel times deviate from the traces by
    factors drawn from ``seed``, the same in all iterations and under every policy. Policies see neither.
    """

    jobs: tuple[Job, ...]
    variation: VariationSpec | None = None
    seed: int = 0
    sharing: SharingSpec = field(default_factory=SharingSpec)
    exchange: ExchangeSpec | None = None

    @property
    def replicas(self) -> int:
        """Jobs that wait for each other as replicas of one training; 1 where none does."""
        return len(self.jobs) if self.exchange is not None and self.exchange.method != "none" else 1

    def as_planned(self) -> Workload:
        """Return the workload without variation: what policies plan for."""
        return Workload(self.jobs, sharing=self.sharing, exchange=self.exchange)

    def in_order_of_use(self) -> Workload:
        """Return the workload with the tensors of every trace numbered by their first use."""
        return replace(self, jobs=tuple(replace(job, trace=job.trace.in_order_of_use) for job in self.jobs))

    def neighbours(self, job: int) -> int:
        """Jobs that may be on a job's GPU at the same time, itself included."""
        if self.sharing.compute == "exclusive":
            return 1
        return sum(other.gpu == self.jobs[job].gpu for other in self.jobs)

    def executed(self, job: int) -> Trace:
        """Return the trace of a job with the kernel times that it is executed with."""
        trace = self.jobs[job].trace
        return trace if self.variation is None else perturb(trace, self.variation, self.seed, job)


def perturb(trace: Trace, variation: VariationSpec, seed: int, job: int = 0) -> Trace:
    """Return the trace with the duration and the fault profile of every kernel times its random factor.

    Of an optimizer step on the CPU it is the number of parameters.

    Equal arguments give equal traces; ``job`` (position in the workload) tells jobs of one seed apart.
    One seed with another magnitude draws the same departures, scaled (where normal ones are not truncated).
    Times are rounded to the trace's time base; one that is positive stays so.
    """
    factors = draw_factors(variation, len(trace.kernels), seed, job)
    kernels = Changed(trace.kernels, lambda kernel: _times(kernel, float(factors[kernel.id])))
    return replace(trace, kernels=kernels)


def times_factors(trace: Trace, factors: Mapping[str, float]) -> Trace:
    """Return the trace with the duration of every kernel times the factor of its class of operators.

    A class that has none takes that of "". A trace without factors is itself.
    """
    if not factors:
        return trace

    def change(kernel: Kernel) -> Kernel:
        return _times(kernel, factors.get(kernel.operator_class, factors[""]))

    return replace(trace, kernels=Changed(trace.kernels, change))


def draw_factors(variation: VariationSpec, count: int, seed: int, job: int = 0) -> npt.NDArray[np.float64]:
    """Draw one factor per kernel, all of them between 0 and 2, from their own generator."""
    generator = np.random.default_rng((seed, job))
    if variation.distribution == "uniform":
        departures = variation.magnitude * generator.uniform(-1.0, 1.0, count)
    else:
        departures = variation.magnitude * generator.standard_normal(count)
        while (outside := np.abs(departures) >= 1.0).any():
            departures[outside] = variation.magnitude * generator.standard_normal(int(outside.sum()))
    return 1.0 + departures


def _times(kernel: Kernel, factor: float) -> Kernel:
    profile = kernel.fault_profile
    if profile is not None:
        profile = FaultProfile(*(_scaled(ticks, factor) for ticks in profile))
    duration, parameters = _scaled(kernel.duration, factor), _scaled(kernel.parameters, factor)
    return replace(kernel, duration=duration, fault_profile=profile, parameters=parameters)


def _scaled(ticks: int, factor: float) -> int:
    return max(1, round(ticks * factor)) if ticks else 0
