"""LoHan: all lies below the GPU, and the CPU updates beside the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from g10sim.analysis.recomputation import Recomputability
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.looks import Look
from g10sim.policies.base import Policy, PolicyView, Requirements
from g10sim.policies.moves import Await, Drop, Evict, Fetch, Move, Store
from g10sim.policies.offload_planning.gradients import Gradients, host_bytes, used_on_cpu
from g10sim.policies.offload_planning.rewriting import Schedule, taken_over
from g10sim.policies.offload_planning.room import require_cpu, require_tier
from g10sim.policies.offload_planning.saved import (
    Saved,
    before_module,
    module_of,
    module_starts,
    saved_tensors,
)
from g10sim.policies.offload_planning.takeover import Takeover
from g10sim.policies.offload_planning.windows import Limits, by_kernel, windows
from g10sim.policies.parameters import Count, Declared, parameter
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.planning.machine import PlannedMachine, planned_machines
from g10sim.policies.registry import register_policy
from g10sim.trace.model import Device, Phase, Trace
from g10sim.trace.workload import Workload


@dataclass(frozen=True)
class _Job:
    """Moves of one job, by kernel: weights, gradients, activations, and states."""

    gradients: Gradients
    fetched: Mapping[int, Sequence[int]]
    released: Mapping[int, Sequence[int]]
    swapped: Mapping[int, Sequence[int]]
    returned: Mapping[int, Sequence[int]]
    dropped: Mapping[int, Sequence[int]]
    away: frozenset[int]


@register_policy
class LoHan(Declared, Policy):
    """Weights, optimizer states and activations lie on the SSD; the CPU updates beside the backward pass.

    A gradient leaves as soon as it is complete, and its step runs while the GPU computes those of other
    layers (active gradient offloading). The input of every layer is swapped. Of its other activations those
    are swapped that take longest to compute again for their size, as many as the SSD takes in beside
    ``swap_ratio`` of the forward pass; the others are dropped and computed again.
    """

    name = "lohan"
    label = "LoHan"
    look = Look("#994455", "--.", "4", "1 1")
    paper = (
        "Liao et al., LoHan: Low-Cost High-Performance Framework to Fine-Tune 100B Model on a Consumer GPU, "
        "ICDE 2025"
    )

    swap_ratio: float = parameter(default=1.0, ge=0, le=10, published="1, authors' program")
    """Share of the forward pass during which activations may leave."""
    optimizer_buffers: int = parameter(default=8, ge=1, published="8, authors' program")
    """Steps whose states are in host memory at a time."""
    prefetch_parameters: Count = parameter(default=1_200_000_000, published="1200000000, authors' program")
    """Parameters that are fetched ahead of their use."""
    live_parameters: Count = parameter(default=7_200_000_000, published="7200000000, authors' program")
    """Parameters on the GPU beyond which none is fetched ahead: six buffers."""
    modules_ahead: int = parameter(default=1, ge=1)
    """Modules before its own at which a swapped activation is fetched."""
    bytes_per_parameter: int = parameter(default=2, ge=1, le=8, published="2, paper")
    """Bytes of the weight, and of the gradient, of one parameter: 2 in 16 bits."""
    births: Count = parameter(default=1)
    """Kernels ahead of which new tensors are mapped."""

    def _set_up(self) -> None:
        self._jobs: tuple[_Job, ...] = ()
        self._note = ""

    @property
    def requirements(self) -> Requirements:
        """Addresses of its own, and buffers for states."""
        return Requirements(addresses="own", drops_dead_tensors=True, cpu_buffers=self.optimizer_buffers)

    @property
    def note(self) -> str:
        """Name the tensors that are swapped and those that are computed again."""
        return self._note

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Let the CPU run the optimizer. Raises UnsupportedError without a CPU."""
        require_cpu(self.name, system)
        schedule = Schedule(overlap=True, delayed=False, bucket_bytes=1, returns=False)
        return taken_over(Takeover.of(trace, 1.0, self.bytes_per_parameter), schedule)

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Plan when weights come and go, and what becomes of activations. Raises UnsupportedError."""
        if workload.exchange is not None and len(workload.jobs) > 1:
            raise UnsupportedError(
                f"policy '{self.name}' does not share the optimizer between replicas; allowed: one GPU"
            )
        machines = planned_machines(workload, system, behaviour)
        jobs, in_host, on_ssd, notes = [], 0, 0, list[str]()
        for job, machine in zip(workload.jobs, machines, strict=True):
            planned, note = self._plan_job(job.trace, machine)
            jobs.append(planned)
            notes.append(note)
            sizes = machine.sizes(job.trace)
            in_host += host_bytes(job.trace, sizes, planned.away, self.optimizer_buffers)
            on_ssd += sum(sizes[tensor] for tensor in planned.away)
        if in_host:
            require_tier(self.name, system, "host", in_host, "gradients and the states of some steps")
            require_tier(self.name, system, "ssd", on_ssd, "weights and optimizer states")
        self._jobs, self._note = tuple(jobs), "; ".join(dict.fromkeys(notes))
        return (None,) * len(jobs)

    def _plan_job(self, trace: Trace, machine: PlannedMachine) -> tuple[_Job, str]:
        size, sizes = self.bytes_per_parameter, machine.sizes(trace)
        on_cpu = used_on_cpu(trace)
        away = frozenset(tensor for tensor in on_cpu if trace.tensors[tensor].persistent)
        written = {tensor for one in trace.kernels if one.device is Device.GPU for tensor in one.outputs}
        weights = frozenset(tensor for tensor in away if trace.uses[tensor] and tensor not in written)
        limits = Limits(size * self.prefetch_parameters, size * self.live_parameters, 1)
        stays = windows(trace, weights, limits)
        swapped, dropped = self._activations(trace, machine)
        starts = module_starts(trace)
        back = [(before_module(starts, one.until, self.modules_ahead), one) for one in swapped]
        back.sort(key=lambda pair: (pair[1].until, pair[1].tensor))
        job = _Job(
            Gradients(trace, 1, self.births, on_cpu),
            by_kernel(stays, "fetched"),
            by_kernel(stays, "last"),
            _grouped((one.since, one.tensor) for one in swapped),
            _grouped((max(kernel, one.since + 1), one.tensor) for kernel, one in back),
            _grouped((one.since, one.tensor) for one in dropped),
            away,
        )
        shares = [sum(sizes[one.tensor] for one in some) / 1e9 for some in (swapped, dropped)]
        return job, "swaps {:.3g} GB of activations and computes {:.3g} GB again".format(*shares)

    def _activations(self, trace: Trace, machine: PlannedMachine) -> tuple[list[Saved], list[Saved]]:
        """Return the activations that are swapped, and those that are computed again."""
        saved, rules = saved_tensors(trace), Recomputability(trace)
        cycles = trace.durations_cycles(machine.clock_hz)
        forward = sum(cycles[kernel.id] for kernel in trace.kernels if kernel.phase is Phase.FORWARD)
        left = self.swap_ratio * forward * machine.tier("ssd").write_rate
        inner = list[tuple[float, Saved]]()
        swapped, dropped = list[Saved](), list[Saved]()
        for one in saved:
            producer = rules.producer(one.tensor, one.since + 1)
            crosses = len({module_of(trace.kernels[use]) for use in trace.uses[one.tensor]}) > 1
            if producer is None or crosses or rules.problem(one.tensor, one.since + 1):
                swapped.append(one)
                left -= trace.tensors[one.tensor].size_bytes
            else:
                inner.append((cycles[producer.id] / trace.tensors[one.tensor].size_bytes, one))
        for _, one in sorted(inner, key=lambda pair: (-pair[0], pair[1].tensor)):
            left -= trace.tensors[one.tensor].size_bytes
            (swapped if left >= 0 else dropped).append(one)
        return sorted(swapped, key=lambda one: (one.since, one.tensor)), dropped

    def on_kernel_start(self, view: PolicyView) -> Iterator[Move]:
        """Fetch weights and activations that are needed soon."""
        job = self._jobs[view.job]
        if view.kernel == len(view.trace.kernels) - 1 and job.away:
            yield Await(job.away)
        yield from map(Fetch, job.fetched.get(view.kernel, ()))
        yield from (Fetch(tensor, recalls=True) for tensor in job.returned.get(view.kernel, ()))
        yield from job.gradients.before(view.kernel)

    def on_kernel_end(self, view: PolicyView) -> Iterator[Move]:
        """Send away gradients and activations, give up weights, and store what a step has updated."""
        job, kernel = self._jobs[view.job], view.trace.kernels[view.kernel]
        yield from job.gradients.after(view.kernel)
        for tensor in job.released.get(view.kernel, ()):
            yield Evict(tensor, "ssd", is_clean=True)
        for tensor in job.swapped.get(view.kernel, ()):
            yield Evict(tensor, "ssd")
        yield from map(Drop, job.dropped.get(view.kernel, ()))
        if not kernel.tensors:
            yield from (Store(tensor, "ssd") for tensor in kernel.touched if tensor in job.away)


def _grouped(pairs: Iterator[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for kernel, tensor in pairs:
        found.setdefault(kernel, []).append(tensor)
    return found
