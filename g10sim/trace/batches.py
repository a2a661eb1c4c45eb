"""Forward passes with weights off the GPU: several batches run as a block, and layers that the CPU runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from g10sim.errors import TraceError, not_found
from g10sim.trace.model import Device, Kernel, Phase, TensorKind, Trace
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
                tensors.append(replace(tensor, id=len(tensors), name=f"{tensor.name} of batch {batch}"))
        for kernel, layer in zip(trace.kernels, layers, strict=True):
            own = replace(kernel.renumbered(new), id=len(kernels), layer=layer, micro_batch=batch)
            kernels.append(own)
    return replace(
        trace,
        batch_size=count * trace.batch_size,
        tensors=tuple(tensors),
        kernels=tuple(kernels),
        origin={**trace.origin, "batches": str(count)},
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


_MOST_DIGITS = 18


def on_cpu(
    trace: Trace, layers: Collection[int], place: str = "trace", *, modules: Collection[str] = ()
) -> Trace:
    """Return the trace with the kernels of some layers and of modules with some names on the CPU.

    Layers are counted by the first number in the path of a kernel's module, as in ``model.layers.3.mlp``;
    ``modules`` are parts of paths, such as ``lm_head``. Such a kernel takes as long as the CPU takes to read
    and write its bytes in host memory (``system.cpu.memory_bandwidth``), which is what limits decoding; its
    duration on the GPU is gone. Raises TraceError, its message begun with ``place``, for layers and modules
    that no kernel on the GPU belongs to.
    """
    paths = [
        path.split(".") if kernel.device is Device.GPU else []
        for path, kernel in zip(layer_paths(trace), trace.kernels, strict=True)
    ]
    names = {part for path in paths for part in path}
    numbers = [next((int(part) for part in path if _is_number(part)), None) for path in paths]
    known = sorted({number for number in numbers if number is not None})
    missing = next((layer for layer in layers if layer not in known), None)
    if missing is not None:
        allowed = f"{known[0]} to {known[-1]}" if known else "none, as no module has a number"
        raise TraceError(f"{place}: found no kernel of layer {missing}; allowed: {allowed}")
    unknown = next((module for module in modules if module not in names), None)
    if unknown is not None:
        choices = sorted(name for name in names if name and not _is_number(name))
        raise TraceError(f"{place}: found no kernel of module '{unknown}'{not_found(unknown, choices)}")
    kernels = tuple(
        replace(kernel, device=Device.CPU, duration=0, fault_profile=None)
        if number in layers or set(modules) & set(path)
        else kernel
        for kernel, number, path in zip(trace.kernels, numbers, paths, strict=True)
    )
    return replace(trace, kernels=kernels)


def _is_number(part: str) -> bool:
    return part.isdecimal() and len(part) <= _MOST_DIGITS
