"""ZeRO-Infinity: parameters and optimizer states lie in host memory or on an SSD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.looks import Look
from g10sim.policies.base import Policy, PolicyView, Requirements
from g10sim.policies.moves import Await, Evict, Fetch, Move, Store
from g10sim.policies.offload_planning.gradients import Gradients, host_bytes, used_on_cpu
from g10sim.policies.offload_planning.rewriting import Schedule, taken_over
from g10sim.policies.offload_planning.room import gpu_peak, require_cpu, require_gpu, require_tier
from g10sim.policies.offload_planning.takeover import Takeover
from g10sim.policies.offload_planning.windows import Limits, by_kernel, windows
from g10sim.policies.parameters import Count, Declared, parameter
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.planning.machine import page_sizes
from g10sim.policies.registry import register_policy
from g10sim.trace.model import Device, TensorKind, Trace
from g10sim.trace.workload import Workload

Home = Literal["host", "ssd"]

_ON_SSD = Effect(
    lambda run, policy: policy.offload_optimizer == "ssd",
    "with offload_optimizer ssd",
    "states that stay in host memory need no buffers there",
)
_PIPELINED = Effect(
    lambda run, policy: policy.offload_optimizer == "ssd" and policy.pipeline,
    "with offload_optimizer ssd and pipeline true",
    "one step at a time has its states in host memory",
)


@dataclass(frozen=True)
class _Job:
    """Moves of one job: gradients, weights by kernel, and what steps send to the SSD."""

    gradients: Gradients
    fetched: dict[int, list[int]]
    released: dict[int, list[int]]
    stored: dict[int, list[int]]
    away: frozenset[int]


@register_policy
class ZeroInfinity(Declared, Policy):
    """Weights come to the GPU shortly before their use, and the CPU runs the optimizer below it.

    Weights lie in host memory or on an SSD. The next ones are fetched ahead, each is given up without a copy
    after its use unless it is used again soon, and small ones stay. Gradients leave in buckets. The CPU reads
    optimizer states where they lie; from an SSD they come through a few buffers in host memory and go back.
    A workload that the tiers cannot hold is unsupported.
    """

    name = "zero_infinity"
    label = "ZeRO-Infinity"
    look = Look("#005580", "\\\\-", "2", "3 1")
    paper = "Rajbhandari et al., ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale DL, SC 2021"

    offload_param: Home = parameter(default="host")
    """Tier in which weights lie."""
    offload_optimizer: Home = parameter(default="host")
    """Tier in which optimizer states lie."""
    prefetch_bucket_size: Count = parameter(default=500_000_000, published="500000000, DeepSpeed")
    """Parameters that are fetched ahead of their use."""
    max_live_parameters: Count = parameter(default=1_000_000_000, published="1000000000, DeepSpeed")
    """Parameters on the GPU beyond which none is fetched ahead."""
    max_reuse_distance: Count = parameter(default=1_000_000_000, published="1000000000, DeepSpeed")
    """Parameters used between two uses of one that stays on the GPU meanwhile."""
    param_persistence_threshold: Count = parameter(default=100_000, published="100000, DeepSpeed")
    """Parameters of a weight that always stays on the GPU, at most."""
    reduce_bucket_size: int = parameter(default=500_000_000, ge=1, published="500000000, DeepSpeed")
    """Gradients that fill a bucket."""
    buffer_count: int = parameter(default=4, ge=1, published="4, DeepSpeed", effect=_PIPELINED)
    """Steps whose states are in host memory at a time: read, updated and written side by side."""
    pipeline: bool = parameter(
        default=False, published="false, DeepSpeed (pipeline_read, pipeline_write)", effect=_ON_SSD
    )
    """Read the states of the next steps, and write those of the last one, beside a step; otherwise each step
    reads, updates and writes, one after the other."""
    bytes_per_parameter: int = parameter(default=2, ge=1, le=8, published="2, paper")
    """Bytes of the weight, and of the gradient, of one parameter: 2 in 16 bits."""
    births: Count = parameter(default=4)
    """Kernels ahead of which new tensors are mapped."""

    def _set_up(self) -> None:
        self._jobs: tuple[_Job, ...] = ()

    @property
    def requirements(self) -> Requirements:
        """Addresses of its own, and buffers for states on the SSD."""
        buffers = self.buffer_count if self.pipeline else 1
        on_ssd = self.offload_optimizer == "ssd"
        return Requirements(addresses="own", drops_dead_tensors=True, cpu_buffers=buffers if on_ssd else None)

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Let the CPU run the optimizer. Raises UnsupportedError without a CPU."""
        require_cpu(self.name, system)
        bucket_bytes = self.reduce_bucket_size * self.bytes_per_parameter
        schedule = Schedule(overlap=False, delayed=False, bucket_bytes=bucket_bytes, returns=False)
        return taken_over(Takeover.of(trace, 1.0, self.bytes_per_parameter), schedule)

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Plan when weights come and go; the moves follow. Raises UnsupportedError."""
        if workload.exchange is not None and len(workload.jobs) > 1:
            raise UnsupportedError(
                f"policy '{self.name}' does not partition parameters over replicas; allowed: one GPU"
            )
        needed = dict.fromkeys(("host", "ssd"), 0)
        self._jobs = tuple(self._plan_job(job.trace, system, needed) for job in workload.jobs)
        for tier, size in needed.items():
            if size:
                require_tier(self.name, system, tier, size, "what is offloaded")
        return (None,) * len(workload.jobs)

    def _plan_job(self, trace: Trace, system: SystemSpec, needed: dict[str, int]) -> _Job:
        size = self.bytes_per_parameter
        sizes = page_sizes(trace, system.gpu.page_size)
        weights = self._offloaded(trace)
        limits = (self.prefetch_bucket_size, self.max_live_parameters, self.max_reuse_distance)
        stays = windows(trace, weights, Limits(*(size * limit for limit in limits)))
        gradients = Gradients(trace, size * self.reduce_bucket_size, self.births, weights)
        most, kernel = gpu_peak(trace, sizes, gradients.departures, self.births, stays)
        require_gpu(self.name, system, most, kernel, "live weights and activations")
        homes = dict.fromkeys(weights, self.offload_param)
        homes |= {t: self.offload_optimizer for t in trace.only_on_cpu if trace.tensors[t].persistent}
        away = frozenset(tensor for tensor, home in homes.items() if home == "ssd")
        needed["host"] += host_bytes(trace, sizes, away, self.requirements.cpu_buffers or len(trace.kernels))
        needed["host"] += sum(sizes[t] for t in weights - used_on_cpu(trace) if homes[t] == "host")
        needed["ssd"] += sum(sizes[tensor] for tensor in away)
        stored = {one.id: [t for t in one.touched if t in away] for one in trace.cpu_kernels}
        return _Job(gradients, by_kernel(stays, "fetched"), by_kernel(stays, "last"), stored, away)

    def _offloaded(self, trace: Trace) -> frozenset[int]:
        """Return the weights that come and go: those that the GPU only reads, but for small ones."""
        least = self.param_persistence_threshold * self.bytes_per_parameter
        written = {t for one in trace.kernels if one.device is Device.GPU for t in one.outputs}
        return frozenset(
            tensor.id
            for tensor in trace.tensors
            if tensor.kind is TensorKind.WEIGHT
            and tensor.persistent
            and trace.uses[tensor.id]
            and tensor.id not in written
            and tensor.size_bytes > least
        )

    def on_kernel_start(self, view: PolicyView) -> Iterator[Move]:
        """Fetch weights that are needed soon, and map what the next kernels make."""
        job = self._jobs[view.job]
        if view.kernel == len(view.trace.kernels) - 1 and job.away:
            yield Await(job.away)
        yield from map(Fetch, job.fetched.get(view.kernel, ()))
        yield from job.gradients.before(view.kernel)

    def on_kernel_end(self, view: PolicyView) -> Iterator[Move]:
        """Send away a full bucket, give up weights, and store what a step has updated."""
        job, home = self._jobs[view.job], self.offload_param
        yield from job.gradients.after(view.kernel)
        for tensor in job.released.get(view.kernel, ()):
            yield Evict(tensor, home, is_clean=True)
        for tensor in job.stored.get(view.kernel, ()):
            yield Store(tensor, "ssd")
