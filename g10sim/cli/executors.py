"""The options that say where cells are simulated."""

from __future__ import annotations

from typing import Annotated

import typer

from g10sim.errors import ConfigError
from g10sim.experiment.cluster import DaskCluster
from g10sim.experiment.workers import Executor, LocalProcesses

SchedulerOption = Annotated[
    str | None,
    typer.Option(
        help="Simulate on the Dask cluster of this scheduler: its address or its scheduler file.",
        metavar="ADDRESS",
    ),
]


def choose_executor(workers: int | None, scheduler: str | None, *, default_workers: int) -> Executor:
    """Return the executor that ``-j`` or ``--scheduler`` asks for. Raises ConfigError for both."""
    if scheduler is None:
        return LocalProcesses(workers or default_workers)
    if workers is not None:
        raise ConfigError(
            "-j: found beside --scheduler; allowed: one of them (a cluster has its own workers)"
        )
    return DaskCluster(scheduler)
