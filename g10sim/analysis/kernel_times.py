"""Times of a trace's kernels on a GPU: each by its work, in order, behind a host that issues them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from g10sim.analysis.gpus import NANOSECONDS_PER_SECOND, PICOSECONDS_PER_NANOSECOND, GpuTimingSpec
from g10sim.errors import TraceError
from g10sim.trace.model import Device, Kernel, TimeSource, Trace
from g10sim.trace.repetition import Block, Repeated, blocks_of
from g10sim.trace.work import NumberFormat, OperatorClass, cost_of

CUDA_GRAPH = "cuda_graph"
"""Key of a trace's ``origin``: a graph replays the step, so that no kernel waits for the host."""
_GPU_OPTION = re.compile(r"--gpu \S+$")
_WITHOUT_WORK = "allowed: a trace of g10sim trace capture that says the work of its kernels; capture it again"


@dataclass(slots=True)
class _Timeline:
    """Nanoseconds at which the host has issued, and the GPU has run, what came so far.

    The host issues operators one after another, ``host_issue`` picoseconds each. A kernel starts when it has
    been issued and the one before it has ended; its duration counts from that end.
    """

    host_issue: int
    issued: int = 0
    ended: int = 0

    def run(self, alone: int, operators: int) -> int:
        """Run a kernel that takes so long by itself; return how long after the one before it ends."""
        self.issued += operators
        began = max(self.ended, self.issued * self.host_issue // PICOSECONDS_PER_NANOSECOND)
        before, self.ended = self.ended, began + alone
        return self.ended - before


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
    pricing = gpu.replayed() if is_graph else gpu
    line = _Timeline(0 if is_graph or known else gpu.host_issue)
    seen: dict[tuple[object, ...], int] = {}

    def alone(kernel: Kernel) -> int:
        work = (kernel.name, kernel.operator_class, kernel.number_format, kernel.phase, kernel.layer_type)
        key = (*work, kernel.flops, kernel.moved_bytes, kernel.sizes)
        if key not in seen:
            seen[key] = pricing.duration_ns(cost_of(kernel))
        return seen[key]

    blocks = []
    for block in blocks_of(trace.kernels):
        for kernel in block.items:
            _check_work(kernel)
        found = _Times(alone, known if block.times == 1 else {}, line)
        blocks.append(replace(block, items=found.of(block)))
    origin = {**trace.origin, "gpu": gpu.name}
    repeats = any(block.times > 1 for block in blocks)
    kernels: Sequence[Kernel] = Repeated(blocks) if repeats else blocks[0].items
    return replace(trace, kernels=kernels, ticks_per_second=NANOSECONDS_PER_SECOND, origin=origin)


@dataclass(frozen=True, slots=True)
class _Times:
    """Times kernels of a block on a timeline."""

    alone: Callable[[Kernel], int]
    known: Mapping[int, tuple[int, TimeSource]]
    line: _Timeline

    def of(self, block: Block[Kernel]) -> tuple[Kernel, ...]:
        """Return the kernels of a block with their times, of a repeated one those of later times."""
        if block.times == 1:
            return self._once(block.items)
        self._once(block.items)
        issued, ended = self.line.issued, self.line.ended
        kernels = self._once(block.items)
        self.line.issued += (block.times - 2) * (self.line.issued - issued)
        self.line.ended += (block.times - 2) * (self.line.ended - ended)
        return kernels

    def _once(self, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
        return tuple(map(self._timed, kernels))

    def _timed(self, kernel: Kernel) -> Kernel:
        if kernel.device is not Device.GPU:
            return kernel
        if kernel.id in self.known:
            duration, source = self.known[kernel.id]
            return replace(kernel, duration=duration, time_source=source)
        duration = self.line.run(self.alone(kernel), 1 + dict(kernel.sizes).get("views", 0))
        priced = TimeSource.BYTES if kernel.operator_class == OperatorClass.OTHER else TimeSource.ROOFLINE
        source = kernel.time_source if kernel.time_source is TimeSource.BYTES else priced
        return replace(kernel, duration=duration, time_source=source)


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
