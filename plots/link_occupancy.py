"""Link occupancy: what crosses an uplink that GPUs share, over one iteration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.panels import panels
from g10sim.plots.traces import records, that_ran

_STEPS = 240
_NONE = "NONE"
_IN, _OUT = "#4477AA", "#EE6677"

Numbers = npt.NDArray[np.float64]


def draw(results: pd.DataFrame, kernels: pd.DataFrame, migrations: pd.DataFrame) -> Figure:
    """Draw the rates of all GPUs together over the last iteration, a panel per policy that runs.

    Titles have performance. Copies from the GPUs are drawn upwards, copies to them downwards. What was not
    copied (new memory) does not count.
    """
    ran = that_ran(results).drop_duplicates("cell")
    copies = migrations[(migrations["source"] != _NONE) & (migrations["target"] != _NONE)]
    made = panels(
        [f"{_parameters(row['policy'])}: {row['performance']:.0%}" for row in records(ran)],
        columns=1,
        row_inches=0.8,
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
        for part, colour, sign in ((own[leaving], _OUT, 1), (own[~leaving], _IN, -1)):
            rates = np.diff(_copied(part, edges)) / np.diff(edges) / ms / 1e6
            axes.stairs(sign * rates, (edges - edges[0]) * ms, fill=True, color=colour, linewidth=0)
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
