"""TERAIO: tensors leave for SSDs, and host memory, while memory is critically short."""

from __future__ import annotations

from collections.abc import Hashable

from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.designs.farthest_use import WholeTensors, WholeTensorsJob
from g10sim.policies.designs.teraio.planner import Planner, WaitingPlanner
from g10sim.policies.interface import MigrationPlan, PlannedMachine, PolicyView, Requirements
from g10sim.policies.interface.parameters import Size, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.limit import Limited, TimeLimit
from g10sim.policies.planning.offloading.room import require_ssd
from g10sim.trace.workload import Job
from g10sim.units import parse_bytes

# Of 18 steps of small transformers, those where the plan with waits expects at most this share of the other's
# time were 6 to 24% faster with it; above it one was 5% slower.
_SURELY = 0.9


class _Job(WholeTensorsJob):
    """Follows the plan of a job; ``_unplanned`` are the last uses and bytes of what has left without it."""

    def __init__(self, plan: MigrationPlan, planner: Planner, machine: PlannedMachine, note: str) -> None:
        super().__init__(plan, machine.ssd.name)
        self.note, self._planner, self._host = note, planner, machine.memory.name
        self._unplanned: list[tuple[int, int]] = []

    def state(self, view: PolicyView) -> Hashable:
        """Return what has left for host memory without being planned, and the kernels until it is used."""
        now = view.iteration * len(view.trace.kernels) + view.kernel
        return tuple((until - now, size) for until, size in self._unplanned if until > now)

    def way_out(self, view: PolicyView, tensor: int) -> str:
        """Return host memory if a tensor has room there until its next use, or the SSD: a kernel waits.

        The plan's room in host memory, and that of what has left like this and has not been used since, is
        taken.
        """
        size, kernels = view.size_bytes(tensor), len(view.trace.kernels)
        now, span = view.iteration * kernels + view.kernel, min(view.next_use(tensor), kernels)
        there = [(until, other) for until, other in self._unplanned if until > now]
        left = self._planner.host_bytes_left(view.kernel, view.kernel + span)
        if size > min(view.free_bytes_of(self._host), left - sum(other for _, other in there)):
            return super().way_out(view, tensor)
        self._unplanned = [*there, (now + span, size)]
        return self._host


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
    job_class = _Job
    host_limit: Size | None = parameter(default=None, published="170 GB for 8B models, 770 GB for 70B")
    """Most bytes in host memory; 0 B: the SSD alone. None: as much as there is."""
    memory_target: float = parameter(default=0.9, ge=0.01, le=1)
    """Share of GPU memory that the plan may fill; tensors in one piece need the rest."""
    plans_waits: bool = parameter(default=True, published="false")
    """Plan a second time with kernels that wait for copies where the plan leaves memory short; take that plan
    if it is expected to take a tenth less time."""

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> _Job:
        """Plan a job. Raises UnsupportedError for a system without an SSD."""
        require_ssd(self.name, machine)
        memory, limit, time = machine.memory, self.host_limit, TimeLimit(self.planning_limit)
        capacity_bytes = int(machine.gpu_bytes * self.memory_target)
        host_bytes = memory.capacity_bytes if limit is None else parse_bytes(limit)
        given = job.trace, machine, capacity_bytes, host_bytes, time
        planner = Planner(*given)
        plan = planner.plan()
        if self.plans_waits and not time.is_over() and planner.pressure.highest_bytes:
            waiting, most = WaitingPlanner(*given), _SURELY * planner.expected_cycles
            if waiting.timeline.period < most:
                other = waiting.plan()
                if waiting.expected_cycles < most and not time.was_reached:
                    planner, plan = waiting, other
        return _Job(plan, planner, machine, time.note)
