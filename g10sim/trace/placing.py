"""Layers of a captured trace that run on the CPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from g10sim.errors import TraceError
from g10sim.registry import not_found
from g10sim.trace.batches import layer_paths
from g10sim.trace.model import Device, Trace

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
