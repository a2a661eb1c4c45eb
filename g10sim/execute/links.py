"""Measures the links of this computer: rates and latency of copies, and what they take from kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch

from g10sim.capture.devices import CUDA, synchronize
from g10sim.execute.running import MAIN

_WARM, _REPEATS = 1, 5
_SMALL, _FACTOR = 2**16, 4
_MANY = 50


def link(device: str, largest: int) -> dict[str, Any]:
    """Measure copies: their rates each way and both at once, and what one costs before its first byte.

    On a GPU also the share of a kernel's speed that copies take: the mean of a matrix product's and of a copy
    within its memory.
    """
    rates = {}
    for key, ways in (("to_device", (True,)), ("from_device", (False,)), ("duplex", (True, False))):
        small = fastest(_copies(device, _SMALL, ways, _MANY), device) / _MANY
        large = fastest(_copies(device, largest, ways), device)
        seconds = max(large - small, large / _FACTOR)
        rates[key] = int((largest - _SMALL) * len(ways) / seconds)
        if len(ways) == 1:
            latency = max(1, int((small - _SMALL * seconds / (largest - _SMALL)) * 1e9))
    into, out = rates["to_device"], rates["from_device"]
    rates["duplex"] = min(max(rates["duplex"], into, out), into + out)
    pcie = {"bandwidth": None, **{key: f"{rate} B/s" for key, rate in rates.items()}}
    gpu: dict[str, Any] = {"allocation_rate": "1000 TB/s"}  # PyTorch keeps the blocks that it has mapped
    if device == CUDA and (share := _contention(largest)) > 0:
        gpu["copy_contention"] = {"share": round(share, 4)}
    return {
        "gpu": gpu,
        "pcie": {**pcie, "per_copy": f"{latency} ns"},
        "page_fault": {"latency": f"{latency} ns", "batch": None, "eviction": "serial"},
    }


def _copies(device: str, size: int, ways: Iterable[bool], count: int = 1) -> Callable[[], None]:
    """Return what starts as many copies of a size, inwards or out, on a stream for each way."""
    copies: list[tuple[Any, Any, Any]] = []
    for inward in ways:
        host = torch.empty(size, dtype=torch.uint8, device=MAIN, pin_memory=device == CUDA)
        there = torch.empty_like(host, device=device)
        on = torch.cuda.stream(torch.cuda.Stream()) if device == CUDA else nullcontext()
        copies.append((on, there, host) if inward else (on, host, there))

    def start() -> None:
        for on, to, source in copies:
            with on:
                for _ in range(count):
                    to.copy_(source, non_blocking=True)

    return start


def _contention(largest: int) -> float:
    """Return the share of their speed that kernels lose while copies fill the link both ways."""
    square = torch.randn(4096, 4096, dtype=torch.bfloat16, device=CUDA)
    block = torch.empty(2**28, dtype=torch.uint8, device=CUDA)
    other, copies = torch.empty_like(block), _copies(CUDA, largest, (True, False))

    def spent(run: Callable[[], Any], *, with_copies: bool) -> float:
        found = []
        for _ in range(_WARM + _REPEATS):
            torch.cuda.synchronize()
            if with_copies:
                copies()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(_MANY):
                run()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end))
        return float(median(found[_WARM:]))

    kernels = (lambda: square @ square), (lambda: other.copy_(block))
    lost = [1 - spent(run, with_copies=False) / spent(run, with_copies=True) for run in kernels]
    return sum(lost) / len(lost)


def fastest(run: Callable[[], Any], device: str) -> float:
    """Return the seconds of the fastest of several runs after one, until the device has finished."""
    found = []
    for _ in range(_WARM + _REPEATS):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found[_WARM:])


def device_name(device: str) -> str:
    """Return the name of a device."""
    return str(torch.cuda.get_device_name()) if device == CUDA else "the CPU: its memory is the device"
