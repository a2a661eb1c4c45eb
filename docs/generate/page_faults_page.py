"""The page of what page faults cost, from results of ``configs/page_faults.yaml``."""

from __future__ import annotations

from math import isnan
from pathlib import Path

from tables import fill, table

from g10sim.config.presets import load_system
from g10sim.config.system import PageFaultSpec
from g10sim.hardware.faults import demand_rate, fault_batches
from g10sim.results.reading import read_results
from g10sim.units import format_rate

LATENCY, BATCH = "system.page_fault.latency", "system.page_fault.batch"
LATENCIES = ("10 us", "20 us", "45 us", "90 us")
BATCHES = (None, 1024, 256, 64, 1)
SYSTEM = "a100-40g-pcie3-znand"
_BLOCK = 2 << 20


def page(results: Path) -> str:
    """Return the page. Raises ConfigError when there are no results."""
    system = load_system(SYSTEM)
    frame = read_results(results)
    shown = frame.assign(**{BATCH: frame[BATCH].map(_name)})
    cases = shown.pivot(index=["model", "batch_size", "policy", BATCH], columns=LATENCY, values="performance")
    rows = [
        [*map(str, case), *(f"{cases.loc[case][latency]:.1%}" for latency in LATENCIES)]
        for first in dict.fromkeys(case[:3] for case in cases.index)
        for case in ((*first, _name(batch)) for batch in BATCHES)
    ]
    return fill(
        "page_faults",
        link=format_rate(system.pcie.bandwidth),
        bandwidth=table(
            ["faults a batch"],
            LATENCIES,
            [
                [_name(batch), *(f"{_bandwidth(batch, latency):.2f} GB/s" for latency in LATENCIES)]
                for batch in BATCHES
            ],
        ),
        preset=f"{_bandwidth(256, '45 us'):.1f}",
        full=f"{1 / (1 / _bandwidth(256, '45 us') + 1e9 / system.pcie.bandwidth):.1f}",
        performance=table(("model", "batch size", "policy", "faults a batch"), LATENCIES, rows),
    )


def _name(batch: float | None) -> str:
    return "any number" if batch is None or isnan(batch) else str(int(batch))


def _bandwidth(batch: int | None, latency: str) -> float:
    """Return GB/s of a block of 2 MiB."""
    system = load_system(SYSTEM)
    fault = PageFaultSpec(**{**system.page_fault.model_dump(), "latency": latency, "batch": batch})
    waits = fault_batches(_BLOCK, system.gpu.page_size, fault)
    return demand_rate(_BLOCK, system.pcie.bandwidth, fault.latency, waits) / 1e9
