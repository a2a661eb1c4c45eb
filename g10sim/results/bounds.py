"""The bound of a run alongside its result: the time that no policy can beat, where one holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from g10sim.analysis.bound.bound import GPU_ALONE, Bound, iteration_bound
from g10sim.analysis.bound.machine import BoundMachine, BoundTier, RateLimit
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError
from g10sim.grouping import Same
from g10sim.hardware.links import Link, Topology
from g10sim.policies.interface.policy import Requirements
from g10sim.records import Location
from g10sim.results.columns import Row
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload

NO_BOUND = "none"
"""Beginning of a ``bound_kind`` that says why no bound holds."""
_PREMISES = ("transfers", "running_tensors", "compute_overlap", "fault_cost", "flash_capacity")
"""Behaviour that has to be that of hardware, which is the default, for bounds to hold."""
_HARDWARE = BehaviourSpec()


def bound_machine(system: SystemSpec, gpu: int = 0) -> BoundMachine:
    """Return the limits and tiers of a GPU with one job that has the machine to itself."""
    topology = Topology(system)
    numbers: dict[Link, int] = {}

    def ways(tier: Location) -> Iterator[tuple[int, ...]]:
        for path in (topology.inward(gpu, tier), topology.outward(gpu, tier)):
            yield tuple(numbers.setdefault(link, len(numbers)) for link in path)

    stores = tuple(BoundTier(tier.name, tier.capacity, *ways(tier.place)) for tier in system.all_tiers)
    limits = tuple(RateLimit(link.name, link.capacity) for link in numbers)
    memory = system.gpu.memory - system.gpu.beside_tensors
    return BoundMachine(memory, system.gpu.page_size, system.gpu.clock, limits, stores)


@dataclass(frozen=True)
class Premises:
    """Facts about a run on which it depends whether its bound holds.

    ``keeps_kernels``: kernels and their scratch space are those of the trace. ``drops``: contents were
    dropped that would be read again. ``uses_in_place``: kernels used tensors where they lie.
    """

    needs: Requirements
    behaviour: BehaviourSpec
    keeps_kernels: bool = True
    drops: bool = False
    uses_in_place: bool = False

    def obstacle(self, workload: Workload) -> str:
        """Say why the closed form does not hold; empty if it does.

        Where nothing but dropped tensors stands against it, the bound with recomputation holds. Both are
        those of the trace as it is executed (``Workload.executed``).
        """
        if self.drops:
            return "tensors were dropped; their bound is that of g10sim bound --recompute"
        if self.uses_in_place:
            return "kernels used tensors in place; bounds hold where all come to the GPU"
        if not self.keeps_kernels:
            return "the policy chose other kernels"
        return self._unmet_premise(workload)

    def _unmet_premise(self, workload: Workload) -> str:
        """Say which premise of all bounds a run does not meet; empty if it meets them."""
        if self.needs.unlimited_memory:
            return "GPU memory is unlimited"
        if self.needs.placement != "paged":
            return f"GPU memory is {self.needs.placement}; bounds hold for paged memory"
        if self.needs.keeps_copies:
            kept = "tiers keep copies of what has not changed"
            return f"{kept}; bounds hold where only frozen tensors have them"
        if len(workload.jobs) != 1:
            return f"the workload has {len(workload.jobs)} jobs; bounds hold for one"
        if workload.jobs[0].trace.cpu_kernels:
            return GPU_ALONE
        for key in _PREMISES:
            found, value = getattr(self.behaviour, key), getattr(_HARDWARE, key)
            if found != value:
                return f"compat.{key} is '{found}'; bounds hold for '{value}'"
        return ""


@lru_cache(maxsize=16)
def _bound(same: Same[Trace], machine: BoundMachine, *, steady: bool) -> Bound:
    return iteration_bound(same.value, machine, steady=steady)


def closed_form_of(workload: Workload, system: SystemSpec, *, steady: bool) -> Bound:
    """Return the closed form of a workload's only job, as it is executed. Raises CapacityError."""
    executed = workload.in_order_of_use().executed(0)  # as it was simulated, whose uses are known
    return _bound(Same(executed), bound_machine(system, workload.jobs[0].gpu), steady=steady)


def bound_row(workload: Workload, system: SystemSpec, premises: Premises, row: Row) -> Row:
    """Return the columns ``BOUND`` of a row of results; where no bound holds only ``bound_kind``.

    The bound is the closed form, for the average of steady iterations or for every single one.
    """
    if reason := premises.obstacle(workload):
        return {"bound_kind": f"{NO_BOUND}: {reason}"}
    reports_last = premises.behaviour.reported_iteration == "last"
    try:
        found = closed_form_of(workload, system, steady=reports_last and bool(row.get("steady")))
    except CapacityError as error:
        return {"bound_kind": f"{NO_BOUND}: {error}"}
    exec_cycles = int(row["exec_cycles"])
    share = found.cycles / exec_cycles if exec_cycles else 1.0
    return {"bound_cycles": found.cycles, "bound_kind": found.kind, "of_bound": share}
