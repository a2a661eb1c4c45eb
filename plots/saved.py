"""Memory that policies save and the time that it costs, as bars: MSR and EOR of TENSILE in percent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from g10sim.plots.bars import bar_places, mark_missing
from g10sim.plots.style import (
    BLUE,
    GREEN,
    GREY,
    IDEAL,
    ORANGE,
    PINK,
    RED,
    SKY,
    YELLOW,
    Look,
    policy_name,
)
from g10sim.plots.traces import OK, without_ideal
from g10sim.stats.savings import savings

METRICS = {"msr": "memory saved (%)", "eor": "time added (%)"}
"""Columns of ``saved_cells`` and the labels of their axes."""

_WORDS = {
    "across_iterations": {"False": "within iterations"},
    "recomputation": {"False": "swaps only"},
    "swap_out_barrier": {"True": "with barrier"},
    "replan_threshold": {"None": "first plan kept"},
    "score": {name: name.upper() for name in ("doa", "aoa", "wdoa", "swdoa")} | {"combined": "combined"},
    "mode": {"conv": "convolutions", "all": "all layers", "dyn": "dynamic"},
}
_LOOKS: Mapping[str, Look] = {
    "TENSILE": Look("", BLUE),
    "TENSILE, within iterations": Look("", SKY, "...."),
    "TENSILE, with barrier": Look("", GREEN, "xxxx"),
    "TENSILE, cold start": Look("", ORANGE, "////"),
    "vDNN, convolutions": Look("", GREY),
    "vDNN, all layers": Look("", PINK, "\\\\\\\\"),
    "Capuchin": Look("", YELLOW, "++++"),
}
_OTHERS = (Look("", RED, "----"), Look("", "#FFFFFF", "||||"), Look("", "#666666", "oooo"))


def saved_cells(results: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell of every policy but ``ideal``: how it ended, MSR and EOR in percent.

    Columns: ``cell``, ``policy``, ``status``, ``trace`` (of the first job), ``model`` (empty where jobs have
    several), ``jobs``, and those of ``METRICS``, empty where it did not run. Raises ConfigError as
    ``savings`` does, and where there is no policy but ``ideal``.
    """
    shown = without_ideal(results)
    cells = shown.groupby("cell", sort=False).agg(
        policy=("policy", "first"),
        status=("status", "first"),
        trace=("trace", "first"),
        model=("model", "first"),
        models=("model", "nunique"),
        jobs=("trace", "size"),
    )
    cells.loc[cells["models"] > 1, "model"] = ""
    found = savings(results, IDEAL, kernels).set_index("cell")[list(METRICS)] * 100
    return cells.drop(columns="models").join(found).reset_index()


def saved_looks(policies: Iterable[str]) -> dict[str, Look]:
    """Return a look for each policy, with its parameters in words where there are any for them."""
    labels = {policy: policy_label(policy) for policy in dict.fromkeys(policies)}
    others = cycle(_OTHERS)
    return {
        policy: replace(_LOOKS[label] if label in _LOOKS else next(others), label=label)
        for policy, label in labels.items()
    }


def draw_bars(
    axes: Axes, metric: str, groups: list[dict[str, dict[str, Any]]], policies: dict[str, Look]
) -> None:
    """Draw a group of bars for each mapping from policy to cell; what did not run is marked."""
    places, width = bar_places(len(policies))
    for group, cells in enumerate(groups):
        for place, (policy, look) in zip(places, policies.items(), strict=True):
            cell = cells.get(policy)
            if cell is not None and cell["status"] == OK:
                axes.bar(group + place, cell[metric], width, **look.bar())
            elif cell is not None:
                mark_missing(axes, group + place, cell["status"])
    axes.set_xlim(-0.5, max(1, len(groups)) - 0.5)
    axes.tick_params(axis="x", length=0)


def policy_label(policy: str) -> str:
    """Return a policy of column ``policy`` as figures name it, its parameters in words where it has any."""
    name, _, parameters = policy.partition("(")
    pairs = dict(re.findall(r"(\w+)=([^,)]+)", parameters))
    words = [policy_name(name)]
    if "prediction_error" in pairs and pairs.get("replan_threshold") == "None":
        words.append("cold start")
        pairs = {key: pairs[key] for key in pairs if key not in ("prediction_error", "replan_threshold")}
    words += [_WORDS.get(key, {}).get(value, f"{key}={value}") for key, value in pairs.items()]
    return ", ".join(words)
