"""ZeRO-Offload: the CPU runs the optimizer, whose states never leave host memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.base import Policy, PolicyView, Requirements
from g10sim.policies.moves import Move
from g10sim.policies.offload_planning.gradients import Gradients, host_bytes
from g10sim.policies.offload_planning.partition import partitioned
from g10sim.policies.offload_planning.rewriting import Schedule, taken_over
from g10sim.policies.offload_planning.room import gpu_peak, require_cpu, require_gpu, require_tier
from g10sim.policies.offload_planning.takeover import Takeover
from g10sim.policies.parameters import Count, Declared, Share, parameter
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.planning.machine import page_sizes
from g10sim.policies.registry import register_policy
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload


@register_policy
class ZeroOffload(Declared, Policy):
    """Weights and activations stay on the GPU, optimizer states in host memory, where the CPU updates.

    While the backward pass makes gradients, they leave in buckets. The CPU updates the parameters, and the
    new weights come back, those of one kernel while the next one computes. Two bytes a parameter leave in 16
    bits, and two return: an eighth of what moving the states would take. Each of several replicas has its
    part of gradients and states: buckets are reduce-scattered before they leave, and new weights all-gathered
    when they are back. A workload whose weights and activations the GPU cannot hold, or whose states host
    memory cannot, is unsupported.
    """

    name = "zero_offload"
    label = "ZeRO-Offload"
    look = Look("#0077BB", "//-", "1", "3 1 1 1")
    paper = "Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, USENIX ATC 2021"
    requirements = Requirements(addresses="own", drops_dead_tensors=True)

    overlap: bool = parameter(
        default=False,
        effect=Effect(
            lambda run, policy: not policy.delayed_update,
            "without delayed_update",
            "all steps run beside the next iteration",
        ),
    )
    """Update what is in a bucket as soon as it has left; otherwise everything after the last gradient, when
    its norm is known."""
    delayed_update: bool = parameter(default=False)
    """Update beside the next iteration, whose weights are then one step old."""
    ratio: Share = parameter(default=1.0, published="1, DeepSpeed (ZeRO-Offload++)")
    """Share of the parameters that the CPU updates; the GPU updates the first ones, whose states it keeps
    (Twin-Flow)."""
    reduce_bucket_size: int = parameter(default=500_000_000, ge=1, published="500000000, DeepSpeed")
    """Gradients that fill a bucket."""
    bytes_per_gradient: int = parameter(default=2, ge=1, le=8, published="2, paper")
    """Bytes of the gradient of one parameter: 2 in 16 bits."""
    births: Count = parameter(default=4)
    """Kernels ahead of which new tensors are mapped."""

    def _set_up(self) -> None:
        self._jobs: tuple[Gradients, ...] = ()

    @property
    def _bucket_bytes(self) -> int:
        return self.reduce_bucket_size * self.bytes_per_gradient

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Let the CPU run the optimizer. Raises UnsupportedError without a CPU."""
        require_cpu(self.name, system)
        overlap = self.overlap and not self.delayed_update
        schedule = Schedule(overlap, self.delayed_update, self._bucket_bytes)
        return taken_over(Takeover.of(trace, self.ratio, self.bytes_per_gradient), schedule)

    def partition(self, trace: Trace, replicas: int, system: SystemSpec) -> Trace:
        """Let each replica update its part of the parameters (ZeRO stage 2)."""
        return partitioned(trace, replicas, self._bucket_bytes)

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Find the buckets of every job; all moves follow from them. Raises UnsupportedError."""
        jobs, in_host = [], 0
        for job in workload.jobs:
            sizes = page_sizes(job.trace, system.gpu.page_size)
            gradients = Gradients(job.trace, self._bucket_bytes, self.births)
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
