"""Working sets: the tensors that a kernel needs resident."""

from __future__ import annotations

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.trace.model import TensorKind, Trace


def working_set_bytes(trace: Trace) -> Integers:
    """Bytes of the tensors that each kernel touches, each tensor once."""
    sizes = [tensor.size_bytes for tensor in trace.tensors]
    return np.array([sum(sizes[i] for i in kernel.tensors) for kernel in trace.kernels], dtype=np.int64)


def working_set_bytes_by_kind(trace: Trace) -> dict[TensorKind, Integers]:
    """Bytes of the tensors that each kernel touches, for every kind of tensor that the trace has."""
    every = {
        kind: np.zeros(len(trace.kernels), dtype=np.int64)
        for kind in dict.fromkeys(tensor.kind for tensor in trace.tensors)
    }
    for kernel in trace.kernels:
        for number in kernel.tensors:
            tensor = trace.tensors[number]
            every[tensor.kind][kernel.id] += tensor.size_bytes
    return every


def largest_working_set(trace: Trace) -> tuple[int, int]:
    """(kernel, bytes) of the first kernel with the largest working set: the least GPU memory that can do."""
    sizes = working_set_bytes(trace)
    kernel = int(sizes.argmax())
    return kernel, int(sizes[kernel])
