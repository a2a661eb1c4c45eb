"""Premises of the bounds: which runs they hold for."""

from __future__ import annotations

from typing import Protocol

from g10sim.config.behaviour import BehaviourSpec
from g10sim.trace.workload import Workload

GPU_ALONE = "kernels run on the CPU; bounds hold for kernels on the GPU"
"""Reason why no bound holds for a trace with kernels on the CPU."""

_PREMISES = {
    "transfers": "fluid",
    "running_tensors": "pinned",
    "compute_overlap": "after_arrival",
    "fault_cost": "latency",
    "flash_capacity": "limited",
}


class MemoryNeeds(Protocol):
    """Requirements of a policy on memory (``g10sim.policies.interface.policy.Requirements``)."""

    @property
    def unlimited_memory(self) -> bool:
        """GPU memory has room for everything."""

    @property
    def placement(self) -> str:
        """Kind of GPU memory."""

    @property
    def keeps_copies(self) -> bool:
        """Tiers keep copies of what has not changed."""


def obstacle(needs: MemoryNeeds, behaviour: BehaviourSpec, workload: Workload) -> str:
    """Say why no bound holds for a run; empty if one does.

    Where none of the policy's moves drops a tensor, that is the ordinary bound, otherwise the one with
    recomputation. Both are those of the trace as it is executed (``Workload.executed``).
    """
    if needs.unlimited_memory:
        return "GPU memory is unlimited"
    if needs.placement != "paged":
        return f"GPU memory is {needs.placement}; bounds hold for paged memory"
    if needs.keeps_copies:
        return "tiers keep copies of what has not changed; bounds hold where only frozen tensors have them"
    if len(workload.jobs) != 1:
        return f"the workload has {len(workload.jobs)} jobs; bounds hold for one"
    if workload.jobs[0].trace.cpu_kernels:
        return GPU_ALONE
    for key, value in _PREMISES.items():
        found = getattr(behaviour, key)
        if found != value:
            return f"compat.{key} is '{found}'; bounds hold for '{value}'"
    return ""
