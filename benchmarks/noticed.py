"""Mutants and what became of them: as rows, with those that change nothing anybody could notice."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import Progress

from benchmarks.mutants import Mutant
from benchmarks.mutation import KILLED, TESTS, Tester, Verdict, draw
from g10sim.errors import ConfigError

__all__ = ["TESTS", "Plan", "Score", "by_module", "equivalents", "measure", "score"]

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
    """Mutants to draw, and the tests that they meet, for so many CPU seconds each."""

    count: int
    seed: int
    modules: Sequence[str]
    tests: Sequence[str]
    budget_seconds: float
    workers: int


def measure(plan: Plan, output: Path, *, survivors: bool) -> list[Row]:
    """Let tests meet mutants and return a row for each.

    With ``survivors``, those that a test has noticed, by ``mutants.csv`` in the directory, are not met again.
    """
    mutants, reasons = draw(plan.count, plan.seed, plan.modules), equivalents()
    known = _noticed(output / "mutants.csv") if survivors else {}
    todo = [mutant for mutant in mutants if mutant.name not in known and mutant.name not in reasons]
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("mutants", total=len(todo))
        tester = Tester(
            todo,
            plan.tests,
            output / "profiles",
            plan.budget_seconds,
            plan.workers,
            lambda _: progress.advance(bar),
        )
        tester.run()
    found = {verdict.mutant.name: verdict for verdict in tester.verdicts}
    return [_row(mutant, found.get(mutant.name), known, reasons) for mutant in mutants]


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


def _row(
    mutant: Mutant, verdict: Verdict | None, known: Mapping[str, str], reasons: Mapping[str, str]
) -> Row:
    outcome, test = KILLED, known.get(mutant.name, "")
    if verdict is not None:
        outcome, test = verdict.outcome, verdict.test
    elif mutant.name in reasons:
        outcome = EQUIVALENT
    return {
        "module": mutant.module,
        "line": mutant.line,
        "operator": mutant.change.operator,
        "mutant": mutant.name,
        "outcome": outcome,
        "test": test,
        "reason": reasons.get(mutant.name, ""),
    }


def by_module(rows: Sequence[Mapping[str, Any]]) -> dict[str, Score]:
    """Return the score of every package of the program."""
    packages = dict.fromkeys("/".join(row["module"].split("/")[:2]) for row in rows)
    return {
        package: score(row for row in rows if row["module"].startswith(f"{package}/")) for package in packages
    }
