"""Base of designs that keep weights on the GPU, and let the CPU run the optimizer below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.interface.moves import Move
from g10sim.policies.interface.parameters import Count, Declared, parameter
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy, PolicyView, Requirements
from g10sim.policies.planning.machine import page_sizes
from g10sim.policies.planning.offloading.gradients import Gradients, host_bytes
from g10sim.policies.planning.offloading.partition import partitioned
from g10sim.policies.planning.offloading.rewriting import Schedule, taken_over
from g10sim.policies.planning.offloading.room import gpu_peak, require_cpu, require_gpu, require_tier
from g10sim.policies.planning.offloading.takeover import Takeover
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload


class OptimizerBelow(Declared, Policy):
    """Weights and activations stay on the GPU, optimizer states in host memory, where the CPU updates.

    A design says what runs when (``_schedule``), for which ``_share`` of the parameters, and whether the GPU
    waits for a bucket before it sends the next one (``_has_two_buffers``).
    """

    requirements = Requirements(
        addresses="own", drops_dead_tensors=True, keeps_mappings=True, pins_on_use=True
    )
    _has_two_buffers: ClassVar[bool] = True

    bytes_per_gradient: int = parameter(default=2, ge=1, le=8, published="2, paper")
    """Bytes of the gradient of one parameter: 2 in 16 bits."""
    births: Count = parameter(default=4)
    """Kernels ahead of which new tensors are mapped."""

    def _set_up(self) -> None:
        self._jobs: tuple[Gradients, ...] = ()

    @property
    def _share(self) -> float:
        return 1.0

    def _schedule(self) -> Schedule:
        raise NotImplementedError

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Let the CPU run the optimizer. Raises UnsupportedError without a CPU."""
        require_cpu(self.name, system)
        return taken_over(Takeover.of(trace, self._share, self.bytes_per_gradient), self._schedule())

    def partition(self, trace: Trace, replicas: int, system: SystemSpec) -> Trace:
        """Let each replica update its part of the parameters (ZeRO stage 2)."""
        return partitioned(trace, replicas, self._schedule().bucket_bytes)

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Find the buckets of every job; all moves follow from them. Raises UnsupportedError."""
        jobs, in_host, bucket_bytes = [], 0, self._schedule().bucket_bytes
        for job in workload.jobs:
            sizes = page_sizes(job.trace, system.gpu.page_size)
            gradients = Gradients(job.trace, bucket_bytes, self.births, has_two_buffers=self._has_two_buffers)
            ends, stays = gradients.departures, gradients.stays
            needed, kernel = gpu_peak(job.trace, sizes, ends, self.births, stays)
            require_gpu(self.name, system, needed, kernel, "weights and activations")
            in_host += host_bytes(job.trace, sizes)
            jobs.append(gradients)
        require_tier(self.name, system, "host", in_host, "optimizer states and gradients")
        self._jobs = tuple(jobs)
        return (None,) * len(jobs)

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Map what the next kernels make."""
        return self._jobs[view.job].before(view.kernel)

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Send away a full bucket, and fetch what a step on the CPU updates."""
        return self._jobs[view.job].after(view.kernel)
