"""Streaming: tensors come in the order of their uses, and what is used last makes room."""

from __future__ import annotations

from collections.abc import Collection

from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.designs.stream.streaming import Streaming
from g10sim.policies.interface import PlannedMachine, PolicyPerJob, Requirements
from g10sim.policies.interface.parameters import WITH_PAGEABLE, Declared, DeviceMap, Size, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.offloading.room import find_tier
from g10sim.trace.workload import Job
from g10sim.units import parse_bytes


@register_policy
class Stream(Declared, PolicyPerJob):
    """Streams weights, and whatever else does not fit, to the GPU in the order of use.

    Every tensor that is idle for long streams with equally many pages, small ones with all, as many as do not
    fit; the rest stays. They leave after their use. While kernels compute, what is used next comes in.
    """

    name = "stream"
    label = "Stream"
    look = Look("#999933", "x.", "+", "3 1 1 2")
    paper = "weight streaming, as L2L (Pudipeddi et al., arXiv 2002.05645) and ZeRO-Inference"

    window: Size | None = parameter(default=None, published="the next layer, L2L")
    """Bytes that come in ahead of use; none: what the link carries during the longest kernel, at most 1/16 of
    GPU memory."""
    keep: Size | None = parameter(default=None, published="0 B, L2L")
    """Bytes of persistent tensors that stay on the GPU, whole tensors, first those that kernels write; all
    others leave after every use. None: as much as fits."""
    keeps_copies: bool = parameter(default=False, published="true, ZeRO-Inference")
    """Tiers keep their copies: persistent tensors that no kernel writes leave without being copied, whole."""

    device_map: DeviceMap | None = parameter(default=None)
    """Places of weights, by the longest start of their names, as Accelerate's: on ``gpu`` they stay, from a
    tier they come for each use and are given up without a copy. Those that no start is of stay."""
    overlap: bool = parameter(default=True, published="true, L2L; false, Accelerate")
    """Fetch what is used next while kernels compute; otherwise each kernel waits for its own weights."""
    pinned: bool = parameter(
        default=True, published="true, ZeRO-Inference; false, Accelerate", effect=WITH_PAGEABLE
    )
    """Copies use page-locked host memory, as far as it may be pinned; otherwise pageable memory."""

    def _set_up(self) -> None:
        if self.device_map is not None and self.keep is not None:
            raise ValueError(f"keep: found '{self.keep}' beside device_map; allowed: one or the other")

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
        return Streaming(
            job.trace,
            machine,
            window_bytes=None if self.window is None else parse_bytes(self.window),
            keep_bytes=None if self.keep is None else parse_bytes(self.keep),
            keeps_copies=self.keeps_copies or self.device_map is not None,
            device_map=self.device_map,
            overlaps=self.overlap,
        )

    def pageable(self, job: int) -> Collection[int]:
        """Return all tensors, unless they are pinned."""
        return () if self.pinned else range(len(self.workload.jobs[job].trace.tensors))
