"""Memory that a trace needs: live bytes over time, working sets of kernels, footprint, oversubscription."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain, groupby
from operator import attrgetter

import numpy as np

from g10sim.analysis.gradients import gradient_buckets
from g10sim.analysis.pools.operations import stays_of
from g10sim.analysis.timeline import Integers, prefix_sums
from g10sim.trace.model import Phase, TensorKind, Trace
from g10sim.trace.repetition import each, named

_SIZE, _NEEDED = attrgetter("size_bytes"), attrgetter("tensors")
_FACTS = attrgetter("persistent", "kind", "size_bytes")


def live_bytes(trace: Trace) -> Integers:
    """Bytes alive during each kernel: persistent tensors, live ranges, and what the kernel touches.

    The last part adds results that are written after nothing reads the tensor any more: a kernel needs
    room for them all the same.
    """
    return sum(live_bytes_by_kind(trace).values(), np.zeros(len(trace.kernels), dtype=np.int64))


def live_bytes_by_kind(trace: Trace) -> dict[TensorKind, Integers]:
    """Bytes alive during each kernel (:func:`live_bytes`), for every kind of tensor that the trace has."""
    every = _zeros_by_kind(trace, len(trace.kernels) + 1)
    for number, (lasts, kind, size) in enumerate(each(trace.tensors, _FACTS)):
        lasts = lasts and number not in trace.only_on_cpu
        for start, end in [(0, len(trace.kernels))] if lasts else stays_of(trace, number):
            every[kind][start] += size
            every[kind][end] -= size
    return {kind: np.cumsum(changes[:-1]) for kind, changes in every.items()}


def _zeros_by_kind(trace: Trace, length: int) -> dict[TensorKind, Integers]:
    """Return an array of zeros for every kind of tensor that the trace has."""
    kinds = dict.fromkeys(each(trace.tensors, attrgetter("kind")))
    return {kind: np.zeros(length, dtype=np.int64) for kind in kinds}


def unmoved_bytes(trace: Trace, sizes: Sequence[int], *, counts_late_uses: bool = True) -> Integers:
    """Return the bytes in use during each kernel if nothing leaves the GPU before its death.

    Persistent tensors are there all the time, others from their first kernel to their death, and, with
    ``counts_late_uses``, during kernels that write them after it. Tensors that no kernel uses do not count.
    """
    kernels, lasting = len(trace.kernels), np.array(trace.lasting, dtype=np.bool_)
    last_uses = np.array([uses[-1] if uses else -1 for uses in trace.uses], dtype=np.int64)
    starts, ends = np.where(lasting, 0, trace.births), np.where(lasting, kernels, trace.deaths)
    spans = np.column_stack([starts, ends, sizes]).astype(np.int64)[last_uses >= 0]
    late = np.flatnonzero(last_uses >= ends).tolist() if counts_late_uses else ()
    again = [(*stay, sizes[tensor]) for tensor in late for stay in stays_of(trace, tensor)[1:]]
    return levels(np.concatenate([spans, np.reshape(again, (-1, 3))]) if again else spans, kernels)


def levels(spans: Iterable[tuple[int, int, int]] | Integers, kernels: int) -> Integers:
    """Return the bytes during each kernel of spans: first kernel, kernel after the last one, and bytes."""
    rows = spans if isinstance(spans, np.ndarray) else np.array([*spans], dtype=np.int64).reshape(-1, 3)
    changes, (starts, ends, sizes) = np.zeros(kernels + 1, dtype=np.int64), rows.T
    np.add.at(changes, starts, sizes)
    np.subtract.at(changes, ends, sizes)
    return changes[:-1].cumsum()


def peak_live_bytes(trace: Trace) -> int:
    """Most bytes alive at a time: the GPU memory with which nothing ever has to leave it."""
    return int(live_bytes(trace).max(initial=0))


def footprint_bytes(trace: Trace) -> int:
    """Bytes of all tensors of an iteration, alive at the same time or not (as in the G10 paper)."""
    return sum(each(trace.tensors, _SIZE))


def static_bytes(trace: Trace) -> int:
    """Bytes of a network-wide static allocation, the baseline of vDNN (MICRO 2016, section IV-A, figure 2).

    All feature maps, twice the largest of them for gradients, the largest scratch space, and everything that
    stays: weights, their gradients' buffers not counted.
    """
    kinds = (TensorKind.ACTIVATION, TensorKind.INPUT)
    kept = sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent)
    maps = [tensor.size_bytes for tensor in trace.tensors if tensor.kind in kinds and not tensor.persistent]
    scratch = max((trace.workspace_bytes(kernel) for kernel in trace.kernels), default=0)
    return sum(maps) + 2 * max(maps, default=0) + scratch + kept


def mean_gradient_bytes(trace: Trace) -> float:
    """Bytes of the gradients of weights, averaged over the time of an iteration in which no kernel waits."""
    durations = np.array([kernel.duration for kernel in trace.kernels], dtype=np.float64)
    ends = prefix_sums(durations)
    found = 0.0
    for bucket in gradient_buckets(trace, bucket_bytes=1):
        found += bucket.size_bytes * (ends[max(bucket.users) + 1] - ends[bucket.ready])
    return float(found / ends[-1]) if ends[-1] else 0.0


def visited_weight_bytes(trace: Trace) -> int:
    """Bytes of weights that the passes of a step bring in if the GPU keeps those of one block at a time.

    The update of the weights is not counted.
    """
    found, before = 0, frozenset[int]()
    passes = (kernel for kernel in trace.kernels if kernel.phase is not Phase.OPTIMIZER)
    for _, kernels in groupby(passes, attrgetter("block")):
        used = {tensor for kernel in kernels for tensor in kernel.tensors}
        weights = frozenset(number for number in used if trace.tensors[number].kind is TensorKind.WEIGHT)
        found += sum(trace.tensors[number].size_bytes for number in weights - before)
        before = weights or before
    return found


def oversubscription(trace: Trace, gpu_memory_bytes: int) -> float:
    """Footprint / GPU memory; where dead tensors are released, a trace may fit above 1."""
    return float(Fraction(footprint_bytes(trace), gpu_memory_bytes))


def working_set_bytes(trace: Trace, sizes: Sequence[int] = ()) -> Integers:
    """Bytes of the tensors that each kernel needs, each tensor once; ``sizes`` are their bytes if given."""
    each_use = np.fromiter(chain.from_iterable(trace.uses), dtype=np.int64)
    counts = np.array([*map(len, trace.uses)], dtype=np.int64)
    needed = np.zeros(len(trace.kernels), dtype=np.int64)
    np.add.at(needed, each_use, np.repeat(sizes or each(trace.tensors, _SIZE), counts))
    return needed


def working_set_bytes_by_kind(trace: Trace) -> dict[TensorKind, Integers]:
    """Bytes of the tensors that each kernel touches, for every kind of tensor that the trace has."""
    every = _zeros_by_kind(trace, len(trace.kernels))
    facts = each(trace.tensors, _FACTS)
    for kernel, tensors in enumerate(named(trace.kernels, _NEEDED)):
        for _, kind, size in map(facts.__getitem__, tensors):
            every[kind][kernel] += size
    return every


def largest_working_set(trace: Trace) -> tuple[int, int]:
    """(kernel, bytes) of the first kernel with the largest working set: the least GPU memory that can do."""
    sizes = working_set_bytes(trace)
    kernel = int(sizes.argmax())
    return kernel, int(sizes[kernel])
