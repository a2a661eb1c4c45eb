"""Layers of a captured trace that run on the CPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from g10sim.errors import TraceError
from g10sim.registry import not_found
from g10sim.trace.model import Device, Kernel, Trace
from g10sim.trace.repetition import each


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
    found = dict.fromkeys(each(trace.kernels, _layer))
    missing = next((layer for layer in layers if layer not in found), None)
    if missing is not None:
        known = sorted(layer for layer in found if layer is not None)
        allowed = f"{known[0]} to {known[-1]}" if known else "none, as no module has a number"
        raise TraceError(f"{place}: found no kernel of layer {missing}; allowed: {allowed}")
    names = {part for path in each(trace.kernels, _path) for part in path}
    unknown = next((module for module in modules if module not in names), None)
    if unknown is not None:
        known_names = sorted(name for name in names if not name.isdigit())
        raise TraceError(f"{place}: found no kernel of module '{unknown}'{not_found(unknown, known_names)}")
    kernels = tuple(
        _moved(kernel) if _layer(kernel) in layers or set(modules) & set(_path(kernel)) else kernel
        for kernel in trace.kernels
    )
    return replace(trace, kernels=kernels)


def _layer(kernel: Kernel) -> int | None:
    return next((int(part) for part in _path(kernel) if part.isdigit()), None)


def _path(kernel: Kernel) -> tuple[str, ...]:
    """Return the path of a kernel's module; that of one on the CPU is empty."""
    return tuple(kernel.layer.split(".")) if kernel.device is Device.GPU else ()


def _moved(kernel: Kernel) -> Kernel:
    return replace(kernel, device=Device.CPU, duration=0, fault_profile=None)
