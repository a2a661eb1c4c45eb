"""The page of published claims alongside what simulations show, from the files of ``g10sim claims``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
from tables import fill, table

from g10sim.reproduce.claims import BUNDLED, CASES, CLAIMS, NOT_REPRODUCED, load_claims
from g10sim.results.cases import written

_MOST_CASES = 12
_COLUMNS = 6
_MARKED = re.compile(r"(<!-- claims -->\n).*?(<!-- end of claims -->)", re.DOTALL)


def page(results: Path) -> str:
    """Return the page as Markdown."""
    for name in (CLAIMS, CASES):
        if not (results / name).is_file():
            raise SystemExit(f"{results / name}: found no file; allowed: the output of 'g10sim claims'")
    claims = pd.read_csv(results / CLAIMS, keep_default_na=False)
    cases = pd.read_csv(results / CASES, keep_default_na=False)
    return fill("claims", counts=_counts(claims), summary=_summary(claims), claims=_sections(claims, cases))


def with_lines(text: str, claims_page: str) -> str:
    """Return a page with the lines about claims between its marks written again, from the page of claims."""
    rows = {}
    for line in claims_page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == _COLUMNS and cells[2] == BUNDLED:
            rows[cells[0], cells[1]] = cells[3:]
    found = {claim.name: rows.get((claim.system, claim.says)) for claim in load_claims().claims}

    def cells_of(name: str) -> list[str]:
        known = found[name]
        if known is None:
            raise SystemExit(f"docs/claims.md: found no row of claim '{name}'; allowed: the current list")
        return known

    def one(name: str) -> str:
        published, here, verdict = cells_of(name)
        return f"{here} ({published}{', ' + verdict if verdict == NOT_REPRODUCED else ''})"

    lines = fill("claims_lines", one=one, here=lambda name: cells_of(name)[1])
    return _MARKED.sub(lambda match: f"{match[1]}{lines}{match[2]}", text)


def _counts(claims: pd.DataFrame) -> str:
    counts = claims["verdict"].value_counts(sort=False)
    return (
        "Of " + f"{len(claims)} measurements: " + ", ".join(f"{n} {name}" for name, n in counts.items()) + "."
    )


def _summary(claims: pd.DataFrame) -> str:
    rows = [
        [
            row["system"],
            row["says"],
            row["data"],
            _text(row, "published"),
            _text(row, "value"),
            row["verdict"],
        ]
        for row in claims.to_dict("records")
    ]
    return table(("design", "claim", "traces"), ("published", "here", "verdict"), rows)


def _sections(claims: pd.DataFrame, cases: pd.DataFrame) -> list[dict[str, Any]]:
    found = []
    for name, rows in claims.groupby("claim", sort=False):
        first = rows.iloc[0]
        mine = cases[cases["claim"] == name]
        lacking = [text for text in rows["lacks"] if text]
        found.append(
            {
                "title": f"{first['system']}: {first['says']}",
                "source": first["source"],
                "means": str(first["means"])[:1].upper() + str(first["means"])[1:],
                "verdicts": " ".join(map(_sentence, rows.to_dict("records"))),
                "lacks": lacking[0] if lacking else "",
                "cases": _cases(mine[mine["tested"] == ""]),
                "notes": _notes(mine),
                "breakdown": _breakdown(str(first["breakdown"])),
                "tested": _tested(mine[mine["tested"] != ""]),
            }
        )
    return found


def _sentence(row: dict[str, Any]) -> str:
    span = f"{written(row['low'], row['unit'])} to {written(row['high'], row['unit'])}"
    value = _text(row, "value") or "nothing"
    return (
        f"Published {_text(row, 'published')}, here **{value}** with {row['data']} traces: "
        f"**{row['verdict']}** ({span} count as reproduced)."
    )


def _cases(rows: pd.DataFrame) -> str:
    """Write the values of cells; of many, the lowest and the highest."""
    texts = []
    for data, group in rows.groupby("data", sort=False):
        ordered = group.assign(value=group["value"].astype(float))
        if len(ordered) > _MOST_CASES:
            ordered = ordered.sort_values("value").iloc[[0, 1, 2, -3, -2, -1]]
        said = ", ".join(f"`{row['case']}` {_text(row, 'value')}" for row in ordered.to_dict("records"))
        texts.append(f"Cells ({data}{', lowest and highest' * (len(group) > _MOST_CASES)}): {said}.")
    return " ".join(texts)


def _breakdown(text: str) -> str:
    """Write where the time of each policy goes, a sentence for each."""
    parts = (part.strip().partition(": ") for part in text.split("|"))
    return " ".join(f"`{policy}`: {shares}." for policy, _, shares in parts)


def _notes(rows: pd.DataFrame) -> str:
    """Write what is to be said of single cells."""
    return "\n".join(f"- {row.case}: {row.note}." for row in rows.itertuples() if row.note)


def _tested(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    lines = [
        [
            row["tested"] + ("" if row["data"] == "bundled" else f" ({row['data']} traces)"),
            _text(row, "value"),
        ]
        for row in rows.to_dict("records")
    ]
    return table(("for comparison",), ("value",), lines)


def _text(row: dict[Any, Any], column: str) -> str:
    value = row[column]
    return "" if value == "" else written(float(value), str(row["unit"]))
