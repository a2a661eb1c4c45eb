"""Activations that the forward pass saves for the backward pass, by module."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from g10sim.analysis.gradients import first_backward_kernel
from g10sim.trace.model import Device, TensorKind, Trace

_NO_ACTIVATIONS = {TensorKind.WEIGHT, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE, TensorKind.WORKSPACE}


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that waits from kernel ``since``, its last use in the forward pass, to kernel ``until``."""

    tensor: int
    since: int
    until: int


def saved_tensors(trace: Trace) -> tuple[Saved, ...]:
    """Return the activations that the backward pass reads and the forward pass made, in order of ``since``.

    A tensor is an allocation, so that what several operators save of it is one; weights that are saved are no
    activations.
    """
    first, found = first_backward_kernel(trace), []
    for tensor, uses in enumerate(trace.uses):
        one = trace.tensors[tensor]
        place = bisect_left(uses, first)
        if not one.persistent and one.kind not in _NO_ACTIVATIONS and 0 < place < len(uses):
            found.append(Saved(tensor, uses[place - 1], uses[place]))
    return tuple(sorted(found, key=lambda saved: (saved.since, saved.tensor)))


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
