"""Cases of a sizing: one trace under one policy on one machine; and searches of them in lockstep."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

from g10sim.analysis.bound.bound import demand_bound
from g10sim.analysis.bound.demand import Demand, demand_of
from g10sim.config.document import Document
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, ConfigError
from g10sim.experiment.cells import Cell, CellResult
from g10sim.experiment.expand import Experiment
from g10sim.experiment.run import Running, ignore, run_cells
from g10sim.grouping import grouped
from g10sim.results.bounds import Premises, bound_machine
from g10sim.results.columns import FAILED, OK
from g10sim.sizing.resources import Resource
from g10sim.sizing.search import Found, Judged, Span, least_amount

FOUND, FORBIDDEN, UNREACHED, ABSENT = "found", "forbidden", "not reached", "not applicable"
"""Ends of a search, alongside ``failed``."""

_STRIDES = 64


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
        """Return the columns that name it: those that its cells have in common."""
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
        cell, job = self.cells[0], self.cells[0].jobs[0]
        workload: dict[str, Any] = {"trace": job.trace.name, "iterations": job.iterations}
        workload["kernel_times"] = "system" if job.trace.gpu else "trace"
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
        return Premises(policy.requirements, cell.behaviour, policy.keeps_kernels).obstacle(cell.workload())

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
        machine = bound_machine(system, self.cells[0].jobs[0].gpu)
        try:
            bounds = [demand_bound(demand, machine, steady=False) for demand in self._demands]
        except CapacityError as error:
            return 0.0, str(error)
        shares = [found.ideal_cycles / found.cycles if found.cycles else 1.0 for found in bounds]
        return fmean(shares), f"{bounds[0].resource} is short"

    @cached_property
    def _demands(self) -> Sequence[Demand]:
        gpu = self.system.gpu
        executed = {cell.seed: cell.workload().executed(0) for cell in self.cells}.values()
        return [demand_of(trace, gpu.clock, gpu.page_size, recompute=self.may_drop) for trace in executed]


def cases_of(experiment: Experiment) -> list[Case]:
    """Return the cases of a configuration, without the ideal policy. Raises ConfigError for none."""
    if any(not cell.one_job for cell in experiment.cells):
        raise ConfigError("workload: found several jobs; allowed: traces that run alone (workload.trace)")
    groups = grouped((tuple(Case((cell,)).named().items()), cell) for cell in experiment.cells)
    limited = [
        Case(tuple(cells))
        for cells in groups.values()
        if not cells[0].make_policy().requirements.unlimited_memory
    ]
    if not limited:
        raise ConfigError("policies: found none with limited memory; allowed: at least one to be sized")
    return limited


@dataclass(frozen=True)
class Point:
    """Outcome of one amount: the performance is None where the cells did not run."""

    performance: float | None
    status: str
    message: str = ""


NOT_RUN = Point(None, "")
"""Outcome of an amount that nobody simulated."""


@dataclass
class Search:
    """The search for the least amount of one resource in one case.

    ``configured`` is what the machine has; None for one that lacks the resource. ``points`` are the amounts
    that were simulated; ``status`` says how it ended, and ``reason`` why where there is no answer.
    """

    case: Case
    resource: Resource
    target: float
    precision: Fraction
    points: dict[int, Point] = field(default_factory=dict)
    found: Found = field(default_factory=lambda: Found(None))
    status: str = ""
    reason: str = ""
    asked: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.configured = self.resource.amount(self.case.system)
        self._judged: Judged | None = None
        if self.configured is None:
            self._end(ABSENT, f"the system has no {self.resource.needs}")
            return
        best, short = self.best(self.resource.most)
        if best < self.target:
            self._end(FORBIDDEN, f"{self._with_most()} the bound is {best:.4f} of ideal: {short}")
            return
        self._judged = least_amount(self._span(self.configured), self.precision)
        self.asked = next(self._judged)

    @property
    def wanted(self) -> tuple[int, ...]:
        """Amounts whose points it waits for; none where it has ended."""
        if self._judged is None or self.configured is None:
            return ()
        return tuple(amount for amount in (*self.asked, self.configured) if amount not in self.points)

    def go_on(self) -> None:
        """Take the points that it waited for, and ask for others, or end."""
        while self._judged is not None and not self.wanted:
            broken = [self.points[amount] for amount in self.asked if self.points[amount].status == FAILED]
            if broken:
                self._end(FAILED, broken[0].message)
                return
            try:
                self.asked = self._judged.send(tuple(self.reaches(amount) for amount in self.asked))
            except StopIteration as ended:
                self.found = ended.value
                self._conclude()

    def reaches(self, amount: int) -> bool:
        """Return whether a point reaches the target."""
        performance = self.points[amount].performance
        return performance is not None and performance >= self.target

    def _conclude(self) -> None:
        if self.found.answer is not None:
            self._end(FOUND, "")
            return
        most = self.points[self.resource.most]
        reached = most.message
        if most.performance is not None:
            reached = f"{self._with_most()} the policy reaches {most.performance:.4f} of ideal"
        self._end(UNREACHED, reached)

    def _with_most(self) -> str:
        return f"with {self.resource.text(self.resource.most)} of {self.resource.title}"

    def _end(self, status: str, reason: str) -> None:
        self.status, self.reason, self._judged, self.asked = status, reason, None, ()

    def _span(self, configured: int) -> Span:
        """Return where to look: from the lowest amount that the bound allows, or around what there is."""
        grain = self.resource.grain(self.case.system)
        least, most = -(-self.resource.least // grain) * grain, self.resource.most

        def rounded(amount: int, coarsest: int) -> int:
            return self.resource.rounded(amount, coarsest, grain)

        failed, start = None, min(most, max(least, configured))
        if not self.case.bound_obstacle and not self.case.may_drop:
            failed, allowed = self._allowed(least, most, grain)
            start = allowed
            if failed is not None:  # the next amount that is short to write
                coarsest = int(self.precision * allowed / 8)
                short = rounded(allowed, coarsest)
                start = min(most, short if short >= allowed else rounded(allowed + coarsest, coarsest))
        stride = max(grain, max(configured, start) // _STRIDES)
        return Span(least, failed, most, start, stride, grain, rounded)

    def _allowed(self, least: int, most: int, grain: int) -> tuple[int | None, int]:
        """Return the highest amount with which the bound forbids the target, and the next one.

        A better machine never has a higher bound, so that no amount below can reach it either.
        """
        amounts = range(least, most, grain)
        allowed = bisect_left(amounts, True, key=lambda amount: self.best(amount)[0] >= self.target)
        return (amounts[allowed - 1] if allowed else None), min(least + allowed * grain, most)

    def best(self, amount: int) -> tuple[float, str]:
        """Return what ``Case.best`` says of the machine with so much of the resource."""
        return self.case.best(self.resource.changed(self.case.system, amount))


def judge(searches: Sequence[Search], directory: Path, **running: Unpack[Running]) -> None:
    """Simulate what searches ask for until all have ended; cells are stored in the directory.

    What is simulated does not depend on the executor. ``started`` is called with the number of different
    cells so far. Raises ConfigError as ``run_cells`` does.
    """
    known: dict[str, CellResult] = {}
    while any(search.wanted for search in searches):
        pairs = [(search, amount) for search in searches for amount in search.wanted]
        asked = [(search, amount, search.case.changed(search.resource, amount)) for search, amount in pairs]
        new: dict[str, Cell] = {}
        for cell in [cell for *_, cells in asked for cell in cells]:
            if cell.key not in known:
                new.setdefault(cell.key, cell)
        running.get("started", ignore)(len(known) + len(new))
        results, _ = run_cells(list(new.values()), directory, **running)
        known |= dict(zip(new, results, strict=True))
        for search, amount, cells in asked:
            search.points[amount] = _point([known[cell.key] for cell in cells])
        for search in searches:
            search.go_on()


def _point(results: Sequence[CellResult]) -> Point:
    """Return the mean over seeds; a failure counts more than what is unsupported."""
    for status in sorted({result.status for result in results} - {OK}):
        first = next(result for result in results if result.status == status)
        return Point(None, status, first.message)
    return Point(fmean(float(result.rows[0]["performance"]) for result in results), OK)
