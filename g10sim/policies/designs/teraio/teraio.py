"""TERAIO: tensors leave for SSDs, and host memory, while memory is critically short."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.designs.farthest_use import WholeTensors
from g10sim.policies.designs.teraio.planner import Planner, WaitingPlanner
from g10sim.policies.interface.machine import PlannedMachine, planned_machines
from g10sim.policies.interface.parameters import Size, parameter
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import PolicyView, Requirements
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.limit import Limit, Limited
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload
from g10sim.units import parse_bytes

# Of 18 steps of small transformers, those where the plan with waits expects at most this share of the other's
# time were 6 to 24% faster with it; above it one was 5% slower.
_SURELY = 0.9


@register_policy
class Teraio(Limited, WholeTensors):
    """Offloads whole tensors by their lifetimes, over GPUDirect Storage, without unified memory.

    Of all inactive periods it takes, again and again, the one that takes away most critical memory pressure
    (bytes beyond GPU memory x time) for the time of its copies, with the bandwidth that earlier choices
    leave. Tensors go to the SSD, and to host memory only while the SSD is busy and up to a limit.
    """

    name = "teraio"
    label = "TERAIO"
    look = Look("#661100", "-.", "|", "7 2 1 2")
    paper = "Li et al., TERAIO: lifetime-aware tensor offloading, NeurIPS 2025 (arXiv 2506.06472)"
    requirements = Requirements(placement="contiguous")
    host_limit: Size | None = parameter(default=None, published="170 GB for 8B models, 770 GB for 70B")
    """Most bytes in host memory; 0 B: the SSD alone. None: as much as there is."""
    memory_target: float = parameter(default=0.9, ge=0.01, le=1)
    """Share of GPU memory that the plan may fill; tensors in one piece need the rest."""
    plans_waits: bool = parameter(default=True, published="false")
    """Plan a second time with kernels that wait for copies where the plan leaves memory short; take that plan
    if it is expected to take a tenth less time."""

    def _set_up(self) -> None:
        super()._set_up()
        self._limits: list[Limit] = []

    @property
    def note(self) -> str:
        """Say whether planning ended early."""
        return "; ".join(dict.fromkeys(limit.note for limit in self._limits if limit.note))

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Plan every job by itself. Raises UnsupportedError for a system without an SSD."""
        machines = self._with_ssd(planned_machines(workload, system, behaviour, shares_gpus=False))
        self._host, self._ssd = machines[0].memory.name, machines[0].ssd.name
        limit = parse_bytes(self.host_limit) if self.host_limit is not None else None
        self._planners, plans = list[Planner](), []
        self._limits = []
        self._unplanned: dict[int, list[tuple[int, int]]] = {}
        for job, machine in zip(workload.jobs, machines, strict=True):
            host_bytes = machine.memory.capacity_bytes if limit is None else limit
            capacity = int(machine.gpu_bytes * self.memory_target)
            planner, plan = self._planned(job.trace, machine, capacity, host_bytes)
            plans.append(plan)
            self._planners.append(planner)
        return tuple(plans)

    def _planned(
        self, trace: Trace, machine: PlannedMachine, capacity: int, host_bytes: int
    ) -> tuple[Planner, MigrationPlan]:
        """Return the plan of a job, and its planner: that with waits if it is surely shorter."""
        time = Limit(self.planning_limit)
        self._limits.append(time)
        planner = Planner(trace, machine, capacity, host_bytes, time)
        plan = planner.plan()
        if not self.plans_waits or time.is_over() or not planner.pressure.highest_bytes:
            return planner, plan
        waiting = WaitingPlanner(trace, machine, capacity, host_bytes, time)
        most = _SURELY * planner.expected_cycles
        if waiting.kernel_cycles < most:
            other = waiting.plan()
            if waiting.expected_cycles < most and not time.was_reached:
                return waiting, other
        return planner, plan

    def state(self, view: PolicyView) -> Hashable:
        """Return what has left for host memory without being planned, and the kernels until it is used."""
        now = view.iteration * len(view.trace.kernels) + view.kernel
        return tuple((until - now, size) for until, size in self._unplanned.get(view.job, ()) if until > now)

    def _way_out(self, view: PolicyView, tensor: int) -> str:
        """Return host memory if a tensor has room there until its next use, or the SSD: a kernel waits.

        The plan's room in host memory, and that of what has left like this and has not been used since, is
        taken.
        """
        size, kernels = view.size_bytes(tensor), len(view.trace.kernels)
        now, span = view.iteration * kernels + view.kernel, min(view.next_use(tensor), kernels)
        there = [(until, other) for until, other in self._unplanned.get(view.job, []) if until > now]
        left = self._planners[view.job].host_bytes_left(view.kernel, view.kernel + span)
        if size > min(view.free_bytes_of(self._host), left - sum(other for _, other in there)):
            return self._ssd
        self._unplanned[view.job] = [*there, (now + span, size)]
        return self._host
