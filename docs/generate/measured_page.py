"""The page of measured machines beside predictions, from the files of ``g10sim measured``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from tables import fill, table

from g10sim.experiment.measured import ALL, FITTED, MEASURED, NEAR, PREDICTED, SUMMARY

_MARKED = re.compile(r"(<!-- measured -->\n).*?(<!-- end of measured -->)", re.DOTALL)
_ALL_PREDICTED = re.compile(rf"^\| {ALL} \| {PREDICTED} \| (.*) \|$", re.MULTILINE)
_FIGURES = ("rows", "median", "10 %", "90 %", "factor off", f"within {NEAR}x", "worst")
_NAMED = {"rows": "rows", "median": "median", "off": "factor off", "within": f"within {NEAR}x"}
_MINUTES = "half an hour"


def page(results: Path) -> str:
    """Return the page as Markdown."""
    for name in (MEASURED, SUMMARY):
        if not (results / name).is_file():
            raise SystemExit(f"{results / name}: found no file; allowed: the output of 'g10sim measured'")
    rows = pd.read_csv(results / MEASURED, keep_default_na=False)
    summary = pd.read_csv(results / SUMMARY, keep_default_na=False)
    return fill(
        "measured",
        near=NEAR,
        minutes=_MINUTES,
        summary=_summary(summary),
        sections=[_section(name, group) for name, group in rows.groupby("class", sort=False)],
        sources="\n".join(f"- {text}" for text in sorted(set(rows["source"]))),
    )


def with_line(text: str, measured_page: str) -> str:
    """Return a page with the line about measured machines between its marks, from the page of rows."""
    found = _ALL_PREDICTED.search(measured_page)
    if found is None:
        raise SystemExit(f"docs/measured.md: found no row of {ALL}, {PREDICTED}; allowed: the current page")
    figures = dict(zip(_FIGURES, (cell.strip() for cell in found[1].split("|")), strict=True))
    line = fill("measured_line", near=NEAR, **{name: figures[text] for name, text in _NAMED.items()})
    return _MARKED.sub(lambda match: f"{match[1]}{line}{match[2]}", text)


def _summary(summary: pd.DataFrame) -> str:
    lines = [
        (
            str(row["class"]),
            str(row["used"]),
            str(row["rows"]),
            *(f"{row[name]:.2f}" for name in ("median", "low", "high", "factor")),
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
            yield f"- {row['says']}, {row['machine']}: {str(row['cause']).replace(' | ', '; ')}."
