"""ZeRO-Infinity: parameters and optimizer states lie in host memory or on an SSD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.interface import PlannedMachine, Requirements
from g10sim.policies.interface.parameters import Count, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.moves import MovesByKernel
from g10sim.policies.planning.offloading.gradients import Gradients
from g10sim.policies.planning.offloading.on_cpu import InBuckets, WeightsBelow, offloaded, read_weights
from g10sim.policies.planning.offloading.partition import gathered, partitioned
from g10sim.policies.planning.offloading.room import gpu_peak, require_gpu
from g10sim.policies.planning.offloading.windows import Window, windows
from g10sim.trace.model import Trace

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


@register_policy
class ZeroInfinity(InBuckets, WeightsBelow):
    """Weights come to the GPU shortly before their use, and the CPU runs the optimizer below it.

    Weights lie in host memory or on an SSD. The next ones are fetched ahead, each is given up without a copy
    after its use unless it is used again soon, and small ones stay. Gradients leave in buckets. The CPU reads
    optimizer states where they lie; from an SSD they come through a few buffers in host memory and go back.
    Each of several replicas has its part of all that: weights are all-gathered when they are fetched, and
    buckets of gradients reduce-scattered before they leave. A workload that the tiers cannot hold is
    unsupported.
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
    buffer_count: int = parameter(default=4, ge=1, published="4, DeepSpeed", effect=_PIPELINED)
    """Steps whose states are in host memory at a time: read, updated and written side by side."""
    pipeline: bool = parameter(
        default=False, published="false, DeepSpeed (pipeline_read, pipeline_write)", effect=_ON_SSD
    )
    """Read the states of the next steps, and write those of the last one, during a step; otherwise each step
    reads, updates and writes, one after the other."""
    _kept: ClassVar[Mapping[str, str]] = dict.fromkeys(("host", "ssd"), "what is offloaded")

    @property
    def requirements(self) -> Requirements:
        """Separate addresses, and buffers for states on the SSD."""
        buffers = self.buffer_count if self.pipeline else 1
        on_ssd = self.offload_optimizer == "ssd"
        return replace(super().requirements, cpu_buffers=buffers if on_ssd else None)

    def host_reserved(self, job: int) -> int:
        """With states on the SSD, return what is reserved in host memory: buffers, gradients and weights."""
        return int(self.jobs[job].below["host"]) if self.offload_optimizer == "ssd" else 0

    def _stays(self, trace: Trace) -> tuple[Window, ...]:
        """Return the stays of weights on the GPU, by the sizes of whole weights."""
        size = self._parameter_bytes(trace)
        weights = read_weights(trace, self.param_persistence_threshold * size)
        limits = (self.prefetch_bucket_size, self.max_live_parameters, self.max_reuse_distance)
        return windows(trace, weights, *(size * limit for limit in limits))

    def partition(self, trace: Trace, replicas: int, system: SystemSpec) -> Trace:
        """Leave each replica its part of weights, gradients and states (ZeRO stage 3)."""
        return partitioned(trace, replicas, self._bucket_bytes(trace), self._stays(trace))

    def _plan_job(self, trace: Trace, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        stays = gathered(trace) if trace.collectives else self._stays(trace)
        weights = dict.fromkeys(stay.tensor for stay in stays)
        gradients = Gradients(trace, self._bucket_bytes(trace), self.births, weights)
        there = (*stays, *gradients.stays)
        peak = gpu_peak(trace, machine.sizes(trace), gradients.departures, self.births, there)
        require_gpu(self.name, system, peak, "live weights and activations")
        homes: dict[int, str] = dict.fromkeys(weights, self.offload_param)
        homes |= {t: self.offload_optimizer for t in trace.only_on_cpu if trace.lasting[t]}
        return offloaded(trace, gradients, homes, stays)
