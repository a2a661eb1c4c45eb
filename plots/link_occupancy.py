"""Link occupancy: what crosses an uplink that GPUs share, over one iteration."""

from __future__ import annotations

from textwrap import fill

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from g10sim.looks import BLUE, ORANGE, Look
from g10sim.plots.panels import handles, panels
from g10sim.plots.traces import records, that_ran

_STEPS = 240
_NONE = "NONE"
_OUT, _IN = Look(ORANGE, label="from the GPUs (up)"), Look(BLUE, label="to the GPUs (down)")
_TITLE_CHARACTERS = 46
_ROW_INCHES, _TITLE_LINE_INCHES = 0.8, 0.12

Numbers = npt.NDArray[np.float64]


def draw(results: pd.DataFrame, kernels: pd.DataFrame, migrations: pd.DataFrame) -> Figure:
    """Draw the rates of all GPUs together over the last iteration, a panel per policy that runs.

    Titles have the share of ideal performance. Copies from the GPUs are drawn upwards, copies to them
    downwards. What was not copied (new memory) does not count.
    """
    ran = that_ran(results).drop_duplicates("cell")
    copies = migrations[(migrations["source"] != _NONE) & (migrations["target"] != _NONE)]
    titles = [
        fill(f"{_parameters(row['policy'])}: {row['performance']:.0%} of ideal", _TITLE_CHARACTERS)
        for row in records(ran)
    ]
    made = panels(
        titles,
        columns=1,
        row_inches=_ROW_INCHES + _TITLE_LINE_INCHES * max(title.count("\n") for title in titles),
        legend=handles((_OUT, _IN)),
        xlabel="time in the last iteration (ms)",
        ylabel="copies (GB/s)",
        shared="xy",
    )
    for axes, row in zip(made.axes, records(ran), strict=True):
        end = int(kernels.loc[kernels["cell"] == row["cell"], "end"].max())
        edges = np.linspace(end - row["exec_cycles"], end, _STEPS + 1)
        ms = float(row["exec_ms"] / row["exec_cycles"])
        own = copies[copies["cell"] == row["cell"]]
        leaving = own["source"] == "GPU"
        for part, look, sign in ((own[leaving], _OUT, 1), (own[~leaving], _IN, -1)):
            rates = np.diff(_copied(part, edges)) / np.diff(edges) / ms / 1e6
            axes.stairs(sign * rates, (edges - edges[0]) * ms, fill=True, color=look.colour, linewidth=0)
        axes.yaxis.set_major_formatter(lambda rate, _: f"{abs(rate):g}")
        axes.axhline(0, color="black", linewidth=0.4)
    return made.figure


def _copied(copies: pd.DataFrame, times: Numbers) -> Numbers:
    """Return the bytes copied by each time, every copy at its mean rate."""
    start, end, size = (copies[name].to_numpy(dtype=np.float64) for name in ("start", "end", "size_bytes"))
    share = np.clip((times[:, None] - start) / np.maximum(1, end - start), 0, 1)
    return np.asarray(share @ size)


def _parameters(policy: str) -> str:
    """Return what a policy's name has in brackets; without brackets, the name."""
    return policy.partition("(")[2].removesuffix(")") or policy
