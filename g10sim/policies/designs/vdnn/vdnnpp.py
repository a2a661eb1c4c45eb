"""vDNN++: vDNN without the join at the end of every layer, with a choice of allocators and compression."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError
from g10sim.grouping import grouped
from g10sim.looks import YELLOW, Look
from g10sim.policies.designs.vdnn.layers import Layer
from g10sim.policies.designs.vdnn.vdnn import OFFLOADING, LayerJob, SelectiveOffloading, offload
from g10sim.policies.interface import Await, Evict, KeepUncompressed, PlannedMachine, Requirements
from g10sim.policies.interface.parameters import Density, one_for_each, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.trace.model import TensorKind
from g10sim.trace.workload import Job

Join = Literal["forward_end", "memory"]
HostBuffers = Literal["kept", "released"]
ReturnsSpace = Literal["at_once", "between_kernels"]


@register_policy
class VdnnPlusPlus(SelectiveOffloading):
    """Layer-wise offloading without joins: the next layer starts when the one before has computed.

    A layer waits only for what it needs: memory that is not free before a copy has ended, and its own
    prefetched input. The forward pass ends when all offloads have (``join`` memory: not even then). Training
    data are not copied out, the host has them. With a ``density`` (one for all, or one for each layer that
    offloads) what is copied out is compressed in host memory while the forward pass lasts.
    """

    name = "vdnnpp"
    label = "vDNN++"
    look = Look(YELLOW, "++++", "h", "--")
    paper = "Shriram, Garg and Kulkarni, Dynamic Memory Management for GPU-based training of DNNs, IPDPS 2019"

    join: Join = parameter(default="forward_end", effect=OFFLOADING)
    """``forward_end``: the forward pass ends with its last offload; ``memory``: only memory is waited for."""
    returns_space: ReturnsSpace = parameter(default="at_once", effect=OFFLOADING)
    """Time at which memory of copied tensors is given back."""
    host_buffers: HostBuffers = parameter(default="kept", effect=OFFLOADING)
    """Keep pinned buffers for the whole run, or release them."""
    density: Density | None = parameter(default=None, effect=OFFLOADING)
    """Share of elements that are not zero in what is copied out: it is compressed in host memory. One for
    all, or one for each layer that offloads; none: nothing is compressed. From the backward pass on, nothing
    more is compressed."""

    @property
    def requirements(self) -> Requirements:
        """Those of every layer-wise design, and when buffers and memory are given back."""
        keeps, returns = self.host_buffers == "kept", self.returns_space
        return replace(super().requirements, keeps_host_buffers=keeps, returns_space=returns)

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> LayerJob:
        """Decide what a job offloads. Raises ConfigError or PolicyError for densities of no use."""
        if self.density is not None and system.host.compression is None:
            found = f"{self.density!r} on a host without workers that compress"
            raise ConfigError.at(f"policy '{self.name}': density", found, "with system.host.compression")
        self._check_tiers(system)
        trace, schedule = job.trace, self._schedule(job.trace)
        border, densities = schedule.last_forward, dict[Layer, float]()
        if self.density is not None:
            count = len(schedule.offloads)
            each = one_for_each(self.density, count, "layers that offload", self.name)
            densities = dict(zip(schedule.offloads, each, strict=True))

        def evict(layer: Layer, tensor: int) -> Evict:
            if trace.tensors[tensor].kind is TensorKind.INPUT:  # the host has its contents all the time
                return replace(offload(layer, tensor), is_clean=True)
            return replace(offload(layer, tensor), density=densities.get(layer))

        before = [(border + 1, KeepUncompressed()), *self._copies(trace, schedule, evict)]
        after = {border: [Await()]} if self.join == "forward_end" else {}
        return LayerJob(grouped(before), after, schedule=schedule)
