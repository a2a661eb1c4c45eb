"""GPU memory that jobs take in addition to their tensors: the contexts of their processes."""

from __future__ import annotations

from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError
from g10sim.trace.workload import Workload
from g10sim.units import format_bytes


def context_bytes(workload: Workload, system: SystemSpec, job: int) -> int:
    """Return the bytes that contexts take on a job's GPU: its own, and those of jobs that share the GPU."""
    return system.gpu.beside_tensors * workload.neighbours(job)


def without_contexts(workload: Workload, system: SystemSpec) -> SystemSpec:
    """Return the system with the GPU memory that contexts leave to tensors.

    GPUs are alike: the one with most jobs counts for all. Raises CapacityError where nothing is left.
    """
    gpu, numbers = system.gpu, range(len(workload.jobs))
    taken = max((context_bytes(workload, system, job) for job in numbers), default=0)
    if not taken:
        return system
    left = gpu.memory - taken
    if left < gpu.page_size:
        found = f"{format_bytes(gpu.beside_tensors)}, {format_bytes(taken)} for all jobs on a GPU"
        allowed = f"less than its {format_bytes(gpu.memory)}"
        raise CapacityError.at("system.gpu.context_memory", found, allowed)
    return system.with_gpu_memory(left)
