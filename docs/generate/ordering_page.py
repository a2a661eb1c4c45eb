"""The page of how policies order on hardware-like memory, from results of ``configs/ordering.yaml``."""

from __future__ import annotations

from math import exp, log
from pathlib import Path

import numpy as np
import pandas as pd
from tables import fill, table

from g10sim.results.reading import read_results
from g10sim.units import parse_bytes

POLICIES = ("base_uvm", "deepum", "g10", "g10_paced")
HOST = "system.host.memory"
# Jung et al., DeepUM, ASPLOS 2023: over naive unified memory.
_PUBLISHED_DEEPUM = 3.06
_NAMES = ("model", "batch", "host memory")


def page(results: Path) -> str:
    """Return the page. Raises ConfigError when there are no results."""
    frame = read_results(results)
    frame = frame[frame.oversubscription > 1]
    frame["case"] = list(zip(frame.model, frame.batch_size, frame[HOST], strict=True))
    frame = frame.assign(host_bytes=frame[HOST].map(parse_bytes))
    frame = frame.sort_values(["model", "batch_size", "host_bytes"], kind="stable")
    cases = frame.pivot(index="case", columns="policy", values="performance").loc[frame["case"].unique()]
    ordered, paced = (
        (cases.base_uvm < cases.deepum) & (cases.deepum < cases[best]) & (cases[best] <= cases.ideal)
        for best in ("g10", "g10_paced")
    )
    rows = [
        [*map(str, case), *(f"{row[policy]:.2%}" for policy in POLICIES), "" if ordered[case] else "no"]
        for case, row in zip(cases.index, cases.to_dict("records"), strict=True)
    ]
    return fill(
        "ordering",
        ordered=int(ordered.sum()),
        paced=int(paced.sum()),
        cells=len(ordered),
        performance=table(_NAMES, (*POLICIES, "in order"), rows),
        over_base_uvm=_over_base_uvm(frame),
        exceptions=_exceptions(frame, set(cases.index[~ordered])),
    )


def _over_base_uvm(frame: pd.DataFrame) -> str:
    """Return geometric means, by host memory, of the time of Base UVM over that of others and the bound."""
    base = frame[frame.policy == "base_uvm"].set_index("case")
    cycles = frame.pivot(index="case", columns="policy", values="exec_cycles").loc[base.index]
    cycles = cycles.assign(bound=base.exec_cycles * base.of_bound, ideal=base.ideal_cycles)
    columns = (*POLICIES[1:], "bound", "ideal")
    rows = []
    for memory, ratios in np.log(cycles.rdiv(base.exec_cycles, axis=0)).groupby(base.host_bytes):
        slow = ratios[ratios.ideal > log(_PUBLISHED_DEEPUM)]
        means = [f"{exp(ratios[column].mean()):.2f}" for column in columns]
        there = f"{exp(slow.deepum.mean()):.2f}" if len(slow) else ""
        rows.append([f"{memory / 2**30:g} GiB", *means, f"{len(slow)} of {len(ratios)}", there])
    return table(("host memory",), (*columns, "slow cells", "deepum there"), rows)


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
