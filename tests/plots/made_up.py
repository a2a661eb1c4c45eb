"""Results as experiments of the paper write them, for any traces, without simulating."""

import numpy as np
import pandas as pd

from g10sim.results.columns import metric_columns
from g10sim.results.tables import inactive_periods_table, working_sets_table
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job

POLICIES = ("ideal", "base_uvm", "flashneuron", "deepum", "g10_gds", "g10_host", "g10")
MODELS = (
    "bert-base-uncased",
    "vit-base-patch16-224",
    "inception_v3",
    "resnet152",
    "legacy_senet154",
    "gpt2-xl",
    "meta-llama/Llama-3.2-1B",
)
FEW = [("bert-base-uncased", 256)]
SOME = [("bert-base-uncased", batch) for batch in (192, 256, 512)]
MANY = [(model, batch) for model in MODELS for batch in (256, 1024)]
"""Models and batch sizes."""

SWEPT = {
    "fig16": ("system.host.memory", ["0 GiB", "16 GiB", "32 GiB", "64 GiB", "128 GiB", "256 GiB"], ["g10"]),
    "fig17": ("system.host.memory", ["0 GiB", "64 GiB", "256 GiB"], ["flashneuron", "deepum", "g10"]),
    "fig18": (
        "system.ssd",
        [f'{{"read_bandwidth": "{speed} GB/s"}}' for speed in (3.2, 6.4, 12.8, 19.2, 25.6, 32)],
        ["base_uvm", "flashneuron", "deepum", "g10"],
    ),
    "fig19": ("workload.variation.magnitude", ["0", "0.05", "0.1", "0.15", "0.2", "0.25"], ["g10"]),
}
GHZ = 10**9
TRACE = chain(8)


def results(figure, traces, *, unsupported=("flashneuron",)):
    """Rows of results.csv of a figure; the policies in ``unsupported`` cannot run the last trace."""
    column, values, policies = SWEPT.get(figure, (None, [None], POLICIES))
    seeds = (0, 1, 2) if figure == "fig19" else (0,)
    rows = []
    for model, batch in traces:
        for value in values:
            for place, policy in enumerate(policies):
                for seed in seeds:
                    row = _row(len(rows), model, batch, policy, place, seed)
                    if column:
                        row[column] = value
                    if policy in unsupported and (model, batch) == traces[-1]:
                        row |= {"status": "unsupported", "message": "too big"}
                        row |= dict.fromkeys(metric_columns(), np.nan)
                    rows.append(row)
    return pd.DataFrame(rows)


def _row(cell, model, batch, policy, place, seed):
    performance = 1.0 if policy == "ideal" else 0.2 + 0.1 * place + 0.01 * seed
    cycles = 10**9
    execution = cycles / performance
    row = {
        "cell": cell, "name": "made up", "trace": f"traces/{model}-{batch}.g10t", "model": model,
        "batch_size": batch, "policy": policy, "seed": seed, "status": "ok", "message": "",
    }  # fmt: skip
    return row | {
        **dict.fromkeys(metric_columns(), 0),
        "ideal_cycles": cycles,
        "exec_cycles": execution,
        "exec_ms": execution / GHZ * 1000,
        "performance": performance,
        "samples_per_s": batch * performance,
        "compute_cycles": cycles / 4,
        "overlap_cycles": cycles * 3 / 4,
        "stall_cycles": execution - cycles,
        "ssd_to_gpu_bytes": place * 10**9,
        "gpu_to_ssd_bytes": place * 2 * 10**9,
        "host_to_gpu_bytes": place * 3 * 10**9,
        "gpu_to_host_bytes": place * 4 * 10**9,
        "footprint_bytes": 60 * 2**30,
        "oversubscription": 1.5,
    }


def tables(names, rows):
    """The Parquet tables of these names, for the cells of some results that ran."""
    made = {"working_sets": working_sets_table, "inactive_periods": inactive_periods_table}
    found = []
    for name in names:
        parts = []
        for cell, status in zip(rows["cell"], rows["status"], strict=True):
            if status == "ok":
                part = made[name]([Job(TRACE)], GHZ) if name in made else _kernels()
                parts.append(part.assign(cell=cell))
        found.append(pd.concat(parts, ignore_index=True))
    return found


def _kernels():
    """Two iterations of four kernels; in the second one they take 1, 2, 4 and 8 times their duration."""
    times = np.array([100, 100, 100, 100, 100, 200, 400, 800])
    ends = np.cumsum(times)
    return pd.DataFrame(
        {
            "job": 0,
            "iteration": [0] * 4 + [1] * 4,
            "kernel": [0, 1, 2, 3] * 2,
            "start": ends - times,
            "end": ends,
            "compute_cycles": 100,
        }
    )
