"""A directory of results as one HTML file to explore: tables, charts, words on each cell, configuration."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from g10sim.config.document import read_text
from g10sim.errors import ConfigError, G10SimError
from g10sim.experiment.stored_cells import names_code, open_cells
from g10sim.explain.cell import Section, describe_cell
from g10sim.files import save_text, stamp
from g10sim.plots.points import named
from g10sim.plots.style import IDEAL, looks, records
from g10sim.results import reading
from g10sim.results.columns import FAILED, OK, SHOWN, TITLES, UNSUPPORTED, stall_reasons
from g10sim.results.legends import policy_labels
from g10sim.results.seeds import order_lines
from g10sim.results.swept import differing_keys, swept_keys, values_of
from g10sim.results.written import timeline_name

if TYPE_CHECKING:
    import pandas as pd

_DIGITS = 6
_UNSEEN = ("", "WHITE", "#FFF", "#FFFFFF")
_SPARE = ("#1B9E77", "#D95F02", "#7570B3", "#E7298A", "#66A61E", "#E6AB02", "#A6761D", "#8DA0CB", "#B15928")
"""Colours of series that figures draw white with hatches (ColorBrewer's Dark2 and two more)."""
_MOST_CELLS = 200
_SCRIPT = "report.js"


def chart_data(results: pd.DataFrame) -> dict[str, Any]:
    """Return keys with their values in order, metrics, rows, looks of policies and parts of time, for JSON.

    ``keys`` are what tells rows apart, by title: the texts of their values in order, and the numbers where
    all are numbers. In ``rows`` a cell has the positions of its values in ``at``, one for each key, its
    metrics in ``values``, and the milliseconds of each part of its time in ``parts``; without numbers where
    it did not run.
    """
    names = [*differing_keys(results)]
    names += [key for key in ("seed", "job") if key in results and results[key].nunique() > 1]
    names = names or ["policy"]
    keys, places = [], {}
    for name in names:
        found = named(results, name)
        texts: dict[Any, str] = dict(found.texts) | ({None: "none"} if results[name].isna().any() else {})
        numbers = [*found.numbers.values()]
        keys.append({"name": name, "title": found.label, "texts": list(texts.values()), "numbers": numbers})
        places[name] = {value: place for place, value in enumerate(texts)}
    metrics, parts = _metrics(results), _parts(results)
    rows = [
        {
            "cell": int(row["cell"]),
            "at": [places[name][None if row[name] != row[name] else row[name]] for name in names],
            "policy": str(row["policy"]),
            "status": row["status"],
            "values": [_rounded(values.iloc[number]) for values in metrics.values()],
            "parts": [_rounded(values.iloc[number]) for values, _ in parts.values()],
        }
        for number, row in enumerate(results.to_dict("records"))
    ]
    return {
        "keys": keys,
        "metrics": list(metrics),
        "rows": rows,
        "policies": {
            policy: {"label": look.label, "colour": colour}
            for (policy, look), colour in zip(looks(results).items(), _colours(results), strict=True)
        },
        "parts": [{"title": title, "colour": colour} for title, (_, colour) in parts.items()],
        "unlimited": IDEAL,
    }


def _colours(results: pd.DataFrame) -> list[str]:
    """Return a colour that is seen for each policy; figures draw some white, with hatches."""
    wanted = [look.colour for look in looks(results).values()]
    spare = (colour for colour in _SPARE if colour not in wanted)
    return [next(spare, "#777777") if colour.upper() in _UNSEEN else colour for colour in wanted]


def _metrics(results: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """Return the metrics that charts show, by their titles."""
    found = {
        **{TITLES[name]: results[name] for name in ("performance", "exec_ms", "samples_per_s")},
        "stalled (% of time)": 100 * SHOWN["stall"](results),
        **{title: SHOWN[title](results) for title in ("moved (GB)", "page faults")},
        "peak of GPU memory (GiB)": SHOWN["peak GPU (GiB)"](results),
    }
    if "bound_cycles" in results:
        found["bound (of ideal)"] = results["ideal_cycles"] / results["bound_cycles"]
    return found


def _parts(results: pd.DataFrame) -> dict[str, tuple[pd.Series[float], str]]:
    """Return the milliseconds of each part of the time, and its colour, by what it is."""
    per_cycle = results["exec_ms"] / results["exec_cycles"].where(results["exec_cycles"] > 0)
    found = {
        "computing": (results["compute_cycles"] * per_cycle, "#DDDDDD"),
        "computing, pages moving": (results["overlap_cycles"] * per_cycle, "#AACCDD"),
    }
    for column, reason in stall_reasons(results).items():
        if results[column].fillna(0).any():
            found[f"stall: {reason.look.label}"] = (results[column] * per_cycle, reason.look.colour)
    return found


def _rounded(value: float) -> float | None:
    """Return a number with as many digits as a chart shows; None for none."""
    return None if math.isnan(value) or math.isinf(value) else float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True)
class Table:
    """Rows of texts under titles; those titled ``numbers`` are aligned as such."""

    titles: Sequence[str]
    numbers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class CellInWords:
    """The words of ``explain`` about a cell, and the place of its timeline alongside the report."""

    number: int
    title: str
    sections: Sequence[Section]
    timeline: str


def write_report(directory: str | Path, output: str | Path | None = None, *, trust: bool = False) -> Path:
    """Write the report of a directory of results (default: ``DIR/report.html``) and return its path.

    ``trust``: import the policies ``module:Class`` that it names, for words on their cells.

    The file needs nothing else. Raises ConfigError where results are missing or it cannot be written.
    """
    directory = Path(directory)
    path = Path(output) if output is not None else directory / reading.REPORT
    save_text(path, report(directory, trust=trust))
    return path


def report(directory: Path, *, trust: bool = False) -> str:
    """Return the report of a directory of results as HTML. Raises ConfigError where results are missing."""
    results = reading.read_results(directory)
    provenance = reading.read_provenance(directory)
    reading.read_checked(directory, reading.CONFIGURATION, provenance)
    configuration = read_text(directory / reading.CONFIGURATION)
    named = results.assign(policy=results["policy"].map(policy_labels(results)))
    ran = named.loc[results["status"] == OK]
    cells, notes = _in_words(directory, ran, trust=trust)
    loader = PackageLoader("g10sim.explain")
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    program = (files("g10sim.explain") / "templates" / _SCRIPT).read_text(encoding="utf-8")
    library, library_source = _library()
    return templates.get_template("report.html.j2").render(
        script_sources=Markup(f"{_source(program.encode())} {library_source}"),
        stamp=stamp(reading.cell_keys(provenance).values()),
        name=str(results["name"].iloc[0]) if len(results) else directory.name,
        summary=_summary(results, directory, provenance),
        failures=_failures(named),
        results=_results(named),
        shares=_shares(ran),
        cells=cells,
        notes=[*order_lines(directory), *notes],
        configuration=configuration,
        provenance=_provenance(provenance),
        traces=_traces(provenance),
        data=Markup(_inert_json(chart_data(results))),
        library=Markup(library),
        program=Markup(program),
    )


@lru_cache
def _library() -> tuple[str, str]:
    """Return Plotly's program, compressed and as text, and its source for the policy of the page."""
    program = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(program, mtime=0)).decode(), _source(program)


def _source(program: bytes) -> str:
    """Return how the policy of a page names a script that may run: by its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(program).digest()).decode()}'"


def _inert_json(data: Mapping[str, Any]) -> str:
    """Return data as JSON that cannot end the element that it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _in_words(directory: Path, ran: pd.DataFrame, *, trust: bool) -> tuple[list[CellInWords], list[str]]:
    """Return what can be said of each cell, and notes on what was left out."""
    found, notes, keys = [], [], _swept(ran)
    count = ran["cell"].nunique()
    if count > _MOST_CELLS:
        first = f"the first {_MOST_CELLS} of {count} cells that ran"
        notes.append(f"Words are on {first}; 'explain' has them on any.")
    code = [policy for policy in reading.read_results(directory)["policy"].unique() if names_code(policy)]
    if code and not trust:
        notes.append(f"No words on cells of {', '.join(code)}, whose code was not loaded; --trust loads it.")
    try:
        for opened in open_cells(directory, _MOST_CELLS, trust=trust):
            number = int(opened.row["cell"])
            timeline = timeline_name(number)
            heading, sections = describe_cell(opened)
            linked = timeline if (directory / timeline).is_file() else ""
            row = {**opened.row, "policy": opened.labels[opened.row["policy"]]}
            title = f"cell {number}: {_what_it_is(row, keys)}: {row['performance']:.1%} of ideal"
            found.append(CellInWords(number, title, [(heading, []), *sections], linked))
    except G10SimError as error:  # traces may be gone; a report without words is still a report
        notes.append(f"No words on further cells: {error}")
    return found, notes


def _failures(named: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of cells without a result, each with what the cell is."""
    keys = _swept(named)
    found = records(named[named["status"] != OK])
    return [{**row, "what": _what_it_is(row, keys)} for row in found]


def _what_it_is(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Name a cell by its trace, its policy and the values that it has of these keys."""
    values = [f"{key} = {row[key]}" for key in keys if _text(row[key])]
    return ", ".join([row["trace"], row["policy"], *values])


def _summary(results: pd.DataFrame, directory: Path, provenance: Mapping[str, Any]) -> str:
    counts = results.drop_duplicates("cell")["status"].value_counts()
    parts = [f"{counts.get(OK, 0)} of {int(counts.sum())} cells ran"]
    parts += [f"{counts[status]} {status}" for status in (UNSUPPORTED, FAILED) if counts.get(status)]
    with suppress(ConfigError, KeyError):  # a report without it is still a report
        timing = reading.read_csv(directory, reading.TIMING, provenance)
        parts.append(f"simulating took {timing['wall_seconds'].sum():,.1f} s of one processor")
    return "; ".join(parts) + "."


def _swept(results: pd.DataFrame) -> list[str]:
    """Return the swept keys, and the seed, that tell cells apart."""
    keys = (*swept_keys(list(map(str, results.columns))), "seed")
    return [key for key in keys if results[key].nunique(dropna=False) > 1]


def _table(results: pd.DataFrame, names: Sequence[str], numbers: Mapping[str, tuple[Any, str]]) -> Table:
    """Make a table of columns of some results, then of numbers by title: values and how they are written.

    Traces are named without directory and suffix where that tells them apart, swept quantities as charts
    name them: as numbers, with the unit in the title.
    """
    shown = results[list(names)].map(_text)
    stems = results["trace"].map(lambda name: Path(name).stem)
    if stems.nunique() == results["trace"].nunique():
        shown["trace"] = stems
    for key in _swept(results):
        found = values_of(results[key], key)
        shown[key] = [found.texts.get(value, "") for value in results[key]]
        shown = shown.rename(columns={key: found.label})
    for title, (values, form) in numbers.items():
        shown[title] = ["" if value != value else format(value, form) for value in values]
    return Table([*map(str, shown)], list(numbers), shown.to_numpy().tolist())


def _results(results: pd.DataFrame) -> Table:
    ran = results.where(results["status"] == OK)
    forms = (",.1f", ".1%", ",.1f", ".1%", ",.2f", ",.0f", ",.2f")
    numbers: dict[str, tuple[Any, str]] = {}
    for (title, of), form in zip(SHOWN.items(), forms, strict=True):
        numbers[title] = (of(ran), form)
        if title == "of ideal":  # and the ends of its range, where results have one
            ends = {f"of ideal, {end}": f"performance_{end}" for end in ("low", "high")}
            numbers |= {name: (ran[column], ".1%") for name, column in ends.items() if column in ran}
    verdicts = ["status"] if (results["status"] != OK).any() else []
    if "steady" in results and results["steady"].isin([False]).any():
        verdicts.append("steady")
        results = results.assign(steady=results["steady"].map({True: "yes", False: "no"}))
    return _table(results, ["cell", "trace", "policy", *_swept(results), *verdicts], numbers)


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


def _provenance(found: Mapping[str, Any]) -> Table:
    facts = {name: value for name, value in found.items() if isinstance(value, str | int)}
    libraries = found.get("libraries")
    facts |= libraries if isinstance(libraries, dict) else {}
    return Table(["fact", "value"], [], [[str(name), str(value)] for name, value in facts.items()])


def _traces(found: Mapping[str, Any]) -> Table:
    traces = found["traces"].items()
    rows = [[name, *(str(trace.get(key, "")) for key in ("path", "sha256"))] for name, trace in traces]
    return Table(["trace", "file", "SHA-256"], [], rows)
