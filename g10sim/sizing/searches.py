"""The least of each resource that reaches a target, for every case of a configuration, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Unpack

from g10sim.config.document import Document
from g10sim.errors import ConfigError
from g10sim.experiment.expand import expand
from g10sim.experiment.run import Running, run_experiments
from g10sim.files import sealed, write_csv, write_json
from g10sim.grouping import grouped
from g10sim.results.columns import FAILED
from g10sim.results.reading import CURVES, DESCRIPTION, SIZING
from g10sim.sizing.cases import FORBIDDEN, NOT_RUN, Search, cases_of, judge
from g10sim.sizing.resources import PriceList, Resource

_STEPS = 60
"""Steps of the curve of a bound."""
_LARGEST_PRECISION = 0.1
_AFTER_CASE = (
    *("resource", "target", "status", "reason", "configured", "configured_performance"),
    *("answer", "answer_amount", "performance", "best_performance"),
    *("below", "below_performance", "above", "above_performance", "holds", "note"),
    *("amounts", "cost", "added_cost", "currency", "cheapest", "search"),
)
_CURVE_COLUMNS = ("search", "title", "amount", "text", "unit", "status", "performance", "best_performance")


@dataclass(frozen=True)
class Goal:
    """The performance to reach, of 1 for ideal, and how far above the least amount an answer may lie.

    ``precision`` is a share of the answer, at most a tenth: with a tenth less, the target would otherwise
    not have to be missed. Raises ConfigError for either out of range.
    """

    target: float
    precision: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise ConfigError(f"--target: found {self.target:g}; allowed: above 0, at most 1")
        if not 0 < self.precision <= _LARGEST_PRECISION:
            problem = f"--precision: found {self.precision:g}"
            raise ConfigError(f"{problem}; allowed: above 0, at most {_LARGEST_PRECISION:g}")


@dataclass(frozen=True)
class Sizing:
    """Outcome: the rows of sizing.csv, the searches that they describe, and what its user should be told."""

    rows: tuple[dict[str, Any], ...]
    searches: tuple[Search, ...]
    warnings: tuple[str, ...]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Searches that failed, with the reason."""
        failed = [row for row in self.rows if row["status"] == FAILED]
        return [(f"{row['resource']} ({row['trace']}, {row['policy']})", row["reason"]) for row in failed]


def size(
    document: Document,
    goal: Goal,
    resources: Sequence[Resource],
    prices: PriceList,
    directory: Path,
    **running: Unpack[Running],
) -> Sizing:
    """Find the least amount of each resource that reaches a goal, the others as configured.

    Every case of the configuration (trace, combination of swept values, policy) is sized on its own; its
    performance is the mean over seeds. Cells are kept in the directory and not simulated again unless
    ``force``; each search that simulated leaves an ordinary directory of results. ``started`` and
    ``progress`` are those of ``judge``. Raises ConfigError, PolicyError or TraceError before anything runs.
    """
    experiment = expand(document)
    cases, precision = cases_of(experiment), Fraction(str(goal.precision))
    names: dict[str, Search] = {}
    for number, case in enumerate(cases, 1):
        of_case = f"-{number}" if len(cases) > 1 else ""
        for resource in resources:
            names[f"{resource.name}{of_case}"] = Search(case, resource, goal.target, precision)
    searches = tuple(names.values())
    judge(searches, directory, **running)
    documents = {}
    for name, search in names.items():
        if search.points:
            sweep = search.resource.sweep(search.case.system, sorted(search.points))
            documents[name] = search.case.document(name, sweep, document)
    outcomes = run_experiments(documents, directory, executor=running.get("executor"))
    rows = _with_cheapest([_row(search, name, prices) for name, search in names.items()])
    described = {"target": goal.target, "precision": goal.precision}
    _write(directory, rows, names, {**described, "prices": prices.model_dump(mode="json", by_alias=True)})
    own = (
        f"{directory / name}: {text}"
        for name, one in outcomes.items()
        for text in one.warnings
        if text not in experiment.warnings
    )
    return Sizing(tuple(rows), searches, (*experiment.warnings, *own))


def _row(search: Search, name: str, prices: PriceList) -> dict[str, Any]:
    """Return the row of sizing.csv; what does not apply is left out."""
    resource, found = search.resource, search.found
    row = {
        **search.case.named(),
        "resource": resource.name,
        "target": search.target,
        "status": search.status,
        "reason": search.reason,
        "note": "; ".join(_notes(search)),
        "amounts": len(search.points),
        "search": name,
    }
    for column, amount in (("configured", search.configured), ("below", found.below), ("above", found.above)):
        if amount is not None:
            performance = search.points.get(amount, NOT_RUN).performance
            row |= {column: resource.text(amount), f"{column}_performance": performance}
    if search.status == FORBIDDEN:
        row["best_performance"] = _best(search, resource.most)
    if found.answer is None:
        return row
    row |= {
        "answer": resource.text(found.answer),
        "answer_amount": found.answer,
        "performance": search.points[found.answer].performance,
        "best_performance": _best(search, found.answer),
        "holds": holds(search),
    }
    cost = prices.cost(resource, found.answer)
    before = None if search.configured is None else prices.cost(resource, search.configured)
    if cost is not None and before is not None:
        row |= {"cost": round(cost, 2), "added_cost": round(cost - before, 2), "currency": prices.currency}
    return row


def holds(search: Search) -> bool:
    """Return whether a tenth more reached the target and a tenth less did not, both simulated."""
    below, above = search.found.below, search.found.above
    return below is not None and above is not None and search.reaches(above) and not search.reaches(below)


def _notes(search: Search) -> Iterator[str]:
    """Say what was simulated that a reader of the answer should know."""
    if search.configured is not None and search.case.bound_obstacle:
        yield f"not guarded by a bound: {search.case.bound_obstacle}"
    answer, text = search.found.answer, search.resource.text
    if answer is None:
        return
    if search.found.below is None:
        yield "nothing less can be asked for"
    if search.found.above is None:
        yield "10 % more is out of range"
    over = [amount for amount in sorted(search.points) if amount > answer and not search.reaches(amount)]
    under = [amount for amount in sorted(search.points) if amount < answer and search.reaches(amount)]
    if over:
        yield f"not monotone: {', '.join(map(text, over))} do not reach the target"
    if under:
        yield f"not monotone: {', '.join(map(text, under))} reach the target, too"


def _best(search: Search, amount: int) -> float | None:
    return None if search.case.bound_obstacle else search.best(amount)[0]


def _with_cheapest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark in every case the answer that costs least alongside what is configured."""

    def case(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["trace"], row["policy"], *sorted(item for item in row.items() if "." in item[0])

    for answered in grouped((case(row), row) for row in rows if "added_cost" in row).values():
        least = min(row["added_cost"] for row in answered)
        for row in answered:
            row["cheapest"] = row["added_cost"] == least
    return rows


def _curve(search: Search, name: str) -> Iterator[dict[str, Any]]:
    """Yield the points that were simulated, with the bound, and more points of the bound between them."""
    resource, configured = search.resource, search.configured
    if configured is None:
        return
    amounts = set(search.points) or {max(resource.least, configured // 4), 4 * configured}
    if not search.case.bound_obstacle and not search.case.may_drop:
        amounts |= set(_between(min(amounts), max(amounts), resource.grain(search.case.system)))
    for amount in sorted(amounts):
        point = search.points.get(amount, NOT_RUN)
        yield {
            "search": name,
            "title": resource.title,
            "amount": resource.in_units(amount),
            "text": resource.text(amount),
            "unit": resource.unit,
            "status": point.status,
            "performance": point.performance,
            "best_performance": _best(search, amount),
        }


def _between(low: int, high: int, grain: int) -> Iterator[int]:
    """Yield amounts from low to high at even distances, in ratio where there is one."""
    for step in range(1, _STEPS):
        share = step / _STEPS
        amount = low * (high / low) ** share if low else high * share
        yield max(low, int(amount) // grain * grain)


def _write(
    directory: Path, rows: list[dict[str, Any]], names: Mapping[str, Search], described: Mapping[str, Any]
) -> None:
    """Write the files. Raises ConfigError."""
    columns = [*dict.fromkeys(key for row in rows for key in row if key not in _AFTER_CASE), *_AFTER_CASE]
    curves = {name: list(_curve(search, name)) for name, search in names.items()}
    points = [row for curve in curves.values() for row in curve]
    files = {SIZING: write_csv(directory / SIZING, columns, rows)}
    files[CURVES] = write_csv(directory / CURVES, _CURVE_COLUMNS, points)
    simulated = {name: [row for row in curve if row["status"]] for name, curve in curves.items()}
    whole = [{**row, "points": simulated[row["search"]]} for row in rows]
    write_json(directory / DESCRIPTION, sealed({**described, "searches": whole, "files": files}))
