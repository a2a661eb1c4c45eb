"""The page of how policies order on hardware-like memory, from results of ``configs/ordering.yaml``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tables import table

from g10sim.experiment.results import read_results

POLICIES = ("base_uvm", "deepum", "g10")
HOST = "system.host.memory"
_NAMES = ("model", "batch", "host memory")
_INTRODUCTION = """# Base UVM < DeepUM+ < G10 <= Ideal?

Written by `python docs/generate ordering` from results of `configs/ordering.yaml` on the traces measured
for the G10 paper, imported with `g10sim trace import gpg`, without `compat`. Performance is the time of Ideal
over that of the policy.
"""
_EXCEPTIONS = """## Exceptions

Where all that is alive at a time fits the GPU (no SSD traffic below), nothing has to leave it: DeepUM+ and
G10 differ by when they ask for new pages, some thousandths of a percent. In the other exceptions the SSD is
busy almost all the time, and the policy that moves fewer bytes wins. Base UVM and DeepUM+ evict what was used
longest ago, when memory is full, and nothing else; G10 evicts in inactive periods ahead of time, to have room
later, and so moves more. Its planner reckons with the time that the GPU will wait, but not with the transfers
that waiting would save.

Stalls are shares of the policy's own time; SSD traffic counts one direction, reading.
"""


def page(results: Path) -> str:
    """Return the page. Raises ConfigError when there are no results."""
    frame = read_results(results)
    frame = frame[frame.oversubscription > 1]
    frame["case"] = list(zip(frame.model, frame.batch_size, frame[HOST], strict=True))
    cases = frame.pivot(index="case", columns="policy", values="performance")
    ordered = (cases.base_uvm < cases.deepum) & (cases.deepum < cases.g10) & (cases.g10 <= cases.ideal)
    rows = [
        [*map(str, case), *(f"{row[policy]:.2%}" for policy in POLICIES), "" if ordered[case] else "no"]
        for case, row in zip(cases.index, cases.to_dict("records"), strict=True)
    ]
    parts = [
        _INTRODUCTION,
        f"The order holds in {int(ordered.sum())} of {len(ordered)} cells.\n",
        table(_NAMES, (*POLICIES, "in order"), rows),
        _EXCEPTIONS,
        _exceptions(frame, set(cases.index[~ordered])),
    ]
    return "\n".join(parts)


def _exceptions(frame: pd.DataFrame, cases: set[tuple[object, ...]]) -> str:
    stalls = [name for name in frame.columns if name.startswith("stall_") and name != "stall_cycles"]
    shown = [name for name in stalls if frame[frame.case.isin(cases)][name].max() > 0]
    rows = []
    for _, row in frame[frame.case.isin(cases) & frame.policy.isin(POLICIES)].iterrows():
        shares = [f"{row[name] / row.exec_cycles:.1%}" for name in shown]
        traffic = f"{row.ssd_to_gpu_bytes / 1e9:.1f}"
        rows.append([*map(str, row.case), row.policy, f"{row.performance:.4%}", *shares, traffic])
    heads = [name.removeprefix("stall_").removesuffix("_cycles").replace("_", " ") for name in shown]
    return table((*_NAMES, "policy"), ("performance", *heads, "SSD traffic (GB)"), rows)
