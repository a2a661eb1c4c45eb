"""The page of the paper's figures, and its pictures."""

from __future__ import annotations

from pathlib import Path

import pictures
from tables import fill, table

from g10sim import plots
from g10sim.analysis.bound.bound import iteration_bound
from g10sim.config.data import data_path
from g10sim.config.presets import load_system
from g10sim.plots.registry import ENTRIES, paper_figures
from g10sim.reproduce.validation import PUBLISHED_SYSTEM
from g10sim.results.bounds import bound_machine
from g10sim.trace.format import load_trace

_CONVOLUTIONAL = (
    "inception-v3-b768",
    "resnet152-b512",
    "resnet152-bf16-b768",
    "senet154-b256",
    "g10/inception-v3-b1536",
    "g10/resnet152-b1280",
    "g10/senet154-b1024",
)
_EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def page() -> str:
    """Return the page as Markdown."""
    figures = [
        (name, name.removeprefix("fig"), ENTRIES[name].title, _question(name)) for name in paper_figures()
    ]
    return fill("figures", figures=figures, bounds=_bounds())


def _bounds() -> str:
    """Return the table of what is possible for convolutional networks on the default hardware."""
    machine = bound_machine(load_system(PUBLISHED_SYSTEM))
    rows = []
    for name in _CONVOLUTIONAL:
        trace = load_trace(data_path("traces", f"{name}.g10t"))
        bound = iteration_bound(trace, machine)
        kernels, least = (cycles / machine.clock_hz for cycles in (bound.ideal_cycles, bound.cycles))
        possible = f"{bound.ideal_cycles / bound.cycles:.2f}"
        rows.append((name, trace.origin["gpu"], f"{kernels:.2f}", f"{least:.2f}", possible))
    return table(("trace", "kernel times"), ("kernels (s)", "no policy below (s)", "of ideal, at most"), rows)


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
