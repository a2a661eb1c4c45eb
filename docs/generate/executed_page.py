"""The table of executed steps alongside predictions, in the page of executed plans."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pandas as pd
from tables import table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_BEGIN, _END = "<!-- executed -->\n", "<!-- end of executed -->\n"
_NEAR = (1.1, 1.25)


def page(text: str, first: Path, others: Sequence[Path]) -> str:
    """Return the page with the table of a ``measured.csv`` of ``g10sim execute --measure``, all in words."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    cells = pd.read_csv(first)
    policies = list(dict.fromkeys(cells.policy))
    rows = []
    for (model, budget), group in cells.groupby(["model", "budget"], sort=False):
        by_policy = group.set_index("policy")
        overhead = f"{(group.unlimited_ms / group.plain_ms).iloc[0]:.2f}"
        rows.append([model, overhead, budget, *(_cell(by_policy.loc[policy]) for policy in policies)])
    head = ("model", "no limit", "budget", *(_name(policy) for policy in policies))
    words = "\n".join(_summary(pd.read_csv(path), _machine(path)) for path in (first, *others))
    return f"{before}{_BEGIN}\n{table(head, (), rows)}\n{words}\n\n{_END}{after}"


def _machine(path: Path) -> str:
    """Return the GPU's name: the first line of the machine that was written with the cells ends with it."""
    first, *_ = path.with_suffix(".yaml").read_text(encoding="utf-8").splitlines()
    return first.removeprefix("# Measured on ").rstrip(".")


def _name(policy: str) -> str:
    return policy if policy == "demand" else f"`{policy}`"


def _cell(row: pd.Series) -> str:
    if pd.isna(row.ratio):
        return "too small"
    return f"{row.predicted_slowdown:.2f} → {row.measured_slowdown:.2f}"


def _summary(cells: pd.DataFrame, machine: str) -> str:
    ratios = cells.ratio.dropna()
    far = ratios.where(ratios >= 1, 1 / ratios)
    near = " and ".join(f"{(far <= bar).sum()} within {bar:g} times" for bar in _NEAR)
    by_policy = cells.dropna(subset="ratio").groupby("policy", sort=False).ratio.median()
    parts = ", ".join(f"{_name(policy)} {ratio:.2f}" for policy, ratio in by_policy.items())
    worst = cells.loc[far.idxmax()]
    where = f"{worst.model}, {worst.budget}, {worst.policy}"
    return (
        f"- **{machine}**: of {len(ratios)} cells {near}. The median of measured over predicted is "
        f"{median(ratios):.2f}: {parts}. The worst is {worst.ratio:.2f} ({where})."
    )
