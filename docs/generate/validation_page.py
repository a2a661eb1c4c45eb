"""The page of the agreement with published results: relative errors, never the published values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from tables import fill, table


def page(results: Path) -> str:
    """Return the page as Markdown."""
    path = results / "validation.csv"
    if not path.is_file():
        raise SystemExit(f"{path}: found no file; allowed: the output of 'g10sim validate'")
    rows = pd.read_csv(path, keep_default_na=False)
    figures = [(_title(str(figure)), _figure(cells)) for figure, cells in rows.groupby("figure")]
    return fill("validation", summary=_summary(rows), left_out=_left_out(rows), figures=figures)


def _summary(rows: pd.DataFrame) -> str:
    return table(
        ("figure", "policy", "plan"),
        ("exact", "median", "95th percentile", "lowest", "highest", "support differs", "left out"),
        (
            (_title(figure), policy, plan, *_agreement(group))
            for (figure, policy, plan), group in rows.groupby(["figure", "policy", "plan"], sort=False)
        ),
    )


def _agreement(group: pd.DataFrame) -> Iterator[str]:
    errors = [_error(row) for _, row in group.iterrows()]
    compared = pd.Series([error for error in errors if error is not None], dtype=float)
    finite = compared[compared.map(math.isfinite)]
    yield f"{int((finite == 0).sum())} of {len(compared)}" if len(compared) else ""
    for value, sign in (
        (finite.abs().median(), ""),
        (finite.abs().quantile(0.95), ""),
        (finite.min(), "+"),
        (finite.max(), "+"),
    ):
        yield "" if math.isnan(value) else _percent(value, sign)
    for count in (len(compared) - len(finite), errors.count(None)):
        yield str(count) if count else ""


def _error(row: pd.Series[Any]) -> float | None:
    """Error of a row: 0 where both sides are unsupported, infinite where one is, None if left out."""
    if str(row["status"]).partition(":")[0] not in ("ok", "unsupported"):
        return None
    return 0.0 if row["relative_error"] == "" else float(row["relative_error"])


def _left_out(rows: pd.DataFrame) -> list[str]:
    reasons: Counter[str] = Counter()
    for _, row in rows.iterrows():
        status, _, reason = str(row["status"]).partition(": ")
        if _error(row) is None:
            reasons[f"{status}: {reason}" if reason else status] += 1
    return [f"{count} rows {reason}" for reason, count in sorted(reasons.items())]


def _figure(rows: pd.DataFrame) -> str:
    """One line per cell, one column per policy and plan."""
    varying = [name for name in _SETTINGS if rows[name].nunique() > 1]
    several_metrics = rows["metric"].nunique() > 1
    names = ["model", "batch", *varying, *(["metric"] if several_metrics else [])]
    designs = list(dict.fromkeys((row["policy"], row["plan"]) for _, row in rows.iterrows()))
    lines = []
    for key, cells in rows.groupby(names, sort=False):
        found = {(row["policy"], row["plan"]): _cell(row) for _, row in cells.iterrows()}
        lines.append((*map(str, key), *(found.get(design, "") for design in designs)))
    titles = [f"{policy} ({plan})" if plan else policy for policy, plan in designs]
    return table([_SETTINGS.get(name, name) for name in names], titles, lines)


_SETTINGS = {
    "host_gb": "host (GiB)",
    "ssd_gbps": "SSD (GB/s)",
    "pcie_gbps": "PCIe (GB/s)",
    "variation": "variation",
}


def _cell(row: pd.Series[Any]) -> str:
    error = _error(row)
    if error is None:
        return "-"
    if math.isinf(error):
        return "support differs"
    if row["relative_error"] == "":
        return "both unsupported"
    return "0" if error == 0 else _percent(error, sign="+")


def _percent(value: float, sign: str) -> str:
    if value == 0:
        return "0"
    digits = 4 if abs(value) < 1e-3 else 2
    text = format(value * 100, f"{sign}.{digits}f")
    return f"{text}%" if float(text) else f"under {10**-digits:.{digits}f}%"


def _title(figure: str) -> str:
    return figure.replace("fig", "figure ")
