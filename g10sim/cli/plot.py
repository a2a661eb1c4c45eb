"""``g10sim plot``: figures from a directory of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from g10sim import plots
from g10sim.cli.output import say

ALL = "all"


def plot(
    figure: Annotated[
        str, typer.Argument(help="Name of a figure, or 'all' for those of the paper.", show_default=False)
    ],
    results: Annotated[
        Path,
        typer.Option(
            "--results", help="Directory of results, or of one directory per figure.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Directory of the pictures.", show_default="RESULTS/figures"),
    ] = None,
    cell: Annotated[int | None, typer.Option(min=0, help="Cell to look at, for figures of one cell.")] = None,
) -> None:
    """Draw a figure from results, as PDF and PNG; 'all' draws those that have results."""
    names = plots.drawable(results) if figure == ALL else (plots.find(figure).name,)
    for name in names:
        drawn = plots.draw(name, plots.results_of(name, results), cell=cell)
        for path in plots.save(drawn, output or results / "figures", name):
            say(str(path))
