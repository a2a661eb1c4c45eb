"""Times of a trace's kernels on a GPU: each by its work, in order, behind a host that issues them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from g10sim.analysis.gpus import NANOSECONDS_PER_SECOND, PICOSECONDS_PER_NANOSECOND, GpuTimingSpec
from g10sim.errors import TraceError
from g10sim.trace.model import Device, Kernel, TimeSource, Trace
from g10sim.trace.repetition import Block, blocks_of, joined
from g10sim.trace.work import NumberFormat, OperatorClass, cost_of

CUDA_GRAPH = "cuda_graph"
"""Key of a trace's ``origin``: a graph replays the step, so that no kernel waits for the host."""
_GPU_OPTION = re.compile(r"--gpu \S+$")
_WITHOUT_WORK = "allowed: a trace of g10sim trace capture that says the work of its kernels; capture it again"


class _Timeline:
    """Nanoseconds at which the host has issued, and the GPU has run, what came so far.

    The host issues operators one after another, ``host_issue`` picoseconds each. A kernel starts when it has
    been issued and the one before it has ended; its duration counts from that end.
    """

    def __init__(self, pricing: GpuTimingSpec, host_issue: int) -> None:
        self._pricing, self._host_issue = pricing, host_issue
        self._issued = self._ended = 0
        self._alone: dict[tuple[object, ...], int] = {}

    def of(self, block: Block[Kernel], known: Mapping[int, tuple[int, TimeSource]]) -> tuple[Kernel, ...]:
        """Return the kernels of a block with their times, of a repeated one those of later times."""
        if block.times == 1:
            return tuple(self._timed(kernel, known) for kernel in block.items)
        for kernel in block.items:
            self._timed(kernel, {})
        issued, ended = self._issued, self._ended
        kernels = tuple(self._timed(kernel, {}) for kernel in block.items)
        self._issued += (block.times - 2) * (self._issued - issued)
        self._ended += (block.times - 2) * (self._ended - ended)
        return kernels

    def _timed(self, kernel: Kernel, known: Mapping[int, tuple[int, TimeSource]]) -> Kernel:
        if kernel.device is not Device.GPU:
            return kernel
        if kernel.id in known:
            duration, source = known[kernel.id]
            return replace(kernel, duration=duration, time_source=source)
        self._issued += 1 + dict(kernel.sizes).get("views", 0)
        began = max(self._ended, self._issued * self._host_issue // PICOSECONDS_PER_NANOSECOND)
        before, self._ended = self._ended, began + self._alone_ns(kernel)
        priced = TimeSource.BYTES if kernel.operator_class == OperatorClass.OTHER else TimeSource.ROOFLINE
        source = kernel.time_source if kernel.time_source is TimeSource.BYTES else priced
        return replace(kernel, duration=self._ended - before, time_source=source)

    def _alone_ns(self, kernel: Kernel) -> int:
        work = (kernel.name, kernel.operator_class, kernel.number_format, kernel.phase, kernel.layer_type)
        key = (*work, kernel.flops, kernel.moved_bytes, kernel.sizes)
        if key not in self._alone:
            self._alone[key] = self._pricing.duration_ns(cost_of(kernel))
        return self._alone[key]


def timed(
    trace: Trace, gpu: GpuTimingSpec, known: Mapping[int, tuple[int, TimeSource]] = MappingProxyType({})
) -> Trace:
    """Return a trace with the kernel times of a GPU, in nanoseconds.

    ``known`` has the kernels, by position, whose time comes from elsewhere; alongside those, without waits,
    no kernel waits for the host. Where blocks repeat, kernels take the times that they have once the block
    has run before. Raises TraceError for a kernel that does not say
    its work, and ConfigError for one in a format that the GPU has no peak rate for.
    """
    is_graph = bool(trace.origin.get(CUDA_GRAPH))
    line = _Timeline(gpu.replayed() if is_graph else gpu, 0 if is_graph or known else gpu.host_issue)
    blocks = []
    for block in blocks_of(trace.kernels):
        for kernel in block.items:
            _check_work(kernel)
        blocks.append(replace(block, items=line.of(block, known)))
    origin = {**trace.origin, "gpu": gpu.name}
    return replace(trace, kernels=joined(blocks), ticks_per_second=NANOSECONDS_PER_SECOND, origin=origin)


def _check_work(kernel: Kernel) -> None:
    if kernel.device is not Device.GPU:
        return
    for key, value, known in (
        ("operator_class", kernel.operator_class, OperatorClass),
        ("number_format", kernel.number_format, NumberFormat),
    ):
        if value not in set(known):
            found = f"found no {key}" if not value else f"found {key} {value!r}"
            raise TraceError(f"kernel {kernel.id} ({kernel.name}): {found}; {_WITHOUT_WORK}")


def retimed(trace: Trace, gpu: GpuTimingSpec, place: str = "trace") -> Trace:
    """Return a trace with the times of another GPU, from the FLOPs, bytes, class and sizes of its kernels.

    It is equal to the trace that a capture for that GPU makes. ``place`` (a file name) starts messages.
    Raises TraceError for a trace without the work of its kernels, ConfigError as ``timed`` does.
    """
    try:
        found = timed(trace, gpu)
    except TraceError as error:
        raise TraceError(f"{place}: {error}") from None
    origin = {key: value for key, value in found.origin.items() if key != "device"}
    if "command" in origin:
        origin["command"] = _GPU_OPTION.sub(f"--gpu {gpu.name}", origin["command"])
    if "time_source" in origin:
        origin["time_source"] = TimeSource.ROOFLINE.value
    return replace(found, origin=origin)
