"""Attention on the CPU: kernels that read keys and values where they lie, below the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from g10sim.policies.planning.blocks.homes import GPU
from g10sim.policies.planning.blocks.parts import Kind, Part, kinds_of, part_numbers
from g10sim.policies.planning.offloading.takeover import added_kernel, numbered
from g10sim.trace.model import Device, Kernel, Phase, Trace


def attention_kernels(trace: Trace, parts: Sequence[Part], homes: Mapping[int, str]) -> frozenset[int]:
    """Return the kernels that the CPU takes over: those that read keys and values of earlier parts.

    So it is only where these lie below the GPU, and not for prompts: passes of a layer with larger states
    than its last one. What such a kernel makes of keys and values stays on the CPU, with the kernels that
    read it, until it is no larger than states are.
    """
    kinds, numbers = kinds_of(trace, parts), part_numbers(parts)
    states = [0] * len(parts)
    for kernel in trace.kernels:
        large = (trace.tensors[t].size_bytes for t in kernel.touched if kinds.get(t) is Kind.STATES)
        states[numbers[kernel.id]] = max(states[numbers[kernel.id]], *large, 0)
    last = {(part.block, part.batch): states[number] for number, part in enumerate(parts)}
    made, derived, found = dict[int, int](), set[int](), set[int]()
    for kernel in trace.kernels:
        part = numbers[kernel.id]
        read = (t for t in kernel.inputs if kinds.get(t) is Kind.CACHE and homes[t] != GPU)
        is_token = states[part] <= last[parts[part].block, parts[part].batch]
        if is_token and (any(made.get(t, -1) < part for t in read) or not derived.isdisjoint(kernel.inputs)):
            found.add(kernel.id)
            derived.update(t for t in kernel.outputs if trace.tensors[t].size_bytes > states[part])
        for tensor in kernel.outputs:
            if not trace.lasting[tensor]:
                made.setdefault(tensor, part)
    return frozenset(found)


def with_attention_on_cpu(
    trace: Trace, parts: Sequence[Part], homes: Mapping[int, str], *, loads_ahead: bool
) -> Trace:
    """Return the trace in which the CPU runs its part of attention, as fast as memory delivers the data.

    With ``loads_ahead`` what lies on the SSD comes to host memory while the part before computes: a kernel
    without work asks for it, after the attention of that part.
    """
    taken = attention_kernels(trace, parts, homes)
    kernels = list[Kernel]()
    for number, part in enumerate(parts):
        mine = [trace.kernels[kernel] for kernel in range(part.first, part.last + 1)]
        loads = list(_loads(trace, parts, number + 1, taken, homes)) if loads_ahead else []
        after = max((kernel.id for kernel in mine if kernel.id in taken), default=part.first)
        for kernel in mine:
            on_cpu = replace(kernel, device=Device.CPU, duration=0, fault_profile=None)
            kernels.append(on_cpu if kernel.id in taken else kernel)
            kernels += loads if kernel.id == after else ()
    if not taken:
        return trace
    return replace(trace, kernels=numbered(kernels))


def _loads(
    trace: Trace, parts: Sequence[Part], number: int, taken: frozenset[int], homes: Mapping[int, str]
) -> Iterator[Kernel]:
    """Yield the kernel that brings what a part's attention reads from the SSD, if there is any.

    The part after the last one is the first one of the next iteration.
    """
    part, is_next = parts[number % len(parts)], number < len(parts)
    mine = (trace.kernels[kernel] for kernel in range(part.first, part.last + 1) if kernel in taken)
    below = dict.fromkeys(t for kernel in mine for t in kernel.inputs if homes.get(t) == "ssd")
    read = tuple(tensor for tensor in below if is_next or trace.lasting[tensor])
    if read:
        yield added_kernel(
            "Load keys and values", read, (), phase=Phase.OTHER, device=Device.CPU, moved_bytes=1
        )
