"""The page of the paper's figures, and its pictures."""

from __future__ import annotations

from pathlib import Path

import pictures
from tables import fill

from g10sim import plots
from g10sim.plots.registry import ENTRIES, paper_figures

_EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def page() -> str:
    """Return the page as Markdown."""
    figures = [
        (name, name.removeprefix("fig"), ENTRIES[name].title, _question(name)) for name in paper_figures()
    ]
    return fill("figures", figures=figures)


def draw(results: Path, images: Path) -> list[Path]:
    """Draw the figures that have results, small, into a directory of images; return their paths."""
    return [pictures.draw(name, plots.results_of(name, results), images) for name in plots.drawable(results)]


def _question(name: str) -> str:
    """Return the comment at the top of an experiment."""
    lines = (_EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines[: _first_key(lines)])
    question = comment.partition(": ")[2]
    return question[0].upper() + question[1:]


def _first_key(lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if not line.startswith("#"))
