"""What runs: one or several jobs, each a trace repeated on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from g10sim.config.variation import VariationSpec
from g10sim.trace.model import Trace
from g10sim.trace.variation import perturb


@dataclass(frozen=True)
class Job:
    """``iterations`` of a trace on one GPU, not before ``arrival_cycles``.

    Jobs on one GPU run one after another, in order of arrival (then of their position).
    """

    trace: Trace
    gpu: int = 0
    arrival_cycles: int = 0
    iterations: int = 2


@dataclass(frozen=True)
class Workload:
    """Jobs that share one machine.

    With a ``variation`` kernels take other times than the traces say, by factors that ``seed`` decides:
    all iterations the same ones, under every policy. Policies see neither.
    """

    jobs: tuple[Job, ...]
    variation: VariationSpec | None = None
    seed: int = 0

    def as_planned(self) -> Workload:
        """Return the workload without variation: what policies plan for."""
        return Workload(self.jobs)

    def executed(self, job: int) -> Trace:
        """Return the trace of a job with the kernel times that it is executed with."""
        trace = self.jobs[job].trace
        return trace if self.variation is None else perturb(trace, self.variation, self.seed, job)
