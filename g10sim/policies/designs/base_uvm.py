"""Base UVM: pages move when they are touched."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from g10sim.looks import GREY, Look
from g10sim.policies.interface import Access, Move, Policy, PolicyView, Requirements, Trials
from g10sim.policies.interface.parameters import WITH_KERNEL_ACCESS, Count, Declared, parameter
from g10sim.policies.interface.registry import register_policy


@register_policy
class BaseUvm(Declared, Policy):
    """Unified memory without hints: page faults bring pages in, least recent pages go out.

    With an ``access_counter``, memory that kernels can use in place is counted before it migrates, as the
    access counters of GPUs on coherent links do (NVIDIA's open UVM driver, uvm_gpu_access_counters.c).
    """

    name = "base_uvm"
    label = "Base UVM"
    look = Look(GREY, marker="s", line=":")
    paper = "Baseline of the G10 paper (MICRO 2023), section 7.1"
    access_counter: Count | None = parameter(default=None, effect=WITH_KERNEL_ACCESS)
    """Times that kernels read and write a tensor's bytes in place before these migrate; none: not once."""
    discard: bool = parameter(default=False)
    """Pages of dead tensors leave without being copied, as the framework discards them (CUDA 13,
    cuMemDiscardBatchAsync)."""

    @property
    def requirements(self) -> Requirements:
        """Nothing moves ahead of its use."""
        return Requirements(moves_ahead=False, drops_dead_tensors=self.discard)

    def settle(self, obstacle: Trials) -> BaseUvm:
        """Count accesses where that decides what migrates."""
        return self if self.access_counter is None else _Counting(**self.parameters())


class _Counting(BaseUvm):
    """Base UVM that counts: hooks that have nothing to say are not asked at each kernel."""

    access_counter: int

    def _set_up(self) -> None:
        self._counts: dict[int, dict[int, int]] = {}

    def on_iteration_start(self, view: PolicyView) -> None:
        """Begin to count when a job begins."""
        if not view.iteration:
            self._counts[view.job] = {}

    def state(self, view: PolicyView) -> Hashable:
        """Return how often kernels have used what they use in place."""
        return tuple(sorted(self._counts[view.job].items()))

    def on_kernel_start(self, view: PolicyView) -> Iterator[Move]:
        """Use in place what kernels have not used often enough; the rest faults."""
        kernel, counts = view.trace.kernels[view.kernel], self._counts[view.job]
        for tensor in kernel.tensors:
            tier = next((name for name in view.in_place_tiers if view.bytes_in(tensor, name)), None)
            if tier is None:
                continue
            count = counts.get(tensor, 0) + kernel.reads_of(tensor) + (tensor in kernel.outputs)
            is_few = count <= self.access_counter
            counts[tensor] = count if is_few else 0
            if is_few:
                yield Access(tensor, tier)
