"""Several batches of a forward pass in place of one: a block, which runs layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from g10sim.errors import TraceError
from g10sim.trace.model import Kernel, Phase, TensorKind, Trace
from g10sim.trace.order import vertical

_TRAINING = Phase.BACKWARD, Phase.OPTIMIZER
_ANY = "*"
"""Number of the layer in names and paths of layers that a trace stores once."""


def block_of(trace: Trace, batches: int, place: str = "trace") -> Trace:
    """Return the trace of several batches, in which all of them run a layer before the next one.

    This is the zig-zag order of FlexGen (Sheng et al., ICML 2023): the weights of a layer are in use once for
    all batches. Raises TraceError, its message begun with ``place``, where :func:`in_batches` does, and for
    less than two batches.
    """
    return vertical(in_batches(trace, batches, place), place)


def in_batches(trace: Trace, count: int, place: str = "trace") -> Trace:
    """Return the trace with ``count`` batches like its own, one after another, as micro-batches.

    They share persistent tensors that no kernel writes: weights. Of all others, such as keys and values, each
    batch has its own. Layers that the trace stores once, with ``*`` for their number, have one each.

    Raises TraceError, its message begun with ``place``, for a trace that has micro-batches already, or whose
    kernels train.
    """
    for kernel in trace.kernels:
        if kernel.micro_batch or kernel.phase in _TRAINING:
            found = f"phase {kernel.phase.value}" if kernel.phase in _TRAINING else "a micro-batch"
            raise TraceError(
                f"{place}: kernel {kernel.id} ({kernel.name}) is of {found}; allowed: forward passes of one "
                "batch"
            )
    shared = {tensor.id for tensor in trace.tensors if tensor.persistent} - trace.written
    tensors, kernels, layers = list(trace.tensors), list[Kernel](), list(layer_paths(trace))
    for batch in range(1, count + 1):
        new = list(range(len(trace.tensors)))
        for tensor in trace.tensors if batch > 1 else ():
            if tensor.id not in shared:
                new[tensor.id] = len(tensors)
                named = f"{tensor.name} of batch {batch}"
                tensors.append(replace(tensor, id=len(tensors), name=named))
        for kernel in trace.kernels:
            layer = layers[kernel.id]
            own = replace(kernel.renumbered(new), id=len(kernels), layer=layer, micro_batch=batch)
            kernels.append(own)
    origin = {**trace.origin, "batches": str(count)}
    return replace(
        trace,
        batch_size=count * trace.batch_size,
        tensors=tuple(tensors),
        kernels=tuple(kernels),
        origin=origin,
        given_ids=(),
    )


def layer_paths(trace: Trace) -> Iterator[str]:
    """Yield the path of every kernel's layer, with its number.

    Layers are numbered in the order in which weights of the same name are first used. Kernels of a module
    without weights belong to the layer of those before.
    """
    numbers, names = dict[int, int](), dict[str, int]()
    for kernel in trace.kernels:
        for tensor in (trace.tensors[number] for number in kernel.inputs):
            if tensor.kind is TensorKind.WEIGHT and _ANY in tensor.name and tensor.id not in numbers:
                numbers[tensor.id] = names.get(tensor.name, 0)
                names[tensor.name] = numbers[tensor.id] + 1
    current = 0
    for path, run in groupby(trace.kernels, attrgetter("layer")):
        found = [[numbers[tensor] for tensor in kernel.inputs if tensor in numbers] for kernel in run]
        current = next((own[0] for own in found if own), current) if _ANY in path else current
        for own in found:
            current = own[0] if own and _ANY in path else current
            yield path.replace(_ANY, str(current), 1)
