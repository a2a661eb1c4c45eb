"""A directory of results as one HTML file: tables, figures, configuration and provenance."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from g10sim import plots
from g10sim.config.document import read_text
from g10sim.errors import ConfigError, G10SimError
from g10sim.files import write_text
from g10sim.stats.reading import read_provenance, read_results
from g10sim.stats.summary import STALL_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_OK = "ok"
_TRAFFIC = ("ssd_to_gpu_bytes", "gpu_to_ssd_bytes", "host_to_gpu_bytes", "gpu_to_host_bytes")
_FIGURES_OF_ALL = ("fig11", "fig12", "fig14")
_FIGURES_OF_ONE = ("timeline", "stalls", "memory")
_MOST_GROUPS, _MOST_CELLS = 6, 8
_DOTS_PER_INCH = 200


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    is_number: bool = False


@dataclass(frozen=True)
class Table:
    """Columns and rows of texts."""

    columns: Sequence[Column]
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
    path = Path(output) if output is not None else directory / "report.html"
    text = report(directory)
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}; allowed: a file in a writable directory"
        ) from error
    return path


def report(directory: Path) -> str:
    """Return the report of a directory of results as HTML. Raises ConfigError where results are missing."""
    import pandas as pd

    results = read_results(directory)
    provenance = read_provenance(directory)
    configuration = read_text(directory / "config.yaml")
    ran = pd.DataFrame(results[results["status"] == _OK])
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
        name=str(results["name"].iloc[0]) if len(results) else directory.name,
        summary=_summary(results, directory),
        failures=_plain(results[results["status"] != _OK]),
        results=_results(results),
        shares=_shares(ran),
        figures=groups["figures"],
        cells=groups["cells"],
        notes=notes,
        configuration=configuration,
        provenance=_provenance(provenance),
        traces=_traces(provenance),
    )


def _plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _summary(results: pd.DataFrame, directory: Path) -> str:
    import pandas as pd

    counts = results.drop_duplicates("cell")["status"].value_counts()
    parts = [f"{counts.get(_OK, 0)} of {int(counts.sum())} cells ran"]
    parts += [f"{counts[status]} {status}" for status in ("unsupported", "failed") if counts.get(status)]
    try:
        timing = pd.read_csv(directory / "timing.csv")
        parts.append(f"simulating took {timing['wall_seconds'].sum():,.1f} s of one processor")
    except (OSError, ValueError, KeyError):
        pass  # a report without it is still a report
    return "; ".join(parts) + "."


def _swept(results: pd.DataFrame) -> list[str]:
    """Columns between policy and status that tell cells apart."""
    names = [str(column) for column in results.columns]
    columns = names[names.index("policy") + 1 : names.index("status")]
    return [column for column in columns if results[column].nunique(dropna=False) > 1]


def _results(results: pd.DataFrame) -> Table:
    swept = _swept(results)
    names = ["cell", "trace", "policy", *swept, "status"]
    numbers = ("time (ms)", "of ideal", "samples/s", "stall", "moved (GB)", "page faults", "peak GPU (GiB)")
    columns = [*(Column(name) for name in names), *(Column(name, True) for name in numbers)]
    rows = []
    for row in _plain(results):
        texts = [_text(row[name]) for name in names]
        rows.append(texts + (_figures(row) if row["status"] == _OK else [""] * len(numbers)))
    return Table(columns, rows)


def _figures(row: Mapping[str, Any]) -> list[str]:
    whole = row["exec_cycles"]
    return [
        f"{row['exec_ms']:,.1f}",
        f"{row['performance']:.1%}",
        f"{row['samples_per_s']:,.1f}",
        f"{row['stall_cycles'] / whole if whole else 0:.1%}",
        f"{sum(row[column] for column in _TRAFFIC) / 1e9:,.1f}",
        f"{row['page_faults']:,.0f}",
        f"{row['peak_gpu_bytes'] / 2**30:.1f}",
    ]


def _text(value: object) -> str:
    return "" if value is None or value != value else str(value)


def _shares(ran: pd.DataFrame) -> Table:
    """Shares of the time of each cell; stalls for reasons that no cell has are left out."""
    reasons = [column for column in STALL_COLUMNS if column in ran and ran[column].any()]
    parts = {"compute_cycles": "compute alone", "overlap_cycles": "compute while pages move"}
    parts |= {column: f"stall: {column[6:-7].replace('_', ' ')}" for column in reasons}
    names = ["cell", "trace", "policy", *_swept(ran)]
    rows = [
        [
            *(_text(row[name]) for name in names),
            *(f"{row[part] / row['exec_cycles']:.1%}" if row["exec_cycles"] else "" for part in parts),
        ]
        for row in _plain(ran)
    ]
    return Table([*(Column(name) for name in names), *(Column(part, True) for part in parts.values())], rows)


def _groups(
    directory: Path, results: pd.DataFrame, ran: pd.DataFrame
) -> tuple[dict[str, list[Group]], list[str]]:
    """Draw what results of all cells and tables of single cells allow; say what was left out."""
    import pandas as pd

    notes = []
    swept = [column for column in _swept(results) if column != "seed"]
    every = list(results.groupby(swept, sort=False, dropna=False)) if swept else [((), results)]
    figures = [_of_all(swept, values, pd.DataFrame(rows)) for values, rows in every[:_MOST_GROUPS]]
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
    if not (rows["status"] == _OK).any():
        return Group(title, [])
    drawings = ((name, getattr(plots, name)) for name in _FIGURES_OF_ALL)
    return Group(
        title, [_picture(plots.find(name).title, lambda m=module: m.draw(rows)) for name, module in drawings]
    )


def _of_one(directory: Path, kinds: Sequence[str], ran: pd.DataFrame, cell: int) -> Group:
    row = ran[ran["cell"] == cell].iloc[0]
    title = f"cell {cell}: {row['trace']}, {row['policy']}, {row['performance']:.1%} of ideal"
    return Group(
        title,
        [
            _picture(plots.find(name).title, lambda n=name: plots.draw(n, directory, cell=cell))
            for name in kinds
        ],
    )


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
    def rows() -> Iterator[list[str]]:
        for name, value in found.items():
            if name == "libraries" and isinstance(value, dict):
                yield from ([str(library), str(number)] for library, number in value.items())
            elif name != "traces":
                yield [str(name), str(value)]

    return Table([Column("what"), Column("value")], list(rows()))


def _traces(found: Mapping[str, Any]) -> Table:
    rows = [
        [str(name), str(trace.get("path", "")), str(trace.get("sha256", ""))]
        for name, trace in found["traces"].items()
    ]
    return Table([Column("trace"), Column("file"), Column("SHA-256")], rows)
