"""What runs: one or several jobs, each a trace repeated on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from g10sim.config.exchange import ExchangeSpec
from g10sim.config.sharing import SharingSpec
from g10sim.config.variation import VariationSpec
from g10sim.trace.model import Trace
from g10sim.trace.variation import perturb


@dataclass(frozen=True)
class Job:
    """``iterations`` of a trace on one GPU, not before ``arrival_cycles``.

    Where jobs on one GPU compute side by side, one of priority p has p times the share of one of priority 1.
    """

    trace: Trace
    gpu: int = 0
    arrival_cycles: int = 0
    iterations: int = 2
    priority: int = 1


@dataclass(frozen=True)
class Workload:
    """Jobs that share one machine.

    ``sharing`` says how those on one GPU do; by default they run one after another, in order of arrival (then
    of their position). With an ``exchange`` the jobs are data-parallel replicas of one training, each on a
    GPU of its own, that exchange gradients. With a ``variation`` kernels take other times than the traces
    say, by factors that ``seed`` decides: all iterations the same ones, under every policy. Policies see
    neither.
    """

    jobs: tuple[Job, ...]
    variation: VariationSpec | None = None
    seed: int = 0
    sharing: SharingSpec = field(default_factory=SharingSpec)
    exchange: ExchangeSpec | None = None

    def as_planned(self) -> Workload:
        """Return the workload without variation: what policies plan for."""
        return Workload(self.jobs, sharing=self.sharing, exchange=self.exchange)

    def neighbours(self, job: int) -> int:
        """Jobs that may be on a job's GPU at the same time, itself included."""
        if self.sharing.compute == "exclusive":
            return 1
        return sum(other.gpu == self.jobs[job].gpu for other in self.jobs)

    def executed(self, job: int) -> Trace:
        """Return the trace of a job with the kernel times that it is executed with."""
        trace = self.jobs[job].trace
        return trace if self.variation is None else perturb(trace, self.variation, self.seed, job)
