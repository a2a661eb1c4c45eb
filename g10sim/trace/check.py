"""Structural rules that every trace keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import numpy as np

from g10sim.errors import TraceError, few, shown
from g10sim.trace.model import Device, Kernel, Tensor, TensorKind, Trace
from g10sim.trace.repetition import Block, Item, blocks_of, each
from g10sim.units import LONGEST_SECONDS, format_frequency

# Numbers beyond these cannot be meant, and below them sums of bytes and cycles fit 64 bits at any clock.
_LARGEST = 2**63 - 1
_MOST_TICKS_PER_SECOND = 10**12
_MOST_CUT = 0.001
_MOST_READS = 10**6


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule: in tensor or kernel number ``index``, or in the trace as a whole (index -1)."""

    subject: Literal["tensor", "kernel", "trace"]
    index: int
    message: str

    def __str__(self) -> str:
        return self.message if self.subject == "trace" else f"{self.subject} {self.index}: {self.message}"


def problems(trace: Trace) -> Iterator[Problem]:
    """Yield every broken rule, those of the whole trace first, then tensors, then kernels.

    The rules: ids count up from 0; tensors have at least one byte; kernels name known tensors, each at
    most once among the inputs and once among the outputs; durations are not negative, and on the GPU not all
    zero; duration <= outputs_faulting <= all_faulting; ``reads``, if any, has a positive number for each
    input; numbers are no larger than 64-bit arithmetic bears; a kernel on the CPU has a duration or
    parameters, not both, and no fault profile, and only there are parameters; none is a collective; and a
    tensor is written before it is read unless its contents come from before the iteration (persistent) or
    from outside (kind input). All that holds for every time that a block occurs.
    """
    for message in _trace_problems(trace):
        yield Problem("trace", -1, message)
    for index, tensor in _stored(trace.tensors):
        if message := _tensor_problem(index, tensor):
            yield Problem("tensor", index, message)
    exists = bytearray(each(trace.tensors, lambda one: one.persistent or one.kind is TensorKind.INPUT))
    start = 0
    for block in blocks_of(trace.kernels):
        yield from _block_problems(start, block, exists, trace.tensors)
        start += block.count


def _block_problems(
    start: int, block: Block[Kernel], exists: bytearray, tensors: Sequence[Tensor]
) -> Iterator[Problem]:
    """Yield every broken rule of a block's kernels; note which tensors exist after them."""
    for index, kernel in enumerate(block.items, start):
        if message := _kernel_problem(index, kernel, exists, tensors):
            yield Problem("kernel", index, message)
        for output in kernel.outputs:
            if 0 <= output < len(exists):
                exists[output] = True
    if block.times > 1 and block.shift:
        found = _unknown_later(block, len(tensors)) or _too_early_later(block, exists, tensors)
        if found is not None:
            yield Problem("kernel", start + found[0], found[1])


def _stored(items: Sequence[Item]) -> Iterator[tuple[int, Item]]:
    """Yield the items that a trace stores, with their ids: of what repeats, the first time only."""
    start = 0
    for block in blocks_of(items):
        yield from enumerate(block.items, start)
        start += block.count


def check_trace(trace: Trace, place: str = "trace") -> None:
    """Raise TraceError for the first broken rule; ``place`` (a file name) starts its message."""
    for problem in problems(trace):
        raise TraceError(f"{place}: {problem}")


def cut_durations(durations: Sequence[int], ticks_per_second: int, clock_hz: int) -> str:
    """Return a warning about durations that lose more than 0.1 % to whole cycles of a clock, or nothing."""
    cut = sum(duration * clock_hz % ticks_per_second for duration in durations)
    share = cut / (sum(durations) * clock_hz)
    if share <= _MOST_CUT:
        return ""
    clock = format_frequency(clock_hz)
    return f"whole cycles of {clock} cut {share:.2%} off the durations of kernels; a faster clock keeps them"


def untimed(trace: Trace) -> str:
    """Return a warning about a trace without times, or nothing."""
    return "" if trace.is_timed else "its kernels have no times: their order counts, and no rate follows"


def other_gpu(origin: Mapping[str, str], gpu: str) -> str:
    """Return the GPU that kernel times are for if it is another than ``gpu``; nothing where one is unknown.

    It is the same where every word of ``gpu`` (``a100-40g``) begins a word of the other name: that of a
    description of it (``a100-40g-g10``) or of a device that was measured (``NVIDIA A100-SXM4-40GB``).
    """
    timed_for = origin.get("device", origin.get("gpu", ""))
    words = re.findall(r"[a-z0-9]+", timed_for.lower())
    is_same = all(any(word.startswith(part) for word in words) for part in gpu.lower().split("-"))
    return "" if is_same or not gpu else timed_for


def told_of_other_gpu(names: Sequence[str], timed_for: str, gpu: str) -> str:
    """Return a warning about traces whose kernel times are for another GPU than that of the system."""
    return (
        f"{few(names, 1)}: kernel times are for {timed_for}; the system has {gpu}: they are used as is "
        "(workload.kernel_times: system, or g10sim trace retime, takes those of the system's)"
    )


def _trace_problems(trace: Trace) -> Iterator[str]:
    if not 1 <= trace.batch_size <= _LARGEST:
        yield f"found batch_size {trace.batch_size}; allowed: 1 to 2^63-1"
    if not 1 <= trace.ticks_per_second <= _MOST_TICKS_PER_SECOND:
        yield f"found ticks_per_second {trace.ticks_per_second}; allowed: 1 to 10^12 (picoseconds)"
    elif sum(each(trace.kernels, _longest)) > LONGEST_SECONDS * trace.ticks_per_second:
        yield f"found durations of more than {LONGEST_SECONDS} seconds together; allowed: at most that"
    if not trace.kernels:
        yield "found no kernels; allowed: at least one"
    elif not any(kernel.duration and kernel.device is Device.GPU for _, kernel in _stored(trace.kernels)):
        where = " on the GPU" if trace.cpu_kernels else ""
        yield f"found only kernels of duration 0{where}; allowed: at least one that takes time"
    if sum(each(trace.tensors, attrgetter("size_bytes"))) > _LARGEST:
        yield "found tensors of more than 2^63-1 bytes together; allowed: at most that"


def _longest(kernel: Kernel) -> int:
    return kernel.fault_profile.all_faulting if kernel.fault_profile else kernel.duration


def _tensor_problem(index: int, tensor: Tensor) -> str:
    if tensor.id != index:
        return f"found id {tensor.id}; allowed: {index} (ids count up from 0)"
    if tensor.size_bytes < 1:
        return f"{shown(tensor.name)}: found size_bytes {tensor.size_bytes}; allowed: at least 1"
    return ""


def _kernel_problem(index: int, kernel: Kernel, exists: bytearray, tensors: Sequence[Tensor]) -> str:
    if kernel.id != index:
        return f"found id {kernel.id}; allowed: {index} (ids count up from 0)"
    message = (
        _number_problem(kernel)
        or _reference_problem("inputs", kernel.inputs, len(tensors))
        or _reference_problem("outputs", kernel.outputs, len(tensors))
        or _reads_problem(kernel)
        or next((_before_it_exists(tensor, tensors) for tensor in kernel.inputs if not exists[tensor]), "")
    )
    return f"{shown(kernel.name)}: {message}" if message else ""


def _number_problem(kernel: Kernel) -> str:
    if kernel.duration < 0:
        return f"found duration {kernel.duration}; allowed: 0 or more"
    for key in ("flops", "moved_bytes", "micro_batch", "parameters"):
        if not 0 <= (value := getattr(kernel, key)) <= _LARGEST:
            return f"found {key} {value}; allowed: 0 to 2^63-1"
    if message := _device_problem(kernel):
        return message
    profile = kernel.fault_profile
    if profile and not kernel.duration <= profile.outputs_faulting <= profile.all_faulting:
        return (
            f"found fault_profile ({profile.outputs_faulting}, {profile.all_faulting}) with duration "
            f"{kernel.duration}; allowed: duration <= outputs_faulting <= all_faulting"
        )
    return ""


def _reads_problem(kernel: Kernel) -> str:
    if kernel.reads and len(kernel.reads) != len(kernel.inputs):
        return f"found {len(kernel.reads)} reads; allowed: one for each of its {len(kernel.inputs)} inputs"
    if any(not 1 <= reads <= _MOST_READS for reads in kernel.reads):
        return f"found reads {list(kernel.reads)}; allowed: 1 to {_MOST_READS} each"
    return ""


def _device_problem(kernel: Kernel) -> str:
    if kernel.device is Device.LINKS:
        return _transfer_problem(kernel)
    if kernel.device is Device.GPU:
        found = f"parameters {kernel.parameters} on the GPU" if kernel.parameters else ""
        return found and f"found {found}; allowed: with device cpu"
    if kernel.parameters and kernel.duration:
        return f"found parameters {kernel.parameters} and duration {kernel.duration}; allowed: one of the two"
    return "found a fault_profile on the CPU; allowed: on the GPU" if kernel.fault_profile else ""


def _transfer_problem(kernel: Kernel) -> str:
    if kernel.duration or kernel.parameters or kernel.fault_profile:
        return "found duration, parameters or a fault_profile on the links; allowed: none of them"
    if bool(kernel.inputs) == bool(kernel.outputs):
        return "found a kernel on the links that does not either send or receive; allowed: inputs or outputs"
    return ""


def _reference_problem(what: str, references: tuple[int, ...], count: int) -> str:
    if references and (min(references) < 0 or max(references) >= count):
        unknown = next(tensor for tensor in references if not 0 <= tensor < count)
        return f"found unknown tensor {unknown} among its {what}; allowed: 0 to {count - 1}"
    if len(set(references)) != len(references):
        twice = next(tensor for tensor in references if references.count(tensor) > 1)
        return f"found tensor {twice} twice among its {what}; allowed: once"
    return ""


def first_on_cpu(trace: Trace) -> str:
    """Name the first kernel of a trace that runs on the CPU; empty where none does."""
    found = (f"kernel {kernel.id} ({kernel.name}) of '{trace.model}'" for kernel in trace.cpu_kernels)
    return next(found, "")


_Found = tuple[int, str]
"""A broken rule in a kernel, by its number in the block and all its repetitions."""


def _before_it_exists(tensor: int, tensors: Sequence[Tensor]) -> str:
    """Say that a kernel reads a tensor which nothing wrote."""
    return (
        f"reads tensor {tensor} ({shown(tensors[tensor].name)}) before it exists; "
        "allowed: a tensor that an earlier kernel wrote, a persistent one, or one of kind input"
    )


# What follows is about the tensors that a block names from its second time on; the first keeps every rule.


def _named_again(block: Block[Kernel], names: Callable[[Kernel], tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return the tensors that kernels name again each time, with the numbers of the kernels."""
    since = block.since
    kernels = enumerate(block.items)
    return [(tensor, number) for number, kernel in kernels for tensor in names(kernel) if tensor >= since]


def _unknown_later(block: Block[Kernel], count: int) -> _Found | None:
    """Return the kernel that names the largest tensor in the end, if there is no such tensor."""
    last = (block.times - 1) * block.shift
    largest, number = max(_named_again(block, lambda kernel: kernel.touched), default=(0, 0))
    if largest + last < count:
        return None
    found = f"found unknown tensor {largest + last}, as tensor {largest} the last time"
    message = f"{shown(block.items[number].name)}: {found}; allowed: 0 to {count - 1}"
    return number + (block.times - 1) * len(block.items), message


def _too_early_later(block: Block[Kernel], exists: bytearray, tensors: Sequence[Tensor]) -> _Found | None:
    """Return the first kernel that reads what no kernel before it wrote; note what all of them write.

    ``exists`` says of each tensor whether it exists when the block has run once; in the end, when it has run
    as often as it occurs.
    """
    there = np.frombuffer(exists, dtype=np.bool_)
    later = np.arange(1, block.times, dtype=np.int64)
    shifts = later * block.shift
    outputs = _named_again(block, lambda kernel: kernel.outputs)
    written = np.unique([tensor for tensor, _ in outputs]).astype(int)
    first = np.where(there, 0, block.times)
    ids = written[:, None] + shifts
    np.minimum.at(first, ids, np.broadcast_to(later, ids.shape))
    reads = _reads_of_others(block)
    if reads:
        read, numbers = np.array(reads).T
        early = first[read[:, None] + shifts] >= later
        if early.any():
            time, which = min(zip(*np.nonzero(early.T), strict=True))
            tensor, number = int(read[which] + shifts[time]), int(numbers[which])
            name = shown(block.items[number].name)
            message = f"{name}: {_before_it_exists(tensor, tensors)}"
            return number + (int(time) + 1) * len(block.items), message
    there[ids] = True
    return None


def _reads_of_others(block: Block[Kernel]) -> list[tuple[int, int]]:
    """Return what kernels read again each time that no kernel of the same time wrote before."""
    written: set[int] = set()
    found = []
    for number, kernel in enumerate(block.items):
        found += [(one, number) for one in kernel.inputs if one >= block.since and one not in written]
        written.update(kernel.outputs)
    return found
