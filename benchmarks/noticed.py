"""Mutants and what became of them: as rows, with those that change nothing anybody could notice."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import Progress

from benchmarks.mutants import Mutant
from benchmarks.mutation import KILLED, MODULES, TESTS, Tester, Verdict, draw
from g10sim.errors import ConfigError

__all__ = ["MODULES", "TESTS", "Plan", "Score", "by_module", "equivalents", "measure", "score"]

EQUIVALENT = "equivalent"
EQUIVALENTS = Path(__file__).with_name("equivalent_mutants.yaml")

Row = dict[str, Any]


@dataclass(frozen=True)
class Score:
    """Mutants, how many of them tests notice, and how many are equivalent to the program."""

    mutants: int
    killed: int
    equivalent: int

    @property
    def share(self) -> float:
        """Share of the mutants that are not equivalent that tests notice."""
        return self.killed / max(1, self.mutants - self.equivalent)


def score(rows: Iterable[Mapping[str, Any]]) -> Score:
    """Count rows of mutants by their outcome."""
    outcomes = [row["outcome"] for row in rows]
    return Score(len(outcomes), outcomes.count(KILLED), outcomes.count(EQUIVALENT))


@dataclass(frozen=True)
class Plan:
    """Mutants to draw, and the tests that they meet, for that many CPU seconds each."""

    count: int
    seed: int
    modules: Sequence[str]
    tests: Sequence[str]
    budget_seconds: float
    workers: int


def measure(plan: Plan, output: Path, *, survivors: bool, tell: Callable[[list[Row]], None]) -> list[Row]:
    """Let tests meet mutants and return a row for each; ``tell`` is given those so far after every one.

    With ``survivors``, those that a test has noticed, by ``mutants.csv`` in the directory, are not met again.
    """
    mutants, reasons = draw(plan.count, plan.seed, plan.modules), equivalents()
    known = _noticed(output / "mutants.csv") if survivors else {}
    rows = {
        mutant.name: _row(mutant, EQUIVALENT, "", reasons[mutant.name])
        if mutant.name in reasons
        else _row(mutant, KILLED, known[mutant.name])
        for mutant in mutants
        if mutant.name in reasons or mutant.name in known
    }
    todo = [mutant for mutant in mutants if mutant.name not in rows]
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("mutants", total=len(todo))

        def met(verdict: Verdict) -> None:
            rows[verdict.mutant.name] = _row(verdict.mutant, verdict.outcome, verdict.test)
            tell([rows[mutant.name] for mutant in mutants if mutant.name in rows])
            progress.advance(bar)

        Tester(todo, plan.tests, output / "profiles", plan.budget_seconds, plan.workers, met).run()
    return [rows[mutant.name] for mutant in mutants]


def equivalents() -> dict[str, str]:
    """Return why a mutant does the same as the program, by its name. Raises ConfigError without a reason."""
    entries = yaml.safe_load(EQUIVALENTS.read_text(encoding="utf-8")) or {}
    for name, reason in entries.items():
        if not isinstance(reason, str) or not reason:
            raise ConfigError(f"{EQUIVALENTS.name}: '{name}': found no reason; allowed: a sentence")
    return dict(entries)


def _noticed(path: Path) -> dict[str, str]:
    """Return the tests that noticed mutants the last time, by the mutants' names."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["mutant"]: row["test"] for row in csv.DictReader(file) if row["outcome"] == KILLED}


def _row(mutant: Mutant, outcome: str, test: str, reason: str = "") -> Row:
    return {
        "module": mutant.module,
        "line": mutant.line,
        "operator": mutant.change.operator,
        "mutant": mutant.name,
        "outcome": outcome,
        "test": test,
        "reason": reason,
    }


def by_module(rows: Sequence[Mapping[str, Any]]) -> dict[str, Score]:
    """Return the score of every package of the program."""
    packages = dict.fromkeys(_package(row["module"]) for row in rows)
    return {
        package: score(row for row in rows if row["module"].startswith(f"{package}/")) for package in packages
    }


def _package(module: str) -> str:
    """Return the package that a module was drawn from; outside of all, the one right below the program."""
    found = [f"g10sim/{name}" for name in MODULES if module.startswith(f"g10sim/{name}/")]
    return found[0] if found else "/".join(module.split("/")[:2])
