"""The measured cells: published ones, bundled traces, long synthetic traces, repeated ones, and planning."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.config.data import data_path
from g10sim.experiment.stored_cells import needs_parameters
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available
from g10sim.reproduce.validation import read_published, reference_plan, trace_directory
from g10sim.trace.format import load_trace
from g10sim.trace.model import Trace
from g10sim.trace.synthetic import chain

FIGURE = "fig15"
"""Figure of the G10 paper with the most batch sizes: its cells are measured."""

PUBLISHED, BUNDLED, LONG, DECODE, PLANNING = "published", "bundled", "long", "decode", "planning"
OWN, REFERENCE = "own", "reference"
_COSTS = "cost.csv"
DEFAULT_SYSTEM = {"preset": "a100-40g-pcie3-znand"}


@dataclass(frozen=True)
class Cell:
    """One thing to measure; ``published`` is the CPU time of the published simulator for it, in yardsticks.

    The unit is the time of a fixed piece of code on the same machine (``yardstick.py``).
    ``trace`` has the keys ``directory``, ``model`` and ``batch``, or one of ``file``, ``kernels``, ``steps``
    and ``chain``.
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
    published: float | None = None

    def task(self) -> dict[str, Any]:
        """Return what the measuring process needs."""
        names = ("trace", "system", "compat", "policy", "plan_file", "iterations")
        return {name: value for name, value in asdict(self).items() if name in names}


def published_cells(reference: Path, *, reference_plans: bool = False) -> Iterator[Cell]:
    """Yield the cells of the figure under ``compat: gpg``, two iterations as in the published simulator.

    Policies that g10sim lacks are left out. With ``reference_plans`` those that plan follow the published
    plan, too, where there is one.
    """
    path = reference / _COSTS
    key = ["model", "batch", "policy"]
    costs = {}
    if path.is_file():
        table = pd.read_csv(path).set_index(key)
        costs = (table["cpu_seconds"] / table["yardstick_seconds"]).to_dict()
    for row in read_published(reference, figures=[FIGURE]):
        (model, batch), name = row.trace, row.texts["policy"]
        policy = available().get(name)
        if policy is None:
            continue
        plan_file = reference_plan(reference, row, policy)
        own = Cell(
            PUBLISHED,
            model,
            batch,
            name,
            {"directory": str(trace_directory(reference, row)), "model": model, "batch": batch},
            row.system().model_dump(mode="json"),
            compat="gpg",
            plan=OWN if plan_file else "",
            published=costs.get((model, batch, name)),
        )
        yield own
        if reference_plans and plan_file:
            yield replace(own, plan=REFERENCE, plan_file=str(plan_file))


def bundled_cells() -> Iterator[Cell]:
    """Yield the traces that come with g10sim under every policy that needs no parameter."""
    policies = _named(available())
    for path in sorted(data_path("traces").glob("*.g10t")):
        batch_size = load_trace(path).batch_size
        for policy in policies:
            source = {"file": str(path)}
            yield Cell(BUNDLED, path.stem, batch_size, policy, source, dict(DEFAULT_SYSTEM))


def long_cells(kernels: Collection[int], policies: Collection[str]) -> Iterator[Cell]:
    """Yield synthetic traces of that many kernels, on a GPU that holds what is alive and one that does not.

    About 66 MiB are alive at a time: 48 MiB of GPU memory are too little, and every kernel migrates.
    """
    for count in kernels:
        for memory in ("40 GiB", "48 MiB"):
            for policy in policies:
                system = {**DEFAULT_SYSTEM, "gpu": {"memory": memory}}
                name = f"{count:,} kernels, {memory}"
                yield Cell(LONG, name, 1, policy, {"kernels": count}, system)


def decode_cells(steps: Collection[int], policies: Collection[str]) -> Iterator[Cell]:
    """Yield inference of that many steps of 1,000 kernels each, one iteration, with weights that do not fit.

    Weights and caches have 33 GiB: with 24 GiB of GPU memory some of them come and go in every step.
    """
    for count in steps:
        for policy in policies:
            system = {**DEFAULT_SYSTEM, "gpu": {"memory": "24 GiB"}}
            name = f"{1000 * count:,} kernels"
            yield Cell(DECODE, name, 1, policy, {"steps": count}, system, iterations=1)


_PLANS = "settle", "plan", "plan_job", "on_iteration_start"


def planners() -> list[str]:
    """Return the policies that plan, and need no parameter."""
    return _named(
        name
        for name, policy in available().items()
        if any(getattr(policy, hook) is not getattr(Policy, hook) for hook in _PLANS)
    )


def planning_cells(
    kernels: Collection[int], files: Collection[str], policies: Collection[str], preset: str, share: float
) -> Iterator[Cell]:
    """Yield training chains of that many kernels and traces from files, in a share of their peak memory."""
    traces: list[tuple[dict[str, Any], str, Trace]] = [
        *(({"chain": count}, f"{count:,} kernels", training_chain(count)) for count in kernels),
        *(({"file": file}, Path(file).stem, load_trace(file)) for file in files),
    ]
    for source, name, trace in traces:
        memory = f"{share * peak_live_bytes(trace) / 2**20:.0f} MiB"
        system = {"preset": preset, "gpu": {"memory": memory}}
        for policy in policies:
            yield Cell(PLANNING, name, trace.batch_size, policy, source, system)


def training_chain(kernels: int) -> Trace:
    """Return training of a chain of layers whose activations take longer to leave than to make."""
    return chain(kernels // 3, activation_bytes=48 << 20, weight_bytes=8 << 20)


def _named(policies: Iterable[str]) -> list[str]:
    """Return those of some policies that can be made by their names alone."""
    return [name for name in policies if not needs_parameters(available()[name])]
