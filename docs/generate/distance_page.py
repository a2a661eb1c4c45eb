"""Distances of policies from their bounds: tables between the marks of a page, and a picture."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from bound_page import CHECKPOINTS, machine_of
from matplotlib.figure import Figure
from scipy.stats import gmean
from tables import table

from g10sim.analysis.bound.bound import iteration_bound
from g10sim.plots import bound
from g10sim.results.reading import read_results
from g10sim.trace.format import load_trace

_MARKED = re.compile(r"(<!-- distances -->\n).*?(<!-- end of distances -->)", re.DOTALL)
_HOST, _G10 = "system.host.memory", "g10"
_SHOWN = "32 GiB"
_TITLES = {"of_bound": "Bound over time:", "over_g10": "Performance over that of `g10`:"}


def page(text: str, results: Path) -> str:
    """Return a page with the tables between its marks written again. Raises ConfigError without results."""
    frame = read_results(results)
    cases = frame.set_index(["trace", _HOST])
    base = cases.loc[cases["policy"] == _G10, "performance"]
    bounds = {case: steady_cycles(*case) for case in base.index}
    steady = frame["of_bound"].notna() & frame["steady"]
    frame.loc[steady, "of_bound"] = cases.index.map(bounds)[steady] / frame.loc[steady, "exec_cycles"]
    frame["over_g10"] = frame["performance"] / base.loc[cases.index].to_numpy()
    tables = (f"{title}\n\n{by_policy(frame, column)}" for column, title in _TITLES.items())
    made = "\n".join(tables)
    return _MARKED.sub(lambda match: f"{match[1]}{made}{match[2]}", text)


def picture(results: Path) -> Figure:
    """Return the figure of the policies that a bound holds for, with one size of host memory."""
    frame = with_all(read_results(results), "of_bound")
    return bound.draw(frame[frame[_HOST] == _SHOWN])


def with_all(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows of the policies that have a value in all of theirs."""
    return frame[frame.groupby("policy")[column].transform(lambda values: values.notna().all())]


def steady_cycles(trace: str, host: str) -> int:
    """Return the bound of steady iterations: the higher of closed form and linear program."""
    found = iteration_bound(load_trace(Path(trace)), machine_of(host), checkpoints=CHECKPOINTS, steady=True)
    return found.cycles


def by_policy(frame: pd.DataFrame, column: str) -> str:
    """Return the table of a column: by policy and host memory its geometric mean, and its lowest value."""
    hosts, rows = frame[_HOST].unique(), []
    for policy, found in with_all(frame, column).groupby("policy", sort=False):
        row = [f"`{policy}`"]
        for host in hosts:
            here = found[found[_HOST] == host]
            lowest = here.loc[here[column].idxmin()]
            row += [f"{gmean(here[column]):.3f}", f"{lowest[column]:.3f} ({Path(lowest['trace']).stem})"]
        rows.append(row)
    return table(("Policy",), [head for host in hosts for head in (host, "lowest")], rows)
