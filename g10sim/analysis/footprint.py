"""How much memory a trace wants: live bytes over time, footprint, oversubscription."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.analysis.vitality import live_ranges
from g10sim.trace.model import TensorKind, Trace


def live_bytes(trace: Trace) -> Integers:
    """Bytes alive during each kernel: persistent tensors, live ranges, and what the kernel touches.

    The last part adds results that are written after nothing reads the tensor any more: a kernel needs
    room for them all the same.
    """
    return sum(live_bytes_by_kind(trace).values(), np.zeros(len(trace.kernels), dtype=np.int64))


def live_bytes_by_kind(trace: Trace) -> dict[TensorKind, Integers]:
    """Bytes alive during each kernel (:func:`live_bytes`), for every kind of tensor that the trace has."""
    every = {
        kind: np.zeros(len(trace.kernels) + 1, dtype=np.int64)
        for kind in dict.fromkeys(tensor.kind for tensor in trace.tensors)
    }
    for tensor, live in zip(trace.tensors, live_ranges(trace), strict=True):
        changes = every[tensor.kind]
        changes[live.birth] += tensor.size_bytes
        changes[live.death] -= tensor.size_bytes
        for kernel in reversed(trace.uses[tensor.id]):
            if kernel < live.death:
                break
            changes[kernel] += tensor.size_bytes
            changes[kernel + 1] -= tensor.size_bytes
    return {kind: np.cumsum(changes[:-1]) for kind, changes in every.items()}


def peak_live_bytes(trace: Trace) -> int:
    """Most bytes alive at a time: the GPU memory with which nothing ever has to leave it."""
    return int(live_bytes(trace).max(initial=0))


def footprint_bytes(trace: Trace) -> int:
    """Bytes of all tensors of an iteration, alive at the same time or not (as in the G10 paper)."""
    return sum(tensor.size_bytes for tensor in trace.tensors)


def oversubscription(trace: Trace, gpu_memory_bytes: int) -> float:
    """Footprint / GPU memory; where dead tensors are released, a trace may fit above 1."""
    return float(Fraction(footprint_bytes(trace), gpu_memory_bytes))


def excess_bytes(trace: Trace, gpu_memory_bytes: int) -> Integers:
    """Memory pressure: live bytes beyond GPU memory during each kernel, 0 where they fit."""
    return np.maximum(live_bytes(trace) - gpu_memory_bytes, 0)
