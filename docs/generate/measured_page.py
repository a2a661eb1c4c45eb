"""The page of measured machines alongside predictions, from the files of ``g10sim measured``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tables import fill, table

from g10sim.reproduce.measured import ALL, FITTED, MEASURED, NEAR, PREDICTED, SUMMARY, WIDTHS
from g10sim.results.seeds import order_lines

_MARKED = re.compile(r"(<!-- measured -->\n).*?(<!-- end of measured -->)", re.DOTALL)
_ALL_PREDICTED = re.compile(rf"^\| {ALL} \| {PREDICTED} \| (.*) \|$", re.MULTILINE)
_FIGURES = ("rows", "median", "10 %", "90 %", "median off", "mean off", f"within {NEAR}x", "worst")
_NAMED = {"rows": "rows", "off": "median off", "mean": "mean off", "within": f"within {NEAR}x"}


def page(results: Path, long: Path, order: Path) -> str:
    """Return the page as Markdown, from results of ``g10sim measured`` and of a run with an uncertainty.

    Rows of the ``long`` ones follow the others, and have a summary apart.
    """
    rows, summary = (_read(results, name) for name in (MEASURED, SUMMARY))
    long_rows, long_summary = (_read(long, name) for name in (MEASURED, SUMMARY))
    rows = pd.concat([rows, long_rows])
    return fill(
        "measured",
        near=NEAR,
        widths=_widths(yaml.safe_load(widths(results))),
        order="\n".join(map(_order, order_lines(order))),
        summary=_summary(summary),
        long_summary=_summary(long_summary[long_summary["class"] != ALL]),
        sections=[_section(name, group) for name, group in rows.groupby("class", sort=False)],
        sources="\n".join(f"- {text}" for text in sorted(set(rows["source"]))),
    )


def widths(results: Path) -> str:
    """Return the uncertainty that results of ``g10sim measured`` say, as YAML."""
    return _found(results / WIDTHS).read_text(encoding="utf-8")


def _read(results: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(_found(results / name), keep_default_na=False)


def _found(path: Path) -> Path:
    if not path.is_file():
        raise SystemExit(f"{path}: found no file; allowed: the output of 'g10sim measured'")
    return path


def _widths(spec: dict[str, Any]) -> str:
    rows = [(part, source, *(f"{end:.2f}" for end in spec[part])) for part, source in spec["sources"].items()]
    return table(("times of", "source"), ("lowest factor", "highest factor"), rows)


def with_line(text: str, measured_page: str) -> str:
    """Return a page with the line about measured machines between its marks, from the page of rows."""
    found = _ALL_PREDICTED.search(measured_page)
    if found is None:
        raise SystemExit(f"docs/measured.md: found no row of {ALL}, {PREDICTED}; allowed: the current page")
    figures = dict(zip(_FIGURES, (cell.strip() for cell in found[1].split("|")), strict=True))
    line = fill("measured_line", near=NEAR, **{name: figures[text] for name, text in _NAMED.items()})
    return _MARKED.sub(lambda match: f"{match[1]}{line}{match[2]}", text)


def _order(line: str) -> str:
    """Write how policies order in the cases of a cell, a sentence for each pair."""
    cases, _, pairs = line.partition(": ")
    return f"- {cases}: {pairs.replace(', ', '. ')}."


def _summary(summary: pd.DataFrame) -> str:
    lines = [
        (
            str(row["class"]),
            str(row["used"]),
            str(row["rows"]),
            *(f"{row[name]:.2f}" for name in ("median", "low", "high", "off", "factor")),
            f"{row['near']:.0%}",
            f"{row['worst']:.2f}x",
        )
        for row in summary.to_dict("records")
    ]
    return table(("class", "used"), _FIGURES, lines)


def _section(name: object, rows: pd.DataFrame) -> dict[str, str]:
    records = rows.to_dict("records")
    return {
        "title": str(name)[:1].upper() + str(name)[1:],
        "table": table(
            ("row", "machine", "used"), ("measured", "predicted", "ratio"), [_line(row) for row in records]
        ),
        "causes": "\n".join(_causes(records)),
    }


def _line(row: dict[Any, Any]) -> tuple[str, ...]:
    used = FITTED if row["used"] == FITTED else ""
    if row["ratio"] == "":
        return str(row["says"]), str(row["machine"]), used, _value(row, "measured"), str(row["message"]), ""
    ratio = f"{float(row['ratio']):.2f}"
    return (
        str(row["says"]),
        str(row["machine"]),
        used,
        _value(row, "measured"),
        _value(row, "predicted"),
        ratio,
    )


def _value(row: dict[Any, Any], column: str) -> str:
    return f"{float(row[column]):.4g} {row['unit']}"


def _causes(rows: Iterable[dict[Any, Any]]) -> Iterable[str]:
    for row in rows:
        if row["cause"]:
            first, *others = re.split(r"; | \| ", str(row["cause"]))
            sentences = [first, *map(_sentence, others)]
            yield f"- {row['says']}, {row['machine']}: {'. '.join(sentences)}."


def _sentence(text: str) -> str:
    """Begin a text as a sentence does, or with the key of a policy as code."""
    policy = re.match(r"(\w+(?:\(.*?\))?): ", text)
    return f"`{policy[1]}`: {text[policy.end() :]}" if policy else text[:1].upper() + text[1:]
