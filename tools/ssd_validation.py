"""Agreement of the flash model with tables measured with MQSim (Tavakkol et al., FAST 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from g10sim.config.flash_array import request_rate
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.errors import ConfigError
from g10sim.hardware.flash.device import FlashDevice
from g10sim.hardware.flash.ftl import new_layer
from tools.rewriting import Rewriting, rewrite

_GB = 1e9
_MIB = 2**20
_DEEP_BYTES = 8 * _MIB
_BOTH_DEEP_BYTES = 16 * 10**6
_LARGE_MIB = 32
_VICTIMS_AT_ONCE = 10

ORDERS = {"sequential": "periodic", "random+read": "random"}

Row = Any
Quantity = tuple[str, float, float, float | None]
"""A quantity of a row: its name, what MQSim measured, what the model says, and the limit of the error."""


@dataclass(frozen=True)
class Comparison:
    """One quantity of one row: the value that MQSim measured and that of the model.

    ``limit`` is the largest error that is accepted, None where the model makes no claim.
    """

    table: str
    row: str
    quantity: str
    measured: float
    modelled: float
    limit: float | None

    @property
    def error(self) -> float:
        """Relative error; if MQSim measured 0, infinite unless the model gives 0 as well."""
        if self.measured:
            return self.modelled / self.measured - 1
        return math.inf if self.modelled else 0.0

    @property
    def agrees(self) -> bool:
        """True if the error is within the limit, or there is no limit."""
        return self.limit is None or abs(self.error) <= self.limit


def compare(directory: Path) -> tuple[Comparison, ...]:
    """Compare every row of the tables in a directory. Raises ConfigError when one is missing."""
    import pandas as pd

    tables: dict[str, Callable[[Row], tuple[str, list[Quantity]]]] = {
        "parallelism_sweep": _rates,
        "seq_read_write": _requests,
        "mixed_read_write": _concurrent,
        "gc_steady_state": _extents,
        "gc_tensor_mix": _tensors,
    }
    found: list[Comparison] = []
    for name, compared in tables.items():
        path = directory / f"{name}.csv"
        if not path.is_file():
            raise ConfigError(f"{path}: found no file; allowed: a directory of tables measured with MQSim")
        for row in pd.read_csv(path).itertuples():
            words, quantities = compared(row)
            found += [Comparison(name, words, *quantity) for quantity in quantities]
    return tuple(found)


def device_of(row: Row, **changes: Any) -> FlashSsdSpec:
    """Describe the device that a row was measured on. MQSim keeps one die of a chip busy: a chip is a die."""
    wide = row.config.startswith("znand")
    description = {
        "model": "flash",
        "interface": f"{row.pcie_eff_GBps} GB/s",
        "channels": row.channels,
        "dies": row.chips_per_channel,
        "planes": row.planes_per_die,
        "blocks": row.blocks_per_plane,
        "pages": row.pages_per_block,
        "page_size": f"{row.page_bytes} B",
        "bus": f"{row.bus_eff_GBps_per_channel} GB/s",
        "read": f"{row.tR_us} us",
        "program": f"{row.tPROG_us} us",
        "erase": f"{row.tBERS_us} us",
        "copy_planes": row.planes_per_die if wide else 1,
        "channel_order": "rounds",
        "controller_latency": "0 ns",
        "write_buffer": f"{row.cache_MiB if row.write_cache else 0} MiB",
        "write_window": 1,
        "write_floor": 0,
        "overprovisioning": row.op_ratio,
        "collection": {"start": 0.01, "urgent": 0.01},
        "rating": {"cycles": 1, "written": "1 TB", "years": 1},
        **changes,
    }
    return FlashSsdSpec.model_validate(description)


def _rate(row: Row, direction: str, modelled: float, limit: float | None) -> Quantity:
    return f"{direction} GB/s", getattr(row, f"{direction}_GBps"), modelled / _GB, limit


def _cache(row: Row) -> str:
    return "cache" if row.write_cache else "no cache"


def _rates(row: Row) -> tuple[str, list[Quantity]]:
    """Compare rates of deep queues; what is given up alongside MQSim's write cache has its own limit."""
    spec = device_of(row)
    array, link = spec.array, spec.interface
    writes = min(link, array.write_rate(array.pages_from_buffer(1) if row.write_cache else None))
    reads = min(link, array.read_rate())
    limit = 0.01 if not row.write_cache else (0.2 if row.config == "tlc_pcie5" else 0.03)
    return f"{row.config}, {row.sweep}", [_rate(row, "write", writes, limit), _rate(row, "read", reads, 0.01)]


def _requests(row: Row) -> tuple[str, list[Quantity]]:
    """Compare rates and latencies (which follow by Little's law) by request size and depth."""
    spec = device_of(row)
    depth, size = int(row.queue_depth), int(row.request_KiB) * 1024
    outstanding = depth * size
    limit: float | None = 0.2
    if outstanding >= _DEEP_BYTES:
        limit = 0.01
    elif depth == 1:
        limit = 0.06
    quantities = []
    for direction in ("write", "read"):
        writes = direction == "write"
        window = 1 if writes and row.write_cache else 0
        rate = request_rate(spec.array, spec.interface, size, depth, writes=writes)
        if window:
            rate = min(spec.interface, spec.array.write_rate(spec.array.pages_from_buffer(window)))
        allowed = limit if not window else (None if depth == 1 else 0.2)
        quantities.append(_rate(row, direction, rate, allowed))
        latency = getattr(row, f"{direction}_lat_mean_us")
        quantities.append((f"{direction} us", latency, outstanding / rate * 1e6, allowed))
    return f"{row.config}, {_cache(row)}, {row.request_KiB} KiB x {depth}", quantities


def _concurrent(row: Row) -> tuple[str, list[Quantity]]:
    """Compare reads and writes at the same time: independent, or alternating."""
    size = int(row.request_KiB) * 1024
    spec = device_of(row, queue_depth=int(row.qd_write), request_size=f"{size} B")
    device = FlashDevice(spec, new_layer(spec), 10**9)
    deep = size * row.qd_write >= _BOTH_DEEP_BYTES and not row.write_cache and row.pattern == "two_flows"
    limit = (0.05 if row.config.startswith("znand") else 0.2) if deep else None
    if row.pattern == "alternating":
        reads = writes = min(device.equal_rates(), spec.write_bandwidth)
    else:
        reads = device.read_limit(writes=True)
        writes = min(spec.write_bandwidth, device.drain_limit(reads))
    name = f"{row.config}, {row.pattern}, {_cache(row)}, {row.request_KiB} KiB x {row.qd_write}"
    return name, [_rate(row, "read", reads, limit), _rate(row, "write", writes, limit)]


def _extents(row: Row) -> tuple[str, list[Quantity]]:
    """Compare rewrites of extents of one size."""
    size = int(row.extent_MiB * _MIB)
    number = int(row.fill_fraction * row.logical_GiB * 2**30 // size)
    order = ORDERS.get(row.pattern, row.pattern)
    reads = row.pattern == "random+read"
    work = Rewriting([size] * number, order, int(row.request_KiB) * 1024, row.overwrite_x, reads=reads)
    rate: float | None = None
    if row.gc_preemptible and row.extent_MiB >= 1:
        rate = 0.25 if row.extent_MiB >= _LARGE_MIB else 0.15
    return _rewritten(row, work, 0.1, rate)


def _tensors(row: Row) -> tuple[str, list[Quantity]]:
    """Compare rewrites of extents of mixed sizes, log-uniform as in the table."""
    least, most = row.extent_MiB_min, row.extent_MiB_max
    random = Random(0)
    sizes = [least * math.exp(random.random() * math.log(most / least)) for _ in range(row.extents)]
    scale = row.fill_fraction * row.logical_GiB * 1024 / sum(sizes) if most > least else 1
    extents = [max(1, round(size * scale)) * _MIB for size in sizes]
    work = Rewriting(
        extents, row.order, int(row.request_KiB) * 1024, row.overwrite_x, int(row.concurrent_streams)
    )
    return _rewritten(row, work, 0.15, 0.15)


def _rewritten(
    row: Row, work: Rewriting, amplification: float, rate: float | None
) -> tuple[str, list[Quantity]]:
    start = max(row.gc_threshold, 10 / row.blocks_per_plane)
    urgent = row.gc_hard_threshold if row.gc_preemptible else start
    collection = {"start": start, "urgent": urgent, "at_once": _VICTIMS_AT_ONCE}
    result = rewrite(device_of(row, collection=collection), work)
    return row.run.replace("_", " "), [
        ("write amplification", row.WA, result.write_amplification, amplification),
        _rate(row, "write", result.write_rate, rate),
    ]
