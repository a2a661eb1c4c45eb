"""Cases of a sizing: one trace under one policy on one machine, with what its bound says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from g10sim.analysis.bound.bound import CHECKPOINTS, Bound, demand_bound
from g10sim.analysis.bound.demand import Demand, demand_of
from g10sim.config.document import Document
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, ConfigError
from g10sim.experiment.cells import Cell
from g10sim.experiment.expand import Experiment
from g10sim.hardware.bounds import bound_machine
from g10sim.results.bounds import Conditions
from g10sim.sizing.resources import Resource


@dataclass(frozen=True)
class Case:
    """Cells that differ in nothing but the seed; their performance is the mean."""

    cells: tuple[Cell, ...]

    @property
    def system(self) -> SystemSpec:
        """The machine as configured."""
        return self.cells[0].system

    def changed(self, resource: Resource, amount: int) -> list[Cell]:
        """Return its cells on a machine with so much of a resource."""
        system = resource.changed(self.system, amount)
        return [replace(cell, system=system) for cell in self.cells]

    def named(self) -> dict[str, Any]:
        """Return the columns that name it."""
        cell, trace = self.cells[0], self.cells[0].jobs[0].trace
        return {
            "trace": trace.name,
            "model": trace.model,
            "batch_size": trace.batch_size,
            "policy": cell.label,
            **{key: text for key, text in cell.swept.items() if key != "seed"},
        }

    def document(self, name: str, sweep: Mapping[str, Any], config: Document) -> Document:
        """Return the configuration of its cells alone, everything spelled out, with a sweep."""
        cell = self.cells[0]
        workload: dict[str, Any] = {"trace": cell.jobs[0].trace.name, "iterations": cell.jobs[0].iterations}
        if cell.variation is not None:
            workload["variation"] = cell.variation.model_dump(mode="json")
        data = {
            "name": name,
            "workload": workload,
            "system": cell.system.model_dump(mode="json"),
            "policies": [dict(cell.policy)],
            "sweep": dict(sweep),
            "seed": [cell.seed for cell in self.cells],
            "compat": cell.behaviour.model_dump(mode="json"),
            "record": ["summary", *cell.tables],
            "resolved": True,
        }
        return replace(config, data=data, places={})

    @cached_property
    def bound_obstacle(self) -> str:
        """Reason for which no bound holds; empty if one does."""
        cell = self.cells[0]
        policy = cell.make_policy()
        return Conditions(policy.requirements, cell.behaviour, policy.keeps_kernels).obstacle(cell.workload())

    @cached_property
    def may_drop(self) -> bool:
        """Return whether the policy may drop tensors and compute them again, for which bounds are lower."""
        cell = self.cells[0]
        return "own" in (cell.make_policy().requirements.addresses, cell.behaviour.addresses)

    def best(self, system: SystemSpec) -> tuple[float, str]:
        """Return the highest performance that the bound allows on a machine, and in words why no more.

        That is 0 where no design can run. Where no bound holds, it is 1.
        """
        if self.bound_obstacle:
            return 1.0, ""
        try:
            bounds = [self._bound(demand, system) for demand in self._demands]
        except CapacityError as error:
            return 0.0, str(error)
        shares = [found.ideal_cycles / found.cycles if found.cycles else 1.0 for found in bounds]
        return fmean(shares), f"{bounds[0].resource} is short"

    @cached_property
    def _demands(self) -> Sequence[Demand]:
        gpu = self.system.gpu
        executed = {cell.seed: cell.workload().executed(0) for cell in self.cells}
        return [
            demand_of(trace, gpu.clock, gpu.page_size, recompute=self.may_drop) for trace in executed.values()
        ]

    def _bound(self, demand: Demand, system: SystemSpec) -> Bound:
        machine = bound_machine(system, self.cells[0].jobs[0].gpu)
        return demand_bound(demand, machine, steady=False, checkpoints=CHECKPOINTS if self.may_drop else None)


def cases_of(experiment: Experiment) -> list[Case]:
    """Return the cases of a configuration, without the ideal policy. Raises ConfigError for none."""
    if any(not cell.one_job for cell in experiment.cells):
        raise ConfigError("workload: found several jobs; allowed: traces that run alone (workload.trace)")
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[Cell]] = {}
    for cell in experiment.cells:
        swept = tuple((key, text) for key, text in cell.swept.items() if key != "seed")
        groups.setdefault((cell.jobs[0].trace.name, cell.label, swept), []).append(cell)
    limited = [
        Case(tuple(cells))
        for cells in groups.values()
        if not cells[0].make_policy().requirements.unlimited_memory
    ]
    if not limited:
        raise ConfigError("policies: found none with limited memory; allowed: at least one to be sized")
    return limited
