"""Kernel times of a GPU from its description: a roofline with shares by format, class, shape and size.

Kernels of a trace run in order, behind a host that issues them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field

from g10sim.analysis.efficiency import PeakRate, Refinement, Share, Shares
from g10sim.config import quantities
from g10sim.config.data import data_path, find_file
from g10sim.config.document import Document, leaves, load_document, merge
from g10sim.config.presets import PRESET_KEY, validated
from g10sim.config.problems import check_choice
from g10sim.errors import ConfigError, TraceError, as_spelled, choices_text
from g10sim.trace.model import Device, Kernel, TimeSource, Trace
from g10sim.trace.repetition import Block, blocks_of, joined
from g10sim.trace.work import COMPUTING, KernelCost, NumberFormat, OperatorClass, cost_of
from g10sim.units import PICOSECONDS_PER_SECOND

NANOSECONDS_PER_SECOND = 10**9
PICOSECONDS_PER_NANOSECOND = PICOSECONDS_PER_SECOND // NANOSECONDS_PER_SECOND
_OPERATORS, _SOURCES = "operators", "sources"
_TABLES = ("peak", "compute_efficiency", "bandwidth_efficiency", "startup", _OPERATORS)
_NUMBERS = ("memory", "memory_bandwidth", "launch_overhead")
_OPTIONAL = ("host_issue", "sustained")
_OFTEN_UNKNOWN = ("graph_overhead", "element_rate")
CUDA_GRAPH = "cuda_graph"
"""Key of a trace's ``origin``: a graph replays the step, so that no kernel waits for the host."""
_GPU_OPTION = re.compile(r"--gpu \S+$")
_WITHOUT_WORK = "allowed: a trace of g10sim trace capture that says the work of its kernels; capture it again"


class GpuTimingSpec(quantities.Spec):
    """Peak rates of a GPU and the share of them that operators reach.

    ``peak`` is the fastest dense rate for each number format (with tensor cores where it has them).
    ``compute_efficiency`` and ``bandwidth_efficiency`` are shares of ``peak`` and ``memory_bandwidth``,
    at most 1, so that no kernel beats the hardware. ``startup`` is time that a kernel of a class takes
    besides, so that small kernels reach less. ``element_rate`` limits kernels that handle elements one by one
    (``unvectorized``). ``operators`` sets single operators apart; the first entry that
    covers a kernel counts. ``host_issue`` is the time that the host takes for each operator of a step that no
    graph replays, whether it launches a kernel or not; kernels of a graph take ``graph_overhead`` in place of
    ``launch_overhead``. ``sustained`` is the share of the rates of short runs
    that computing kernels keep within steps that go on for minutes (clocks under the limit of power).
    ``sources`` says for every number (by dotted key) where it comes from.
    """

    name: str = Field(min_length=1)
    description: str = ""
    memory: quantities.PositiveBytes
    """HBM, to tell by how much a trace oversubscribes it"""
    memory_bandwidth: quantities.PositiveRate
    """of the HBM"""
    launch_overhead: quantities.Duration
    """added to the time of every kernel"""
    graph_overhead: quantities.Duration | None = None
    """in place of launch_overhead where a CUDA graph replays; none: as it"""
    host_issue: quantities.Duration = quantities.default_time("0 s")
    """time of the host for each operator, in order"""
    sustained: Shares = 1.0
    """share of computing rates that long steps keep, by format"""
    element_rate: quantities.PositiveCountRate | None = None
    """elements/s of kernels that load no vectors; none: no limit"""
    peak: dict[NumberFormat, quantities.PositiveComputeRate] = Field(min_length=1)
    """dense FLOP/s by number format"""
    compute_efficiency: dict[OperatorClass, Shares]
    """share of peak by class and format"""
    bandwidth_efficiency: dict[OperatorClass, Share]
    """share of memory_bandwidth by class"""
    startup: dict[OperatorClass, quantities.Duration] = Field(default_factory=dict)
    """by class; 0 where not given"""
    operators: dict[str, Refinement] = Field(default_factory=dict)
    """times of single operators"""
    sources: dict[str, str]
    """where each number comes from, by dotted key"""

    @quantities.required
    def _complete(self) -> Iterator[str]:
        yield from _flaws_of_keys("compute_efficiency", self.compute_efficiency, COMPUTING)
        yield from _flaws_of_keys("bandwidth_efficiency", self.bandwidth_efficiency, frozenset(OperatorClass))
        tables = {f"compute_efficiency.{kind}": shares for kind, shares in self.compute_efficiency.items()}
        for name, shares in {"sustained": self.sustained, **tables}.items():
            if isinstance(shares, dict):
                yield from _flaws_of_keys(name, shares, frozenset(self.peak))
        numbers = self.numbers()
        usual = {name for name in _OPTIONAL if getattr(self, name) == type(self).model_fields[name].default}
        for key in sorted(numbers - usual - set(self.sources)):
            yield f"found no source for '{key}'; allowed: a text under sources for every number"
        for key in sorted(set(self.sources) - numbers):
            yield f"found a source for '{key}', which is no number here; allowed: {choices_text(numbers)}"

    def numbers(self) -> set[str]:
        """Dotted keys of all numbers; those of one entry of ``operators`` count as one."""
        known = [name for name in _OFTEN_UNKNOWN if getattr(self, name) is not None]
        tables = leaves({table: getattr(self, table) for table in _TABLES})
        return {*_NUMBERS, *_OPTIONAL, *known, *tables}

    def replayed(self) -> GpuTimingSpec:
        """Return the GPU with the overhead of kernels that a CUDA graph replays."""
        if self.graph_overhead is None:
            return self
        return self.model_copy(update={"launch_overhead": self.graph_overhead})

    def duration_ns(self, cost: KernelCost) -> int:
        """Time of a kernel in nanoseconds, rounded up.

        The roofline (Williams et al., CACM 52(4), 2009, doi:10.1145/1498765.1498785) with the efficiencies of
        the operator or its class, plus its startup (for each of its ``steps``) and the launch overhead.
        Raises ConfigError as ``least_seconds`` does.
        """
        compute_s, move_s = self.least_seconds(cost)
        found = self._covering(cost, self.bound(cost))
        compute_s /= self._compute_share(cost, found)
        seconds = max(compute_s, self._moving_seconds(cost, found))
        if found.copies is not None:
            copied = move_s * _exact(found.copies)
            seconds += copied / _exact(self.bandwidth_efficiency[OperatorClass.COPY])
        if found.weight_bandwidth is not None:
            seconds += Fraction(cost.weight_bytes, found.weight_bandwidth)
        startup = self.startup.get(cost.operator_class, 0) if found.startup is None else found.startup
        overhead = Fraction(self.launch_overhead + startup * max(cost.steps, 1), PICOSECONDS_PER_NANOSECOND)
        time = seconds * NANOSECONDS_PER_SECOND + overhead
        return -(-time.numerator // time.denominator)

    def _moving_seconds(self, cost: KernelCost, found: Refinement) -> Fraction:
        """Return the time of moving a kernel's bytes, or of its elements one by one, whichever is longer."""
        share = found.bandwidth_efficiency or self.bandwidth_efficiency[cost.operator_class]
        rate = self.memory_bandwidth * _exact(share)
        if found.bandwidth is not None:
            rate = min(rate, Fraction(found.bandwidth))
        if found.full_channels is not None and cost.channels:
            rate *= Fraction(min(cost.channels, found.full_channels), found.full_channels)
        if self.element_rate is None:
            return cost.moved_bytes / rate
        return max(cost.moved_bytes / rate, Fraction(cost.unvectorized, self.element_rate))

    def _compute_share(self, cost: KernelCost, found: Refinement) -> Fraction:
        """Return the share of the peak rate that a kernel's products reach."""
        usual = found.compute_efficiency or self.compute_efficiency.get(cost.operator_class, 1.0)
        share = Fraction(1)
        for shares in (usual, self.sustained):
            if isinstance(shares, dict):
                shares = shares[self._format(cost)] if cost.flops else 1.0
            share *= _exact(shares)
        if found.half_length is not None:
            share *= Fraction(cost.keys, cost.keys + found.half_length) if cost.keys else 1
        return share

    def least_seconds(self, cost: KernelCost) -> tuple[Fraction, Fraction]:
        """Return the times of computing and of moving at the peak rates.

        float32 products that tensor cores may round (tf32) count as float32 on a GPU without them. Products
        that an algorithm saves (``fewer_products``) take no time. Raises ConfigError when the GPU has no peak
        rate for the number format.
        """
        compute_s, move_s = self._peak_seconds(cost)
        if not cost.flops:
            return compute_s, move_s
        found = self._covering(cost, self.bound(cost))
        if found.counts_as is not None:
            compute_s = Fraction(cost.flops, self.peak[found.counts_as])
        return compute_s / _exact(found.fewer_products or 1), move_s

    def multiplies(self, number_format: NumberFormat) -> bool:
        """Return whether there is a peak rate for a format, or for float32 in place of tf32."""
        replaced = number_format is NumberFormat.TF32 and NumberFormat.FLOAT32 in self.peak
        return number_format in self.peak or replaced

    def _format(self, cost: KernelCost) -> NumberFormat:
        """Return the format whose peak rate counts. Raises ConfigError where there is none."""
        number_format = cost.number_format
        if number_format is NumberFormat.TF32 and number_format not in self.peak:
            number_format = NumberFormat.FLOAT32
        if number_format not in self.peak:
            found = f"an operator in {number_format}, which has no peak rate"
            raise ConfigError.at(f"GPU '{self.name}'", found, choices_text(self.peak))
        return number_format

    def bound(self, cost: KernelCost) -> PeakRate:
        """Tell which peak rate limits a kernel. Raises ConfigError as ``least_seconds`` does."""
        compute_s, move_s = self._peak_seconds(cost)
        return PeakRate.COMPUTE if compute_s > move_s else PeakRate.MEMORY

    def _peak_seconds(self, cost: KernelCost) -> tuple[Fraction, Fraction]:
        compute_s = Fraction(cost.flops, self.peak[self._format(cost)]) if cost.flops else Fraction(0)
        return compute_s, Fraction(cost.moved_bytes, self.memory_bandwidth)

    def _covering(self, cost: KernelCost, bound: PeakRate) -> Refinement:
        if cost.flops and cost.number_format not in self.peak:
            cost = replace(cost, number_format=self._format(cost))
        return next((entry for entry in self.operators.values() if entry.covers(cost, bound)), _NOTHING)


_NOTHING = Refinement(operators=())


@cache
def _exact(value: float) -> Fraction:
    """Return the decimal number as written (0.57 is 57/100), whatever its nearest binary float."""
    return Fraction(str(value))


def _flaws_of_keys(name: str, found: dict[Any, Any], wanted: frozenset[Any]) -> Iterator[str]:
    for key in sorted(set(found) ^ wanted):
        state = "an efficiency that no operator uses" if key in found else "no efficiency"
        yield f"{name}.{key}: found {state}; allowed: {choices_text(wanted)}"


def gpu_names() -> tuple[str, ...]:
    """Names of the bundled GPU descriptions, sorted."""
    return tuple(sorted(path.stem for path in data_path("configs", "gpus").glob("*.yaml")))


def load_gpu(gpu: str | Path | GpuTimingSpec) -> GpuTimingSpec:
    """Read a GPU description by bundled name or from a YAML file.

    A file may build on a bundled description (``preset: a100-40g``) and change keys of it. Raises ConfigError
    naming file, line, key, what was found and what is allowed.
    """
    if isinstance(gpu, GpuTimingSpec):
        return gpu
    names = gpu_names()
    text = as_spelled(str(gpu), names)
    if not text.endswith((".yaml", ".yml")):
        check_choice(text, names, "--gpu: found unknown GPU", ", or a YAML file")
    path = data_path("configs", "gpus", f"{text}.yaml") if text in names else find_file(text)
    return read_gpu(load_document(path))


def read_gpu(document: Document) -> GpuTimingSpec:
    """Make a GPU description of data, which may name a bundled one to build on. Raises ConfigError."""
    return validated(GpuTimingSpec, _with_preset(document), document)


def _with_preset(document: Document) -> dict[str, Any]:
    """Merge a description with the bundled one that it builds on."""
    changes = dict(document.data)
    preset = changes.pop(PRESET_KEY, None)
    if preset is None:
        return changes
    preset = as_spelled(str(preset), gpu_names())
    if preset not in gpu_names():
        raise document.error((PRESET_KEY,), f"found {preset!r}; allowed: {choices_text(gpu_names())}")
    base = _with_preset(load_document(data_path("configs", "gpus", f"{preset}.yaml")))
    described = merge({**base, _SOURCES: _kept_sources(base, changes)}, changes)
    own = changes.get(_OPERATORS)
    if isinstance(own, dict):  # the first entry that covers a kernel counts
        described[_OPERATORS] = {**own, **base.get(_OPERATORS, {}), **own}
    return described


def _kept_sources(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, str]:
    """Return the sources of a preset without those of shares and single operators that changes replace."""
    tables = ("compute_efficiency", _OPERATORS)
    changed = [f"{key}." for key in leaves({table: changes[table] for table in tables if table in changes})]
    return {
        key: text
        for key, text in base.get(_SOURCES, {}).items()
        if not any(f"{key}.".startswith(one) or one.startswith(f"{key}.") for one in changed)
    }


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
    for key, known in (("operator_class", OperatorClass), ("number_format", NumberFormat)):
        value = getattr(kernel, key)
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
