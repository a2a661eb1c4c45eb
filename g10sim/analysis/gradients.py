"""Gradients of weights in the order in which the backward pass makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from g10sim.trace.model import Device, Phase, TensorKind, Trace
from g10sim.trace.repetition import each


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are exchanged together: complete when kernel ``ready`` has ended, used by ``users``."""

    size_bytes: int
    ready: int
    users: frozenset[int]


def first_backward_kernel(trace: Trace) -> int:
    """Return the first kernel of the backward pass; without one, the number of kernels."""
    phases = each(trace.kernels, attrgetter("phase"))
    return phases.index(Phase.BACKWARD) if Phase.BACKWARD in phases else len(phases)


def gradient_buckets(trace: Trace, bucket_bytes: int) -> tuple[Bucket, ...]:
    """Group gradients, in order of completion, into buckets of at least that many bytes.

    A gradient of a weight is a tensor of kind gradient that the optimizer reads; it is complete when the last
    kernel has written it before the optimizer first does. What collectives make has been exchanged. A bucket
    is smaller when it is the last, or when the optimizer needs one of its gradients before the next one is
    complete.
    """
    writers: dict[int, int] = {}
    ready: dict[int, int] = {}
    users: dict[int, set[int]] = {}
    for kernel in trace.kernels:
        if kernel.phase is Phase.OPTIMIZER:
            for tensor in kernel.inputs:
                if trace.tensors[tensor].kind is TensorKind.GRADIENT and tensor in writers:
                    ready.setdefault(tensor, writers[tensor])
                    users.setdefault(tensor, set()).add(kernel.id)
        elif kernel.device is not Device.LINKS:
            writers.update(dict.fromkeys(kernel.outputs, kernel.id))
    gradients = [
        Bucket(trace.tensors[tensor].size_bytes, kernel, frozenset(users[tensor]))
        for tensor, kernel in ready.items()
    ]
    return tuple(_merged(sorted(gradients, key=lambda gradient: gradient.ready), bucket_bytes))


def _merged(gradients: Sequence[Bucket], bucket_bytes: int) -> list[Bucket]:
    buckets: list[Bucket] = []
    for gradient in gradients:
        last = buckets[-1] if buckets else None
        if last is None or last.size_bytes >= bucket_bytes or gradient.ready >= min(last.users):
            buckets.append(gradient)
        else:
            size_bytes = last.size_bytes + gradient.size_bytes
            buckets[-1] = Bucket(size_bytes, gradient.ready, last.users | gradient.users)
    return buckets
