"""Model FLOPs utilisation: a trace's products at the peak rates of its GPU, against the time they take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from g10sim.analysis.gpus import GpuTimingSpec, gpu_names, load_gpu
from g10sim.analysis.throughput import recomputing_kernels, throughput
from g10sim.trace.model import Trace
from g10sim.trace.work import KernelCost, NumberFormat, OperatorClass

FLOPS_BY_FORMAT = "flops_by_format"
_FORMAT_AND_COUNT = re.compile(rf"\b({'|'.join(NumberFormat)}) ([0-9]{{1,24}})\b")
_LEAST_SHARE = 100
"""A hundredth of the FLOPs: fewer in other formats than the step's need no mention."""


def step_format(origin: Mapping[str, str]) -> NumberFormat | None:
    """Return the format that a step multiplies in by its options; None where they are not known."""
    name = origin.get("autocast") or origin.get("dtype")
    return NumberFormat(name) if name in set(NumberFormat) else None


def usual_format(of_step: NumberFormat, operator_class: str) -> NumberFormat:
    """Return the format that a kernel multiplies in by PyTorch's defaults: tf32 for float32 convolutions."""
    is_rounded = of_step is NumberFormat.FLOAT32 and operator_class == OperatorClass.CONVOLUTION
    return NumberFormat.TF32 if is_rounded else of_step


def unusual_formats(costs: Iterable[KernelCost], origin: Mapping[str, str]) -> str:
    """Return the FLOPs by format as text, where more than 1% are in others than the step's; else empty."""
    of_step = step_format(origin)
    flops: Counter[NumberFormat] = Counter()
    unusual = 0
    for cost in costs:
        flops[cost.number_format] += cost.flops
        if of_step is None or cost.number_format is not usual_format(of_step, cost.operator_class):
            unusual += cost.flops
    if unusual * _LEAST_SHARE <= flops.total():
        return ""
    return ", ".join(f"{name} {count}" for name, count in sorted(flops.items()) if count)


def known_gpu(trace: Trace) -> GpuTimingSpec | None:
    """Return the bundled GPU that a trace was timed for; None for any other."""
    name = trace.origin.get("gpu")
    return load_gpu(name) if name in gpu_names() else None


def utilisation(trace: Trace) -> float | None:
    """Return the share of the GPU's peak that a trace's products reach, without those done again.

    The products of the model at the dense peak rate of their formats, divided by the time of all kernels on
    the GPU (Chowdhery et al., PaLM, arXiv 2204.02311, appendix B). None where the trace counts no FLOPs or
    names no GPU that is known.
    """
    gpu = known_gpu(trace)
    flops = _model_flops(trace)
    seconds = throughput(trace).seconds
    if gpu is None or not flops or not seconds:
        return None
    best = sum(
        gpu.least_seconds(KernelCost("", OperatorClass.MATMUL, number_format, flops=count))[0]
        for number_format, count in flops.items()
    )
    return float(best) / seconds


def _told_formats(trace: Trace) -> dict[NumberFormat, int]:
    """Return the FLOPs by format that ``origin`` tells; empty for other text."""
    told = trace.origin.get(FLOPS_BY_FORMAT, "")
    return {NumberFormat(name): int(count) for name, count in _FORMAT_AND_COUNT.findall(told)}


def _model_flops(trace: Trace) -> dict[NumberFormat, int]:
    """Return the FLOPs of the model by format; empty where formats are not known."""
    again = {kernel.id for kernel in recomputing_kernels(trace)}
    every = sum(kernel.flops for kernel in trace.kernels)
    if every and (told := _told_formats(trace)):
        model = every - sum(trace.kernels[number].flops for number in again)
        return {number_format: count * model // every for number_format, count in told.items()}
    of_step = step_format(trace.origin)
    flops: Counter[NumberFormat] = Counter()
    for kernel in trace.kernels:
        if of_step is not None and kernel.flops and kernel.id not in again:
            flops[usual_format(of_step, kernel.operator_class)] += kernel.flops
    return dict(flops)
