"""What runs: one or several jobs, each a trace repeated on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from g10sim.trace.model import Trace


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
    """Jobs that share one machine."""

    jobs: tuple[Job, ...]
