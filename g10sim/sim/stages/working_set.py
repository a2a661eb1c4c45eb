"""Working sets of kernels: what is missing of them, and what dies with them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import attrgetter

from g10sim.errors import CapacityError
from g10sim.hardware.faults import FaultCount
from g10sim.hardware.memory import Residency
from g10sim.records import StallReason
from g10sim.sim.accounts.owners import fault_reason
from g10sim.trace.model import Kernel, Trace
from g10sim.trace.repetition import named
from g10sim.units import format_bytes


def check_working_sets(trace: Trace, touched: Iterable[tuple[int, ...]], memory: Residency) -> None:
    """Check that what every kernel touches fits the GPU. Raises CapacityError."""
    pages, page_bytes = memory.sizes, memory.page_bytes
    capacity = memory.frames.capacity_pages
    for number, tensors in enumerate(touched):
        needed = sum([pages[tensor] for tensor in tensors])
        if needed > capacity:
            kernel = trace.kernels[number]
            raise CapacityError(
                f"kernel {kernel.id} ({kernel.name}) of '{trace.model}' has a working set of "
                f"{format_bytes(needed * page_bytes)}; allowed: at most the GPU memory, "
                f"{format_bytes(capacity * page_bytes)}"
            )


def count_faults(
    read: tuple[int, ...], written: tuple[int, ...], memory: Residency
) -> tuple[FaultCount, FaultCount]:
    """Count the pages of inputs and of outputs that are neither on the GPU nor in transfer.

    A tensor that is both counts as an input only, but its pages belong to both sides.
    """
    sizes, pages, idle, held = memory.sizes, memory.pages, memory.idle, memory.held
    inputs, outputs = FaultCount([0] * len(pages)), FaultCount([0] * len(pages))
    seen: set[int] = set()
    for count, tensors in ((inputs, read), (outputs, written)):
        for tensor in tensors:
            size = sizes[tensor]
            count.pages += size
            if idle[tensor] < size and tensor not in seen and tensor not in held:
                seen.add(tensor)
                for place in memory.origins:
                    count.at[place] += pages[place][tensor]
                if tensor in memory.in_place:
                    count.at[memory.in_place[tensor]] -= memory.used_in_place(tensor)
    return inputs, outputs


def dominant_reason(memory: Residency, inputs: FaultCount, outputs: FaultCount) -> StallReason:
    """Return the reason of time that a closed form adds: the slowest tier first, then first touch."""
    for place in memory.origins:
        if inputs.at[place] or outputs.at[place]:
            return fault_reason(place.name)
    return StallReason.LATE_PREFETCH


def released_after(trace: Trace) -> list[tuple[int, ...]]:
    """For each kernel the tensors that are dead once it has run (read no more, or written in vain)."""
    # A persistent tensor dies after the last kernel: no kernel is the last that needs its contents.
    deaths = [
        sys.maxsize if lasts else death for lasts, death in zip(trace.lasting, trace.deaths, strict=True)
    ]
    touched = enumerate(named(trace.kernels, attrgetter("touched")), start=1)
    return [tuple([tensor for tensor in tensors if deaths[tensor] <= end]) for end, tensors in touched]


def endless_wait(memory: Residency, kernel: Kernel, pages: int, kind: str = "", where: str = "") -> str:
    """Describe a wait without end of a kernel for pages of its tensors."""
    size = format_bytes(pages * memory.page_bytes)
    return (
        f"kernel {kernel.id} ({kernel.name}){kind} waits indefinitely for {size}{where}: nothing moves any "
        f"more; {free_room(memory)}"
    )


def free_room(memory: Residency) -> str:
    """Say how much room there is in every memory tier."""
    (first, room), *others = (
        (pool.name, format_bytes(pool.free * memory.page_bytes)) for pool in memory.pools.values()
    )
    return ", ".join([f"{first} has {room} free", *(f"{name} {room}" for name, room in others)])
