"""Rules about the work of kernels: no FLOPs beyond their shapes, no time below that of the hardware."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from g10sim.analysis.gpus import NANOSECONDS_PER_SECOND, GpuTimingSpec
from g10sim.analysis.throughput import known_gpu
from g10sim.display import rounded_seconds
from g10sim.errors import TraceError
from g10sim.trace.model import Device, Kernel, TensorKind, TimeSource, Trace
from g10sim.trace.repetition import blocks_of
from g10sim.trace.work import NumberFormat, OperatorClass, cost_of

_CONVOLUTION, _GRADIENT = "convolution", "convolution_backward_"
_MODELLED = (TimeSource.ROOFLINE, TimeSource.BYTES)


def check_work(trace: Trace, place: str = "trace") -> None:
    """Raise TraceError for the first kernel whose work cannot be; ``place`` (a file name) starts its message.

    A gradient of a convolution has the FLOPs of a convolution of its layer; a product makes no more elements
    than fit in what it writes; and no modelled time is shorter than computing and moving take at the peak
    rates of the GPU that the trace names. What a trace does not say is not judged, nor one that
    :func:`unjudged` tells of.
    """
    if unjudged(trace):
        return
    for kernel, message in _problems(trace):
        raise TraceError(f"{place}: kernel {kernel.id} ({kernel.name}): {message}")


def unjudged(trace: Trace) -> str:
    """Return a note about modelled kernels, none of which says its work, or nothing.

    Earlier versions wrote such traces, and counted some FLOPs otherwise.
    """
    kernels = [kernel for block in blocks_of(trace.kernels) for kernel in block.items]
    modelled = any(kernel.time_source in _MODELLED for kernel in kernels)
    if not modelled or any(kernel.number_format for kernel in kernels):
        return ""
    return "an earlier version wrote it, without the work of kernels: FLOPs and times are not judged"


def _problems(trace: Trace) -> Iterator[tuple[Kernel, str]]:
    kernels = [kernel for block in blocks_of(trace.kernels) for kernel in block.items]
    convolutions: defaultdict[str, set[int]] = defaultdict(set)
    for kernel in kernels:
        if kernel.name == _CONVOLUTION:
            convolutions[kernel.layer].add(kernel.flops)
    gpu = known_gpu(trace)
    for kernel in kernels:
        of_layer = convolutions.get(kernel.layer, set())
        if message := _flops_problem(trace, kernel, of_layer) or _time_problem(trace, kernel, gpu):
            yield kernel, message


def _flops_problem(trace: Trace, kernel: Kernel, of_layer: set[int]) -> str:
    if kernel.name.startswith(_GRADIENT) and kernel.flops and of_layer and kernel.flops not in of_layer:
        counts = ", ".join(map(str, sorted(of_layer)))
        return f"found flops {kernel.flops}; allowed: those of the convolution of its layer, {counts}"
    products = dict(kernel.sizes).get("products", 0)
    written = (trace.tensors[number] for number in kernel.outputs)
    room = sum(tensor.size_bytes for tensor in written if tensor.kind is not TensorKind.WORKSPACE)
    most = 2 * (products + 1) * room
    if products and kernel.flops > most:
        found = f"flops {kernel.flops} with {products} products for each element of {room} bytes"
        return f"found {found}; allowed: at most {most}"
    return ""


def _time_problem(trace: Trace, kernel: Kernel, gpu: GpuTimingSpec | None) -> str:
    if gpu is None or kernel.device is not Device.GPU or kernel.time_source not in _MODELLED:
        return ""
    if kernel.operator_class not in set(OperatorClass) or kernel.number_format not in set(NumberFormat):
        return ""
    cost = cost_of(kernel)
    if cost.flops and not gpu.multiplies(cost.number_format):
        return ""
    least = max(gpu.least_seconds(cost))
    if Fraction(kernel.duration + 1, trace.ticks_per_second) >= least:
        return ""
    took = rounded_seconds(kernel.duration / trace.ticks_per_second)
    shortest = -(-least.numerator * NANOSECONDS_PER_SECOND // least.denominator)
    return (
        f"found {took} for {kernel.flops} FLOPs in {cost.number_format} and {kernel.moved_bytes} bytes; "
        f"allowed: {rounded_seconds(shortest / NANOSECONDS_PER_SECOND)} or more, at the peaks of {gpu.name}"
    )
