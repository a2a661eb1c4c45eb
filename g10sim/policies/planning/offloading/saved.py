"""Activations that the forward pass saves for the backward pass, by module."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from g10sim.analysis.gradients import first_backward_kernel
from g10sim.policies.planning.timeline import Absence
from g10sim.trace.model import Device, TensorKind, Trace

_NO_ACTIVATIONS = {TensorKind.WEIGHT, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE, TensorKind.WORKSPACE}


def saved_tensors(trace: Trace, sizes: Sequence[int]) -> tuple[Absence, ...]:
    """Return when activations wait that the forward pass made and the backward pass reads, in order.

    A tensor is an allocation, so that what several operators save of it is one; weights that are saved are no
    activations.
    """
    first, found = first_backward_kernel(trace), []
    for tensor, uses in enumerate(trace.uses):
        one = trace.tensors[tensor]
        place = bisect_left(uses, first)
        if not one.persistent and one.kind not in _NO_ACTIVATIONS and 0 < place < len(uses):
            found.append(Absence(tensor, sizes[tensor], uses[place - 1] + 1, uses[place]))
    return tuple(sorted(found, key=attrgetter("start", "tensor")))


def module_starts(trace: Trace) -> Sequence[int]:
    """Return for every kernel the first of those of its module and phase that follow each other.

    Kernels on the CPU do not come between them.
    """
    starts, before = list[int](), None
    for kernel in trace.kernels:
        now = kernel.phase, kernel.block
        is_same = kernel.device is Device.CPU or (now == before and bool(kernel.layer))
        starts.append(starts[-1] if starts and is_same else kernel.id)
        before = before if kernel.device is Device.CPU else now
    return starts


def before_module(starts: Sequence[int], kernel: int, modules: int) -> int:
    """Return the kernel with which a module begins, counted back from that of a kernel."""
    start = starts[kernel]
    for _ in range(modules):
        start = starts[start - 1] if start else 0
    return start
