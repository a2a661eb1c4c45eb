"""Base of designs that keep weights on the GPU, and let the CPU run the optimizer below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from g10sim.config.system import SystemSpec
from g10sim.policies.interface.machine import PlannedMachine
from g10sim.policies.interface.parameters import Count, Declared, parameter
from g10sim.policies.planning.offloading.below import Offloaded
from g10sim.policies.planning.offloading.gradients import Gradients, host_bytes
from g10sim.policies.planning.offloading.partition import partitioned
from g10sim.policies.planning.offloading.rewriting import Schedule, taken_over
from g10sim.policies.planning.offloading.room import FixedPlaces, gpu_peak, require_cpu, require_gpu
from g10sim.policies.planning.offloading.takeover import Takeover, parameter_bytes
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job


class OptimizerBelow(Declared, FixedPlaces):
    """Weights and activations stay on the GPU, optimizer states in host memory, where the CPU updates.

    A design says what runs when (``_schedule``), for which ``_share`` of the parameters, and whether the GPU
    waits for a bucket before it sends the next one (``_has_two_buffers``).
    """

    _has_two_buffers: ClassVar[bool] = True

    bytes_per_gradient: int | None = parameter(default=None, ge=1, le=8, published="2, paper")
    """Bytes of the gradient of one parameter; none: as its weight was captured, and 2 where the trace does
    not say."""
    births: Count = parameter(default=4)
    """Kernels ahead of which new tensors are mapped."""

    job_class = Offloaded
    _kept: ClassVar[Mapping[str, str]] = {"host": "optimizer states and gradients"}

    @property
    def _share(self) -> float:
        return 1.0

    def _schedule(self, trace: Trace) -> Schedule:
        raise NotImplementedError

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Let the CPU run the optimizer. Raises UnsupportedError without a CPU."""
        schedule = self._schedule(trace)
        require_cpu(self.name, system, schedule.pass_bytes)
        size = parameter_bytes(trace, self.bytes_per_gradient)
        return taken_over(Takeover.of(trace, self._share, size), schedule)

    def partition(self, trace: Trace, replicas: int, system: SystemSpec) -> Trace:
        """Let each replica update its part of the parameters (ZeRO stage 2)."""
        return partitioned(trace, replicas, self._schedule(trace).bucket_bytes)

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> Offloaded:
        """Find the job's buckets; all moves follow from them. Raises UnsupportedError."""
        trace, sizes = job.trace, machine.sizes(job.trace)
        bucket_bytes, has_two_buffers = self._schedule(trace).bucket_bytes, self._has_two_buffers
        gradients = Gradients(trace, bucket_bytes, self.births, has_two_buffers=has_two_buffers)
        needed, kernel = gpu_peak(trace, sizes, gradients.departures, self.births, gradients.stays)
        require_gpu(self.name, system, needed, kernel, "weights and activations")
        return replace(Offloaded.of(gradients, {}, ()), below={"host": host_bytes(trace, sizes)})
