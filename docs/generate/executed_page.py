"""The table of executed steps alongside predictions, in the page of executed plans."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pandas as pd
from tables import table

if TYPE_CHECKING:
    from pathlib import Path

_BEGIN, _END = "<!-- executed -->\n", "<!-- end of executed -->\n"
_NEAR = (1.1, 1.25)


def page(text: str, measured: Path) -> str:
    """Return the page with the table of a ``measured.csv`` of ``g10sim execute --measure``."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    cells = pd.read_csv(measured)
    policies = list(dict.fromkeys(cells.policy))
    rows = []
    for (model, budget), group in cells.groupby(["model", "budget"], sort=False):
        by_policy = group.set_index("policy")
        overhead = f"{(group.unlimited_ms / group.plain_ms).iloc[0]:.2f}"
        rows.append([model, overhead, budget, *(_cell(by_policy.loc[policy]) for policy in policies)])
    head = ("model", "no limit", "budget", *(_name(policy) for policy in policies))
    return f"{before}{_BEGIN}\n{table(head, (), rows)}\n{_summary(cells, policies)}\n{_END}{after}"


def _name(policy: str) -> str:
    return policy if policy == "demand" else f"`{policy}`"


def _cell(row: pd.Series) -> str:
    if pd.isna(row.ratio):
        return "too small"
    return f"{row.predicted_slowdown:.2f} → {row.measured_slowdown:.2f}"


def _summary(cells: pd.DataFrame, policies: list[str]) -> str:
    ratios = cells.ratio.dropna()
    far = ratios.where(ratios >= 1, 1 / ratios)
    near = " and ".join(f"{(far <= bar).sum()} within {bar:g} times" for bar in _NEAR)
    parts = (
        f"{_name(policy)} {median(cells.ratio[cells.policy == policy].dropna()):.2f}" for policy in policies
    )
    worst = cells.loc[far.idxmax()]
    where = f"{worst.model}, {worst.budget}, {worst.policy}"
    return (
        f"Of {len(ratios)} cells {near}. The median of measured over predicted is {median(ratios):.2f}: "
        f"{', '.join(parts)}. The worst is {worst.ratio:.2f} ({where}).\n"
    )
