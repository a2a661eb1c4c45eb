"""Streaming: tensors come in the order of their uses, and what is used last makes room."""

from __future__ import annotations

from collections.abc import Collection

from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.designs.stream.streaming import Streaming, StreamOptions
from g10sim.policies.interface import PlannedMachine, PolicyPerJob, Requirements
from g10sim.policies.interface.parameters import WITH_PAGEABLE, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.offloading.room import find_tier
from g10sim.trace.workload import Job


@register_policy
class Stream(StreamOptions, PolicyPerJob):
    """Streams weights, and whatever else does not fit, to the GPU in the order of use.

    Every tensor that is idle for long streams with equally many pages, small ones with all, as many as do not
    fit; the rest stays. They leave after their use. While kernels compute, what is used next comes in.
    """

    name = "stream"
    label = "Stream"
    look = Look("#999933", "x.", "+", "3 1 1 2")
    paper = "weight streaming, as L2L (Pudipeddi et al., arXiv 2002.05645) and ZeRO-Inference"

    pinned: bool = parameter(
        default=True, published="true, ZeRO-Inference; false, Accelerate", effect=WITH_PAGEABLE
    )
    """Copies use page-locked host memory, as far as it may be pinned; otherwise pageable memory."""

    job_class = Streaming

    @property
    def requirements(self) -> Requirements:
        """The design frees what is dead itself."""
        return Requirements(
            drops_dead_tensors=True,
            keeps_mappings=True,
            pins_on_use=True,
            addresses="own",
            host_memory="pinned" if self.pinned else "any",
        )

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> Streaming:
        """Note the order of uses; the rest is decided kernel by kernel."""
        for tier in (self.device_map or {}).values():
            if tier != "gpu":
                find_tier(self.name, system, tier, "weights")
        return Streaming(job.trace, machine, self)

    def pageable(self, job: int) -> Collection[int]:
        """Return all tensors, unless they are pinned."""
        return () if self.pinned else range(len(self.workload.jobs[job].trace.tensors))
