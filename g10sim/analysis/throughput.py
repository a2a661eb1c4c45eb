"""Work that a trace does: parameters, samples and tokens, and the FLOPs that it spends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from g10sim.trace.model import Kernel, Phase, TensorKind, Trace

_ELEMENT_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_TOKENS = "input.input_ids"
_TOKEN_BYTES = 8
"""Of an int64, which indices have in PyTorch."""
_MOST_DIGITS = 18


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
    found = (tensor.size_bytes for tensor in trace.tensors if tensor.name == _TOKENS)
    size_bytes = next(found, None)
    return None if size_bytes is None else size_bytes // _TOKEN_BYTES


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
