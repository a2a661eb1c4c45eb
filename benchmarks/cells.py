"""What is measured: published cells, bundled traces, and long synthetic traces."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from g10sim.config.data import data_path
from g10sim.experiment.published import PUBLISHED_SYSTEM, PublishedRow, read_published, trace_directory
from g10sim.policies.base import Policy
from g10sim.policies.registry import available
from g10sim.trace.format import load_trace

FIGURE = "fig15"
"""Figure of the G10 paper with the most batch sizes: its cells are measured."""

PUBLISHED, BUNDLED, LONG = "published", "bundled", "long"
OWN, REFERENCE = "own", "reference"
_COSTS = "cost.csv"


@dataclass(frozen=True)
class Cell:
    """One thing to measure; ``published_seconds`` is the CPU time of the published simulator for it.

    ``trace`` has the keys ``directory``, ``model`` and ``batch``, or ``file``, or ``kernels``.
    """

    group: str
    model: str
    batch_size: int
    policy: str
    trace: dict[str, Any]
    system: dict[str, Any]
    compat: str | None = None
    plan: str = ""
    plan_file: str | None = None
    iterations: int = 2
    published_seconds: float | None = None

    def task(self) -> dict[str, Any]:
        """Return what the measuring process needs."""
        names = ("trace", "system", "compat", "policy", "plan_file", "iterations")
        return {name: value for name, value in asdict(self).items() if name in names}


def published_cells(reference: Path, *, reference_plans: bool = False) -> Iterator[Cell]:
    """Yield the cells of the figure under ``compat: gpg``, two iterations as in the published simulator.

    Policies that g10sim lacks are left out. With ``reference_plans`` those that plan follow the published
    plan, too, where there is one.
    """
    costs = _costs(reference)
    for row in read_published(reference, figures=[FIGURE]):
        policy = available().get(row.texts["policy"])
        if policy is None:
            continue
        plan_file = _plan_file(reference, row, policy)
        yield _published_cell(reference, row, costs, None, OWN if plan_file else "")
        if reference_plans and plan_file:
            yield _published_cell(reference, row, costs, plan_file, REFERENCE)


def bundled_cells() -> Iterator[Cell]:
    """Yield the traces that come with g10sim under every policy that needs no parameter."""
    policies = [name for name, policy in available().items() if not _needs_parameters(policy)]
    for path in sorted(data_path("traces").glob("*.g10t")):
        batch_size = load_trace(path).batch_size
        for policy in policies:
            source, system = {"file": str(path)}, {"preset": PUBLISHED_SYSTEM}
            yield Cell(BUNDLED, path.stem, batch_size, policy, source, system)


def long_cells(kernels: Collection[int], policies: Collection[str]) -> Iterator[Cell]:
    """Yield synthetic traces of so many kernels, on a GPU that holds what is alive and on one that does not.

    About 66 MiB are alive at a time: 48 MiB of GPU memory are too little, and every kernel migrates.
    """
    for count in kernels:
        for memory in ("40 GiB", "48 MiB"):
            for policy in policies:
                system = {"preset": PUBLISHED_SYSTEM, "gpu": {"memory": memory}}
                name = f"{count:,} kernels, {memory}"
                yield Cell(LONG, name, 1, policy, {"kernels": count}, system)


def _needs_parameters(policy: type[Policy]) -> bool:
    parameters = inspect.signature(policy).parameters.values()
    return any(parameter.default is parameter.empty for parameter in parameters)


def _published_cell(
    reference: Path,
    row: PublishedRow,
    costs: dict[tuple[str, int, str], float],
    plan_file: Path | None,
    plan: str,
) -> Cell:
    model, batch = row.trace
    policy = row.texts["policy"]
    return Cell(
        PUBLISHED,
        model,
        batch,
        policy,
        {"directory": str(trace_directory(reference, row)), "model": model, "batch": batch},
        row.system().model_dump(mode="json"),
        compat="gpg",
        plan=plan,
        plan_file=None if plan_file is None else str(plan_file),
        published_seconds=costs.get((model, batch, policy)),
    )


def _plan_file(reference: Path, row: PublishedRow, policy: type[Policy]) -> Path | None:
    if policy.reference_plan is None:
        return None
    path = trace_directory(reference, row) / policy.reference_plan
    return path if path.is_file() else None


def _costs(reference: Path) -> dict[tuple[str, int, str], float]:
    path = reference / _COSTS
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["model"], int(row["batch"]), row["policy"]): float(row["cpu_seconds"])
            for row in csv.DictReader(file)
        }
