"""vDNN++: vDNN without the join at the end of every layer, with a choice of allocators and compression."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, PolicyError
from g10sim.policies.base import Action, DropCompression, Evict, PolicyView, Synchronize
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.registry import register_policy
from g10sim.policies.vdnn_planning.design import (
    Algorithms,
    Allocator,
    LayerWise,
    Mode,
    Order,
    check_choice,
    is_training_data,
)
from g10sim.policies.vdnn_planning.layers import Layer
from g10sim.trace.workload import Workload

Join = Literal["forward_end", "memory"]
HostBuffers = Literal["kept", "released"]
ReturnsSpace = Literal["at_once", "between_kernels"]


@register_policy
class VdnnPlusPlus(LayerWise):
    """Layer-wise offloading without joins: the next layer starts when the one before has computed.

    A layer waits only for what it needs: memory that is not free before a copy has ended, and its own
    prefetched input. The forward pass ends when all offloads have (``join`` memory: not even then). Training
    data are not copied out, the host has them. With a ``density`` (one for all, or one for each layer that
    offloads) what is copied out is compressed in host memory while the forward pass lasts.

    Beside the parameters of vDNN, ``join`` says where copies are waited for, ``returns_space`` when memory
    of what has been copied is given back, and ``host_buffers`` whether pinned buffers are kept.
    """

    name = "vdnnpp"
    label = "vDNN++"
    paper = "Shriram, Garg and Kulkarni, Dynamic Memory Management for GPU-based training of DNNs, IPDPS 2019"

    def __init__(
        self,
        *,
        mode: Mode = "dyn",
        algorithms: Algorithms = "performance",
        algorithms_file: str | None = None,
        allocator: Allocator | dict[str, object] = "best_fit",
        order: Order = "prefetch_first",
        fuse_activations: bool = True,
        join: Join = "forward_end",
        returns_space: ReturnsSpace = "at_once",
        host_buffers: HostBuffers = "kept",
        density: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(
            mode=mode,
            algorithms=algorithms,
            algorithms_file=algorithms_file,
            allocator=allocator,
            order=order,
            fuse_activations=fuse_activations,
        )
        self.join, self.host_buffers, self.density = join, host_buffers, density
        self.returns_space = returns_space
        for key, kind in (("join", Join), ("host_buffers", HostBuffers), ("returns_space", ReturnsSpace)):
            check_choice(key, getattr(self, key), get_args(kind))
        _check_density(density)
        self.keeps_host_buffers = host_buffers == "kept"
        self._densities: list[dict[int, float]] = []

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Decide what every job offloads. Raises ConfigError or PolicyError for densities of no use."""
        if self.density is not None and system.host.compression is None:
            raise ConfigError(
                f"policy '{self.name}': density: found {self.density!r} on a host without workers that "
                "compress; allowed: with system.host.compression"
            )
        plans = super().plan(workload, system, behaviour)
        self._densities = [self._by_layer(list(schedule.offloads.values())) for schedule in self._schedules]
        return plans

    def _by_layer(self, layers: Sequence[Layer]) -> dict[int, float]:
        if self.density is None:
            return {}
        each = [self.density] * len(layers) if isinstance(self.density, (int, float)) else list(self.density)
        if len(each) != len(layers):
            raise PolicyError(
                f"policy '{self.name}': density: found {len(each)} densities; allowed: one for all, or one "
                f"for each of the {len(layers)} layers that offload"
            )
        return {layer.index: density for layer, density in zip(layers, each, strict=True)}

    def on_kernel_start(self, view: PolicyView) -> Iterable[Action]:
        """Offload and prefetch; from the backward pass on, nothing more is compressed."""
        if view.kernel == self._schedules[view.job].last_forward + 1:
            yield DropCompression()
        yield from super().on_kernel_start(view)

    def on_kernel_end(self, view: PolicyView) -> Iterable[Action]:
        """Let the forward pass end with its last offload."""
        if self.join == "forward_end" and view.kernel == self._schedules[view.job].last_forward:
            yield Synchronize()

    def _eviction(self, view: PolicyView, layer: Layer, tensor: int) -> Evict:
        eviction = super()._eviction(view, layer, tensor)
        if is_training_data(view.trace, tensor):
            return replace(eviction, is_clean=True)
        return replace(eviction, density=self._densities[view.job].get(layer.index))


def _check_density(density: object) -> None:
    if density is None:
        return
    values = list(density) if isinstance(density, (list, tuple)) else [density]
    if not values or not all(map(_is_density, values)):
        raise ValueError(f"density: found {density!r}; allowed: a number from 0 to 1, or a list of them")


def _is_density(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
