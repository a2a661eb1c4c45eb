"""Which pages a kernel misses, and what the closed form of the published simulator charges for them."""

from __future__ import annotations

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError
from g10sim.hardware.faults import FaultCount, ProfiledFaultCost
from g10sim.hardware.memory import GpuMemory
from g10sim.records import StallReason
from g10sim.trace.model import FaultProfile, Kernel, Trace
from g10sim.units import format_bytes


def check_working_sets(trace: Trace, memory: GpuMemory) -> None:
    """Check that every kernel's working set fits the GPU. Raises CapacityError."""
    pages, page_bytes = memory.pages, memory.page_bytes
    for kernel in trace.kernels:
        needed = sum(pages[tensor] for tensor in kernel.tensors)
        if needed > memory.capacity_pages:
            raise CapacityError(
                f"kernel {kernel.id} ({kernel.name}) of '{trace.model}' has a working set of "
                f"{format_bytes(needed * page_bytes)}; allowed: at most the GPU memory, "
                f"{format_bytes(memory.capacity_pages * page_bytes)}"
            )


def count_faults(kernel: Kernel, memory: GpuMemory) -> tuple[FaultCount, FaultCount]:
    """Count the pages of inputs and of outputs that are neither on the GPU nor in transfer.

    A tensor that is both counts as an input only, but its pages belong to both sides.
    """
    inputs, outputs = FaultCount(), FaultCount()
    seen: set[int] = set()
    for count, tensors in ((inputs, kernel.inputs), (outputs, kernel.outputs)):
        for tensor in tensors:
            count.pages += memory.pages[tensor]
            if tensor not in seen and tensor not in memory.held:
                seen.add(tensor)
                count.flash += memory.flash[tensor]
                count.host += memory.host[tensor]
                count.absent += memory.absent[tensor]
    return inputs, outputs


def dominant_reason(inputs: FaultCount, outputs: FaultCount) -> StallReason:
    """Return the reason of time that a closed form adds: flash before host before first touch."""
    if inputs.flash or outputs.flash:
        return StallReason.FAULT_FLASH
    if inputs.host or outputs.host:
        return StallReason.FAULT_HOST
    if inputs.absent or outputs.absent:
        return StallReason.FIRST_TOUCH
    return StallReason.LATE_PREFETCH


class FaultCharge:
    """Cycles charged for faults beyond the time that their transfers take."""

    def __init__(self, trace: Trace, system: SystemSpec, behaviour: BehaviourSpec) -> None:
        self._profiled = behaviour.fault_cost == "profiled"
        self._cost = ProfiledFaultCost(system)
        self._clock, self._ticks = system.gpu.clock, trace.ticks_per_second

    def cycles(self, kernel: Kernel, duration: int, inputs: FaultCount, outputs: FaultCount) -> int:
        """Return the extra cycles of a kernel whose ``inputs`` and ``outputs`` fault; 0 where faults wait."""
        if not self._profiled:
            return 0
        profile = kernel.fault_profile
        if profile is not None:
            profile = FaultProfile(
                profile.outputs_faulting * self._clock // self._ticks,
                profile.all_faulting * self._clock // self._ticks,
            )
        return self._cost.cycles(duration, profile, inputs, outputs)
