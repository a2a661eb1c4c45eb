"""Bar chart of performance against a GPU with unlimited memory, one group of bars per trace.

``python plots/quickstart.py RESULTS_DIRECTORY IMAGE`` reads ``results.csv`` and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any colour vision (https://jfly.uni-koeln.de/color/).
_COLOURS = ("#999999", "#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#F0E442")
_DPI = 150


def draw(results: pd.DataFrame) -> Figure:
    """Return the chart of a table of results; cells without a number have no bar."""
    table = results.pivot_table(index="trace", columns="policy", values="performance", sort=False)
    ratios = results.groupby("trace", sort=False)["oversubscription"].first()
    width = 0.8 / len(table.columns)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7, 3.4), dpi=_DPI, layout="constrained")
        axes = figure.add_subplot()
        for place, policy in enumerate(table.columns):
            left = [group - 0.4 + (place + 0.5) * width for group in range(len(table))]
            colour = _COLOURS[place % len(_COLOURS)]
            bars = axes.bar(left, table[policy] * 100, width * 0.92, label=policy, color=colour)
            axes.bar_label(bars, fmt="%.0f%%", padding=2, fontsize=9)
        names = [f"{Path(trace).stem}\nfootprint {ratios[trace]:.2f} x GPU memory" for trace in table.index]
        axes.set_xticks(range(len(table)), names)
        axes.set_ylabel("performance (% of ideal)")
        axes.set_ylim(0, 112)
        axes.set_yticks(range(0, 101, 20))
        figure.legend(loc="outside upper center", ncols=len(table.columns), frameon=False)
    return figure


def main() -> None:
    """Draw the results of a directory into an image file."""
    if len(sys.argv) != 3:
        raise SystemExit(f"usage: {Path(sys.argv[0]).name} RESULTS_DIRECTORY IMAGE")
    directory, image = Path(sys.argv[1]), Path(sys.argv[2])
    image.parent.mkdir(parents=True, exist_ok=True)
    draw(pd.read_csv(directory / "results.csv")).savefig(image, metadata={"Software": None})


if __name__ == "__main__":
    main()
