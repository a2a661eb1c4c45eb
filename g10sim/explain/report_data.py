"""The numbers of a report's charts, as plain data: a row per cell (of several jobs, per job)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from g10sim.plots.points import named
from g10sim.plots.style import IDEAL, looks
from g10sim.results.choosing import differing_keys
from g10sim.results.columns import SHOWN, TITLES, stall_reasons

if TYPE_CHECKING:
    import pandas as pd

_DIGITS = 6
_UNSEEN = ("", "WHITE", "#FFF", "#FFFFFF")
_SPARE = ("#1B9E77", "#D95F02", "#7570B3", "#E7298A", "#66A61E", "#E6AB02", "#A6761D", "#8DA0CB", "#B15928")
"""Colours of series that figures draw white with hatches (ColorBrewer's Dark2 and two more)."""


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
        texts, numbers, title = _values(results, name)
        keys.append({"name": name, "title": title, "texts": list(texts.values()), "numbers": numbers})
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


def _values(results: pd.DataFrame, name: str) -> tuple[dict[Any, str], list[float], str]:
    """Return the values of a key in order: their texts, the same as numbers if they are, and its title."""
    found = named(results, name)
    missing = {None: "none"} if results[name].isna().any() else {}
    return {**found.texts, **missing}, [*found.numbers.values()], found.label


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
