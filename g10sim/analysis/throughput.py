"""Work that a trace does: parameters, samples and tokens, and the FLOPs that it spends on them.

The share of its time that a GPU at its peak rates would take is model FLOPs utilisation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from g10sim.analysis.gpus import GpuTimingSpec, gpu_names, load_gpu
from g10sim.trace.model import Kernel, Phase, TensorKind, Trace
from g10sim.trace.work import KernelCost, NumberFormat, OperatorClass

_ELEMENT_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_TOKENS = "input.input_ids"
_TOKEN_BYTES = 8
"""Of an int64, which indices have in PyTorch."""
_MOST_DIGITS = 18
FLOPS_BY_FORMAT = "flops_by_format"
_FORMAT_AND_COUNT = re.compile(rf"\b({'|'.join(NumberFormat)}) ([0-9]{{1,24}})\b")
_LEAST_SHARE = 100
"""A hundredth of the FLOPs: fewer in other formats than the step's need no mention."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Work of a trace; None where neither tensors nor ``origin`` tell.

    ``parameters`` are those of the weights; ``bytes_per_parameter`` has, by kind, what weights, gradients and
    optimizer states take for each. ``samples`` and ``tokens`` are those of all steps; ``seconds`` is the
    time of the kernels on the GPU, with all their data there. ``model_flops`` leave out what is
    computed again (``recomputed_flops``); both are 0 where the trace counts no FLOPs.
    """

    seconds: float
    samples: int
    tokens: int | None
    parameters: int | None
    bytes_per_parameter: Mapping[TensorKind, float]
    model_flops: int
    recomputed_flops: int


def throughput(trace: Trace) -> Throughput:
    """Add up the work of a trace."""
    steps = _told(trace, "steps") or 1
    on_cpu = sum(kernel.duration for kernel in trace.cpu_kernels)
    ticks = sum(kernel.duration for kernel in trace.kernels) - on_cpu
    recomputed = sum(kernel.flops for kernel in recomputing_kernels(trace))
    tokens, parameters = _tokens(trace), _parameters(trace)
    return Throughput(
        seconds=ticks / trace.ticks_per_second,
        samples=trace.batch_size * steps,
        tokens=None if tokens is None else tokens * steps,
        parameters=parameters,
        bytes_per_parameter=_bytes_per_parameter(trace, parameters, steps),
        model_flops=sum(kernel.flops for kernel in trace.kernels) - recomputed,
        recomputed_flops=recomputed,
    )


def _told(trace: Trace, key: str) -> int | None:
    """Return a number that ``origin`` tells; None for anything else, which is free text."""
    text = trace.origin.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _tokens(trace: Trace) -> int | None:
    """Return the tokens of a step: those it generates, those captured, or the indices among the inputs."""
    if (generated := _told(trace, "generate")) is not None:
        return trace.batch_size * generated
    if (told := _told(trace, "tokens")) is not None:
        return told
    found = (tensor.size_bytes // _TOKEN_BYTES for tensor in trace.tensors if tensor.name == _TOKENS)
    return next(found, None)


def _parameters(trace: Trace) -> int | None:
    """Return the parameters: as captured, or the bytes of the weights in the format of the step."""
    if (told := _told(trace, "parameters")) is not None:
        return told
    element = _ELEMENT_BYTES.get(trace.origin.get("dtype", ""))
    weights = sum(tensor.size_bytes for tensor in trace.tensors if tensor.kind is TensorKind.WEIGHT)
    return weights // element if element and weights else None


def _bytes_per_parameter(trace: Trace, parameters: int | None, steps: int) -> Mapping[TensorKind, float]:
    """Return the bytes of each kind for a parameter; gradients are new in every step."""
    sizes = dict.fromkeys((TensorKind.WEIGHT, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE), 0)
    for tensor in trace.tensors:
        if tensor.kind in sizes:
            sizes[tensor.kind] += tensor.size_bytes
    sizes[TensorKind.GRADIENT] //= steps
    return {kind: size / parameters for kind, size in sizes.items()} if parameters else {}


def recomputing_kernels(trace: Trace) -> tuple[Kernel, ...]:
    """Return the kernels that run in the backward pass and depend on no gradient.

    Such a kernel computes an activation again. The first kernel of a backward pass makes the gradient of the
    loss; a kernel that reads what follows from it belongs to the gradients.
    """
    found, gradients, before = [], set[int](), Phase.OTHER
    for kernel in trace.kernels:
        if kernel.phase is Phase.BACKWARD:
            if before is not Phase.BACKWARD:
                gradients = set(kernel.outputs)
            elif gradients.isdisjoint(kernel.inputs):
                found.append(kernel)
            else:
                gradients.update(kernel.outputs)
        before = kernel.phase
    return tuple(found)


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
    gpu, work = known_gpu(trace), throughput(trace)
    flops = _flops_by_format(trace, work)
    if gpu is None or not flops or not work.seconds:
        return None
    best = sum(
        gpu.least_seconds(KernelCost("", OperatorClass.MATMUL, number_format, flops=count))[0]
        for number_format, count in flops.items()
    )
    return float(best) / work.seconds


def _flops_by_format(trace: Trace, work: Throughput) -> dict[NumberFormat, int]:
    """Return the FLOPs of the model by format, as ``origin`` tells or by the step's options; else empty."""
    every = work.model_flops + work.recomputed_flops
    told = _FORMAT_AND_COUNT.findall(trace.origin.get(FLOPS_BY_FORMAT, ""))
    if every and told:
        return {NumberFormat(name): int(count) * work.model_flops // every for name, count in told}
    again, of_step = {kernel.id for kernel in recomputing_kernels(trace)}, step_format(trace.origin)
    flops: Counter[NumberFormat] = Counter()
    for kernel in trace.kernels:
        if of_step is not None and kernel.flops and kernel.id not in again:
            flops[usual_format(of_step, kernel.operator_class)] += kernel.flops
    return dict(flops)
