"""``g10sim report``: a directory of results as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from g10sim.cli.output import say


def report(
    directory: Annotated[Path, typer.Argument(help="Directory of results.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write.", show_default="DIRECTORY/report.html"),
    ] = None,
) -> None:
    """Write tables, figures, configuration and provenance of results into one HTML file."""
    from g10sim.experiment.report import write_report  # matplotlib is slow to import

    say(str(write_report(directory, output)))
