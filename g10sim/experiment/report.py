"""A directory of results as one HTML file: tables, figures, configuration and provenance."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from g10sim import plots
from g10sim.checksums import stamp
from g10sim.config.document import read_text
from g10sim.errors import ConfigError, G10SimError
from g10sim.files import write_text, writing
from g10sim.plots.traces import records
from g10sim.stats.columns import stall_reasons, traffic
from g10sim.stats.legends import policy_labels
from g10sim.stats.reading import (
    CONFIGURATION,
    REPORT,
    TIMING,
    cell_keys,
    read_checked,
    read_provenance,
    read_results,
)

if TYPE_CHECKING:
    import pandas as pd

_OK = "ok"
_FIGURES_OF_ALL = ("fig11", "fig12", "fig14")
_FIGURES_OF_ONE = ("timeline", "stalls", "memory")
_MOST_GROUPS, _MOST_CELLS = 6, 8
_DOTS_PER_INCH = 200


@dataclass(frozen=True)
class Table:
    """Rows of texts under titles; those titled ``numbers`` are aligned as such."""

    titles: Sequence[str]
    numbers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure as PNG in base 64, or why there is none."""

    title: str
    data: str = ""
    why_not: str = ""


@dataclass(frozen=True)
class Group:
    """Pictures that belong together."""

    title: str
    pictures: Sequence[Picture]


def write_report(directory: str | Path, output: str | Path | None = None) -> Path:
    """Write the report of a directory of results (default: ``DIR/report.html``) and return its path.

    The file needs nothing beside it. Raises ConfigError where results are missing or it cannot be written.
    """
    directory = Path(directory)
    path = Path(output) if output is not None else directory / REPORT
    text = report(directory)
    with writing(path, ConfigError):
        write_text(path, text)
    return path


def report(directory: Path) -> str:
    """Return the report of a directory of results as HTML. Raises ConfigError where results are missing."""
    results = read_results(directory)
    provenance = read_provenance(directory)
    read_checked(directory, CONFIGURATION, provenance)
    configuration = read_text(directory / CONFIGURATION)
    named = results.assign(policy=results["policy"].map(policy_labels(results)))
    ran = named.loc[results["status"] == _OK]
    groups, notes = _groups(directory, results, ran)
    template = Environment(
        loader=PackageLoader("g10sim.experiment"),
        autoescape=select_autoescape(
            default=True, default_for_string=True, enabled_extensions=("html", "j2")
        ),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("report.html.j2")
    return template.render(
        stamp=stamp(cell_keys(provenance).values()),
        name=str(results["name"].iloc[0]) if len(results) else directory.name,
        summary=_summary(results, directory, provenance),
        failures=records(named[results["status"] != _OK]),
        results=_results(named),
        shares=_shares(ran),
        figures=groups["figures"],
        cells=groups["cells"],
        notes=notes,
        configuration=configuration,
        provenance=_provenance(provenance),
        traces=_traces(provenance),
    )


def _summary(results: pd.DataFrame, directory: Path, provenance: Mapping[str, Any]) -> str:
    import pandas as pd

    counts = results.drop_duplicates("cell")["status"].value_counts()
    parts = [f"{counts.get(_OK, 0)} of {int(counts.sum())} cells ran"]
    parts += [f"{counts[status]} {status}" for status in ("unsupported", "failed") if counts.get(status)]
    try:
        timing = pd.read_csv(io.BytesIO(read_checked(directory, TIMING, provenance)))
        parts.append(f"simulating took {timing['wall_seconds'].sum():,.1f} s of one processor")
    except (ConfigError, ValueError, KeyError):
        pass  # a report without it is still a report
    return "; ".join(parts) + "."


def _swept(results: pd.DataFrame) -> list[str]:
    """Columns between policy and status that tell cells apart."""
    names = [str(column) for column in results.columns]
    columns = names[names.index("policy") + 1 : names.index("status")]
    return [column for column in columns if results[column].nunique(dropna=False) > 1]


def _table(results: pd.DataFrame, names: Sequence[str], numbers: Mapping[str, tuple[Any, str]]) -> Table:
    """Make a table of columns of some results, then of numbers by title: values and how they are written."""
    shown = results[list(names)].map(_text)
    for title, (values, form) in numbers.items():
        shown[title] = ["" if value != value else format(value, form) for value in values]
    return Table([*names, *numbers], list(numbers), shown.to_numpy().tolist())


def _results(results: pd.DataFrame) -> Table:
    ran = results.where(results["status"] == _OK)
    numbers = {
        "time (ms)": (ran["exec_ms"], ",.1f"),
        "of ideal": (ran["performance"], ".1%"),
        "samples/s": (ran["samples_per_s"], ",.1f"),
        "stall": (ran["stall_cycles"] / ran["exec_cycles"].clip(lower=1), ".1%"),
        "moved (GB)": (ran[list(traffic(ran))].sum(axis="columns", skipna=False) / 1e9, ",.1f"),
        "page faults": (ran["page_faults"], ",.0f"),
        "peak GPU (GiB)": (ran["peak_gpu_bytes"] / 2**30, ".1f"),
    }
    is_unsteady = "steady" in results and results["steady"].isin([False]).any()
    verdicts = ["steady"] if is_unsteady else []
    return _table(results, ["cell", "trace", "policy", *_swept(results), "status", *verdicts], numbers)


def _text(value: object) -> str:
    return "" if value is None or value != value else str(value)


def _shares(ran: pd.DataFrame) -> Table:
    """Shares of the time of each cell; stalls for reasons that no cell has are left out."""
    reasons = {column: reason for column, reason in stall_reasons(ran).items() if ran[column].any()}
    parts = {"compute_cycles": "compute alone", "overlap_cycles": "compute while pages move"}
    parts |= {column: f"stall: {reason.look.label}" for column, reason in reasons.items()}
    whole = ran["exec_cycles"].where(ran["exec_cycles"] > 0)
    numbers = {title: (ran[column] / whole, ".1%") for column, title in parts.items()}
    return _table(ran, ["cell", "trace", "policy", *_swept(ran)], numbers)


def _groups(
    directory: Path, results: pd.DataFrame, ran: pd.DataFrame
) -> tuple[dict[str, list[Group]], list[str]]:
    """Draw what results of all cells and tables of single cells allow; say what was left out."""
    notes = []
    swept = [column for column in _swept(results) if column != "seed"]
    every = list(results.groupby(swept, sort=False, dropna=False)) if swept else [((), results)]
    figures = [_of_all(swept, values, rows) for values, rows in every[:_MOST_GROUPS]]
    if len(every) > _MOST_GROUPS:
        notes.append(f"Figures show the first {_MOST_GROUPS} of {len(every)} combinations of swept values.")
    kinds = [name for name in _FIGURES_OF_ONE if _has_tables(directory, name)]
    numbers = [int(cell) for cell in ran["cell"].unique()] if kinds else []
    cells = [_of_one(directory, kinds, ran, cell) for cell in islice(numbers, _MOST_CELLS)]
    if len(numbers) > _MOST_CELLS:
        notes.append(f"Pictures show the first {_MOST_CELLS} of {len(numbers)} cells that ran.")
    return {"figures": [group for group in figures if group.pictures], "cells": cells}, notes


def _of_all(swept: Sequence[str], values: Any, rows: pd.DataFrame) -> Group:
    chosen = values if isinstance(values, tuple) else (values,)
    title = ", ".join(f"{key} = {_text(value)}" for key, value in zip(swept, chosen, strict=False))
    entries = map(plots.find, _FIGURES_OF_ALL if (rows["status"] == _OK).any() else ())
    return Group(title, [_picture(entry.title, partial(entry.draw, rows)) for entry in entries])


def _of_one(directory: Path, kinds: Sequence[str], ran: pd.DataFrame, cell: int) -> Group:
    row = ran[ran["cell"] == cell].iloc[0]
    title = f"cell {cell}: {row['trace']}, {row['policy']}, {row['performance']:.1%} of ideal"
    draw = partial(plots.draw, directory=directory, cell=cell)
    return Group(title, [_picture(plots.find(name).title, partial(draw, name)) for name in kinds])


def _has_tables(directory: Path, figure: str) -> bool:
    return all((directory / f"{table}.parquet").is_file() for table in plots.find(figure).tables)


def _picture(title: str, draw: Any) -> Picture:
    from g10sim.plots.style import settings

    buffer = io.BytesIO()
    try:
        figure = draw()
        with settings():
            figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    except (G10SimError, ValueError) as error:  # names that matplotlib takes for formulas, too
        return Picture(title, why_not=" ".join(str(error).split()))
    return Picture(title, data=base64.b64encode(buffer.getvalue()).decode())


def _provenance(found: Mapping[str, Any]) -> Table:
    facts = {name: value for name, value in found.items() if isinstance(value, str | int)}
    libraries = found.get("libraries")
    facts |= libraries if isinstance(libraries, dict) else {}
    return Table(["fact", "value"], [], [[str(name), str(value)] for name, value in facts.items()])


def _traces(found: Mapping[str, Any]) -> Table:
    rows = [
        [str(name), str(trace.get("path", "")), str(trace.get("sha256", ""))]
        for name, trace in found["traces"].items()
    ]
    return Table(["trace", "file", "SHA-256"], [], rows)
