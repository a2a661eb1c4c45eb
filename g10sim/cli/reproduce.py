"""``g10sim reproduce``, ``plot`` and ``report``: figures of the G10 paper and of any results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from g10sim import plots
from g10sim.cli import options
from g10sim.cli.output import complain_of_failures, say, show_table, warn
from g10sim.cli.run import CellProgress
from g10sim.config.load import load_run, with_policies
from g10sim.config.problems import among
from g10sim.errors import ConfigError, G10SimError
from g10sim.experiment.run import Outcome, run_experiments
from g10sim.plots.registry import CHARTS, ENTRIES, paper_figures
from g10sim.results.columns import OK
from g10sim.results.reading import PICTURES

ALL = "all"


def reproduce(
    figures: Annotated[str | None, options.only("these figures", such_as="fig11,fig15")] = None,
    output: Annotated[Path, options.output_to("Directory of results and pictures.")] = Path("results/paper"),
    workers: Annotated[int | None, options.workers_option("all cores")] = None,
    scheduler: options.Scheduler = None,
    settings: options.Settings = None,
    policies: options.AddPolicy = None,
    force: options.Force = False,
) -> None:
    """Simulate the experiments of the G10 paper's figures and draw them; an interrupted run goes on.

    Exit code 0: every cell ran; 1: some cell failed; 2: bad input.
    """
    known = paper_figures()
    documents = {
        name: with_policies(load_run(Path("experiments") / f"{name}.yaml", settings or []), policies or [])
        for name in among(known, known, options.names_in("--figures", figures), "--figures: found")
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    executor = options.choose_executor(workers, scheduler, default_workers=cores)
    problems: list[tuple[str, str]] = []

    def ended(name: str, outcome: Outcome) -> None:
        problems.extend(_draw(name, outcome, output / PICTURES))

    warn_once = cache(warn)
    with CellProgress() as bar:
        running = bar.running(executor, force=force, told=warn_once)
        outcomes = run_experiments(documents, output, ended=ended, **running)
    _summarize(outcomes)
    say(f"pictures in {output / PICTURES}")
    for warning in dict.fromkeys(text for outcome in outcomes.values() for text in outcome.warnings):
        warn_once(warning)
    complain_of_failures([*problems, *_failures(outcomes)])


@contextmanager
def _telling_of_glyphs() -> Iterator[None]:
    """Say in one line which characters the font of figures lacks: matplotlib warns of each, several times."""
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("always", "Glyph ")
        yield
    texts = dict.fromkeys(str(one.message) for one in told)
    lacking = {text: chr(int(text.split()[1])) for text in texts if text.startswith("Glyph ")}
    if lacking:
        warn(f"the font of figures lacks {''.join(lacking.values())}: boxes stand in their place")
    for text in texts:
        if text not in lacking:
            warn(text)


@_telling_of_glyphs()
def _draw(name: str, outcome: Outcome, directory: Path) -> list[tuple[str, str]]:
    """Draw a figure; return what went wrong."""
    try:
        plots.save_pages(plots.pages(name, outcome.directory), directory, name)
    except G10SimError as error:
        return [(f"drawing {name}", str(error))]
    return []


def _summarize(outcomes: dict[str, Outcome]) -> None:
    rows = []
    for name, outcome in outcomes.items():
        ended = [result.status for result in outcome.results]
        counts = (len(ended), len(ended) - ended.count(OK) - len(outcome.failures), len(outcome.failures))
        rows.append((name, ENTRIES[name].title, *map(str, counts)))
    show_table(("figure", "shows"), ("cells", "unsupported", "failed"), rows)


def _failures(outcomes: dict[str, Outcome]) -> list[tuple[str, str]]:
    """Say of every cell that failed why; of one that several figures have once."""
    found: dict[str, tuple[str, str]] = {}
    for name, outcome in outcomes.items():
        for cell, message in outcome.failures:
            found.setdefault(cell.key, (f"{name}, cell {cell.title}", message))
    return list(found.values())


@_telling_of_glyphs()
def plot(
    figure: Annotated[
        str, Argument(help="Name of a figure, 'all' for those of the paper, or line, bar or heat with --x.")
    ],
    results: Annotated[
        Path, Option("--results", help="Directory of results, or of one directory per figure.")
    ],
    output: Annotated[Path | None, options.output_to("Directory of the pictures.", "RESULTS/figures")] = None,
    cell: Annotated[int | None, Option(min=0, help="Number of the cell, for figures of one cell.")] = None,
    policy: options.PolicyName = "",
    trace: options.TraceName = "",
    where: options.Where = None,
    x: Annotated[str, Option("--x", help="Column or swept key on the axis.")] = "",
    y: Annotated[str, Option("--y", help="Column to show.", show_default="performance")] = "",
    hue: Annotated[
        str, Option(help="Column whose values are lines, bars or rows.", show_default="policy")
    ] = "",
    col: Annotated[str, Option(help="Column whose values are panels.", show_default="trace")] = "",
) -> None:
    """Draw a figure from results, as PDF and PNG; 'all' draws those that have results.

    line, bar and heat draw any column against any other, and write the points as CSV, too.
    """
    chosen = options.where_values(where or (), policy, trace)
    roles = {"x": x, "y": y, "hue": hue, "col": col}
    if figure in CHARTS:
        _draw_chart(figure, results, output, chosen, roles)
        return
    for role, column in roles.items():
        if column:
            raise ConfigError(f"--{role}: found with {figure}; allowed: with {', '.join(CHARTS)}")
    names = plots.drawable(results) if figure == ALL else (plots.find(figure).name,)
    for name in names:
        drawn = plots.pages(name, plots.results_of(name, results), cell=cell, where=chosen)
        say(*plots.save_pages(drawn, output or results / PICTURES, name))


def _draw_chart(
    kind: str, results: Path, output: Path | None, where: dict[str, str], roles: dict[str, str]
) -> None:
    if not roles["x"]:
        raise ConfigError(f"--x: found none; allowed: a column or swept key to draw the {kind} over")
    given = {role: column for role, column in roles.items() if column}
    figures, data = plots.chart(kind, results, where=where, **given)
    name = "_".join([kind, roles["y"] or "performance", roles["x"]])
    say(*plots.save_chart(figures, data, output or results / PICTURES, name))


def report(
    directory: options.ResultsDirectory,
    output: Annotated[Path | None, options.output_to("File to write.", "DIRECTORY/report.html")] = None,
    trust: options.Trust = False,
) -> None:
    """Write results as one HTML file to explore: charts, tables, words on each cell, configuration."""
    from g10sim.explain.report import write_report  # matplotlib is slow to import

    say(write_report(directory, output, trust=trust))
