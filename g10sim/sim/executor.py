"""Runs one job: kernel after kernel, each as soon as its working set is on the GPU."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import simpy
from simpy.events import Event

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, G10SimError, PolicyError
from g10sim.hardware.faults import FaultCount, ProfiledFaultCost
from g10sim.hardware.memory import GpuMemory
from g10sim.hardware.transfers import Transfers
from g10sim.policies.base import Action, Policy
from g10sim.policies.plan import MigrationPlan
from g10sim.records import IterationRecord, KernelRecord, Location, StallReason
from g10sim.sim.accounts import WaitLog, reason_for_waiting
from g10sim.sim.checks import Checker
from g10sim.sim.clockwork import Clockwork
from g10sim.sim.migrator import Migrator, moves_by_kernel
from g10sim.sim.recorder import Recorder
from g10sim.sim.victims import NominatedVictims, RecencyVictims
from g10sim.sim.view import View
from g10sim.trace.model import FaultProfile, Kernel
from g10sim.trace.workload import Job
from g10sim.units import format_bytes


class Machine:
    """What all jobs of a run share."""

    def __init__(
        self,
        env: simpy.Environment,
        system: SystemSpec,
        behaviour: BehaviourSpec,
        transfers: Transfers,
        recorder: Recorder,
        checker: Checker | None,
    ) -> None:
        self.env, self.system, self.behaviour = env, system, behaviour
        self.transfers, self.recorder, self.checker = transfers, recorder, checker
        self.clockwork = Clockwork(env, transfers)
        self.fault_cost = ProfiledFaultCost(system)


class JobRun:
    """One job on its GPU, as a SimPy process."""

    def __init__(
        self,
        number: int,
        job: Job,
        memory: GpuMemory,
        policy: Policy,
        plan: MigrationPlan | None,
        machine: Machine,
    ) -> None:
        self.number, self.job, self.memory, self.policy = number, job, memory, policy
        self._machine, self._env, self._transfers = machine, machine.env, machine.transfers
        self._behaviour = machine.behaviour
        trace, clock = job.trace, machine.system.gpu.clock
        self._migrator = Migrator(trace, memory, policy, machine.behaviour)
        self._view = View(number, job.gpu, trace, memory, lambda: int(machine.env.now))
        self._moves = moves_by_kernel(plan, trace)
        self._durations = [trace.duration_cycles(kernel, clock) for kernel in trace.kernels]
        self._needed = [frozenset(kernel.tensors) for kernel in trace.kernels]
        self._dying = self._deaths_by_kernel()
        self._reacts = type(policy).on_kernel_start is not Policy.on_kernel_start
        self.victims = self._victim_rule()
        self._check_working_sets()

    @property
    def ideal_cycles(self) -> int:
        """Sum of the kernels' durations."""
        return sum(self._durations)

    def _victim_rule(self) -> RecencyVictims:
        trace, policy, behaviour = self.job.trace, self.policy, self._behaviour
        if type(policy).choose_victims is Policy.choose_victims:
            return RecencyVictims(trace, policy, behaviour)
        return NominatedVictims(trace, policy, behaviour, self._nominate)

    def _nominate(self) -> Iterable[int] | None:
        try:
            return self.policy.choose_victims(self._view)
        except Exception as error:
            raise self._blame("choose_victims", error) from error

    def _deaths_by_kernel(self) -> list[tuple[int, ...]]:
        """Tensors whose pages are released after each kernel, where the machine does that."""
        trace = self.job.trace
        dying: list[list[int]] = [[] for _ in trace.kernels]
        if self._behaviour.dead_tensors == "released" and not self.policy.unlimited_memory:
            for kernel in trace.kernels:
                for tensor in kernel.tensors:
                    if not trace.tensors[tensor].persistent and trace.deaths[tensor] <= kernel.id + 1:
                        dying[kernel.id].append(tensor)
        return [tuple(tensors) for tensors in dying]

    def _check_working_sets(self) -> None:
        pages, page_bytes = self.memory.pages, self.memory.page_bytes
        for kernel in self.job.trace.kernels:
            needed = sum(pages[tensor] for tensor in kernel.tensors)
            if needed > self.memory.capacity_pages:
                raise CapacityError(
                    f"kernel {kernel.id} ({kernel.name}) of '{self.job.trace.model}' has a working set of "
                    f"{format_bytes(needed * page_bytes)}; allowed: at most the GPU memory, "
                    f"{format_bytes(self.memory.capacity_pages * page_bytes)}"
                )

    def run(self, gpu: simpy.Resource) -> Generator[Event, Any, None]:
        """SimPy process: wait for arrival and for the GPU, run all iterations, leave the GPU empty."""
        if self.job.arrival_cycles:
            yield self._env.timeout(self.job.arrival_cycles)
        with gpu.request() as turn:
            yield turn
            self._transfers.advance(self._env.now)
            self._transfers.attach(self.job.gpu, self.memory, self.victims)
            for iteration in range(self.job.iterations):
                yield from self._iterate(iteration)
            self._transfers.advance(self._env.now)
            self._migrator.release(range(len(self.job.trace.tensors)))
            self._transfers.detach(self.job.gpu)
            self._machine.clockwork.rearm()

    def _iterate(self, iteration: int) -> Generator[Event, Any, None]:
        start, before = self._env.now, self.memory.traffic.snapshot()
        self.memory.peak_used = self.memory.used
        self.memory.host_pool.peak_used = self.memory.host_pool.used
        self._compute = self._overlap = 0
        self._stalls: dict[StallReason, int] = {}
        for kernel in self.job.trace.kernels:
            moves = self._moves[kernel.id]
            if kernel.id == 0 and iteration > 0:
                moves = self._moves[-1] + moves
            self._begin(iteration, kernel, moves)
            yield from self._execute(iteration, kernel)
        self._transfers.advance(self._env.now)
        self._finish_iteration(iteration, int(start), before)

    def _begin(self, iteration: int, kernel: Kernel, moves: Iterable[Any]) -> None:
        memory = self.memory
        self._transfers.advance(self._env.now)
        self._transfers.changed()
        memory.needed = self._needed[kernel.id]
        memory.protected = frozenset()
        self.victims.kernel = kernel.id
        self._view.enter(iteration, kernel.id)
        if self._behaviour.running_tensors == "pinned":
            for tensor in kernel.tensors:
                if memory.moving[tensor]:
                    memory.cancel_eviction(tensor)
        self._migrator.issue(kernel.id, moves)
        if self._reacts:
            self._migrator.perform(kernel.id, self._ask())
        if self._behaviour.recency == "use":
            for tensor in kernel.tensors:
                memory.touch(tensor)
        self.victims.restart()
        memory.recency.restart_scan()

    def _ask(self) -> Iterable[Action]:
        try:
            return tuple(self.policy.on_kernel_start(self._view))
        except Exception as error:
            raise self._blame("on_kernel_start", error) from error

    def _blame(self, hook: str, error: Exception) -> G10SimError:
        if isinstance(error, G10SimError):
            return error
        return PolicyError(
            f"policy '{self.policy.name}', kernel {self._view.kernel}: {hook} raised "
            f"{type(error).__name__}: {error}"
        )

    def _execute(self, iteration: int, kernel: Kernel) -> Generator[Event, Any, None]:
        memory, start = self.memory, int(self._env.now)
        duration = self._durations[kernel.id]
        in_transfer = sum(memory.moving[tensor] for tensor in kernel.tensors)
        inputs, outputs = self._count_faults(kernel)
        waits = WaitLog()
        if not self._ready():
            for tensor in kernel.tensors:
                self._transfers.demand(self.job.gpu, tensor)
            memory.traffic.faults += inputs.faulting + outputs.faulting
            extra = self._profiled_cost(kernel, duration, inputs, outputs)
            yield from self._wait(waits)
            end = self._end(start, duration, extra)
        else:
            self._transfers.changed()
            end = start + duration
        stalls = waits.charge(end - start - duration, _dominant(inputs, outputs))
        if self._machine.checker is not None:
            self._machine.checker.kernel_starts(self.memory, kernel)
        busy_before = self._transfers.busy_cycles(self.job.gpu)
        self._machine.clockwork.rearm()
        yield self._env.timeout(end - int(self._env.now))
        self._transfers.advance(self._env.now)
        overlap = min(duration, self._transfers.busy_cycles(self.job.gpu) - busy_before)
        self._migrator.release(self._dying[kernel.id])
        self._account(iteration, kernel, start, duration, overlap, stalls, in_transfer, inputs, outputs)

    def _ready(self) -> bool:
        memory = self.memory
        if memory.queues.faulting:
            return False
        pages, idle = memory.pages, memory.idle
        return all(idle[tensor] == pages[tensor] for tensor in memory.needed)

    def _arrived(self) -> bool:
        memory = self.memory
        return not memory.queues.faulting and not any(memory.moving[tensor] for tensor in memory.needed)

    def _count_faults(self, kernel: Kernel) -> tuple[FaultCount, FaultCount]:
        inputs, outputs = FaultCount(), FaultCount()
        seen: set[int] = set()
        for count, tensors in ((inputs, kernel.inputs), (outputs, kernel.outputs)):
            for tensor in tensors:
                count.pages += self.memory.pages[tensor]
                if tensor not in seen:
                    seen.add(tensor)
                    count.flash += self.memory.flash[tensor]
                    count.host += self.memory.host[tensor]
                    count.absent += self.memory.absent[tensor]
        return inputs, outputs

    def _profiled_cost(self, kernel: Kernel, duration: int, inputs: FaultCount, outputs: FaultCount) -> int:
        if self._behaviour.fault_cost != "profiled":
            return 0
        profile = kernel.fault_profile
        if profile is not None:
            clock, ticks = self._machine.system.gpu.clock, self.job.trace.ticks_per_second
            profile = FaultProfile(
                profile.outputs_faulting * clock // ticks, profile.all_faulting * clock // ticks
            )
        return self._machine.fault_cost.cycles(duration, profile, inputs, outputs)

    def _wait(self, waits: WaitLog) -> Generator[Event, Any, None]:
        self._transfers.changed()
        mark = [int(self._env.now), self._waiting_reason()]

        def step() -> bool:
            waits.add(mark[1], int(self._env.now) - mark[0])
            mark[:] = int(self._env.now), self._waiting_reason()
            return self._arrived()

        if not self._arrived():
            yield self._machine.clockwork.wait(step, self._describe_wait)
            self._transfers.advance(self._env.now)
            self.memory.recency.restart_scan()
            self._transfers.changed()

    def _waiting_reason(self) -> Any:
        return self._transfers.bottleneck(self.job.gpu) or reason_for_waiting(self.memory)

    def _describe_wait(self) -> str:
        kernel = self.job.trace.kernels[self._view.kernel]
        missing = sum(self.memory.moving[tensor] for tensor in kernel.tensors)
        return (
            f"kernel {kernel.id} ({kernel.name}) waits for ever for "
            f"{format_bytes(missing * self.memory.page_bytes)}: nothing can leave the GPU, host memory has "
            f"{format_bytes(self.memory.host_pool.free * self.memory.page_bytes)} free"
        )

    def _end(self, start: int, duration: int, extra: int) -> int:
        now = int(self._env.now)
        if self._behaviour.compute_overlap == "while_arriving":
            return max(start + duration + extra, now)
        return now + duration + extra

    def _account(
        self,
        iteration: int,
        kernel: Kernel,
        start: int,
        duration: int,
        overlap: int,
        stalls: tuple[tuple[StallReason, int], ...],
        in_transfer: int,
        inputs: FaultCount,
        outputs: FaultCount,
    ) -> None:
        self._compute += duration
        self._overlap += overlap
        for reason, cycles in stalls:
            self._stalls[reason] = self._stalls.get(reason, 0) + cycles
        recorder = self._machine.recorder
        recorder.kernel_count += 1
        if "kernels" not in recorder.wanted and self._machine.checker is None:
            return
        record = KernelRecord(
            job=self.number,
            gpu=self.job.gpu,
            iteration=iteration,
            kernel=kernel.id,
            start=start,
            end=int(self._env.now),
            compute_cycles=duration,
            overlap_cycles=overlap,
            stalls=stalls,
            in_transfer_pages=in_transfer,
            host_fault_pages=inputs.host + outputs.host,
            flash_fault_pages=inputs.flash + outputs.flash,
            first_touch_pages=inputs.absent + outputs.absent,
            gpu_pages=self.memory.used,
            host_pages=self.memory.host_pool.used,
        )
        recorder.kernels.append(record)
        if self._machine.checker is not None:
            self._machine.checker.kernel_ended(record)

    def _finish_iteration(self, iteration: int, start: int, before: tuple[int, ...]) -> None:
        memory, page = self.memory, self.memory.page_bytes
        flash_in, flash_out, host_in, host_out, faults = (
            after - earlier for after, earlier in zip(memory.traffic.snapshot(), before, strict=True)
        )
        memory.note_peak()
        record = IterationRecord(
            job=self.number,
            gpu=self.job.gpu,
            iteration=iteration,
            start=start,
            end=int(self._env.now),
            ideal_cycles=self.ideal_cycles,
            compute_cycles=self._compute,
            overlap_cycles=self._overlap,
            stalls=tuple(sorted(self._stalls.items())),
            ssd_to_gpu_bytes=flash_in * page,
            gpu_to_ssd_bytes=flash_out * page,
            host_to_gpu_bytes=host_in * page,
            gpu_to_host_bytes=host_out * page,
            page_faults=faults,
            peak_gpu_bytes=memory.peak_used * page,
            peak_host_bytes=memory.host_pool.peak_used * page,
        )
        self._machine.recorder.iterations.append(record)
        if self._machine.checker is not None:
            self._machine.checker.iteration_ended(record, memory)


def _dominant(inputs: FaultCount, outputs: FaultCount) -> StallReason:
    """Reason of time that a closed form adds: flash before host before first touch."""
    if inputs.flash or outputs.flash:
        return StallReason.FAULT_FLASH
    if inputs.host or outputs.host:
        return StallReason.FAULT_HOST
    if inputs.absent or outputs.absent:
        return StallReason.FIRST_TOUCH
    return StallReason.LATE_PREFETCH


def initial_location(memory: GpuMemory, policy: Policy) -> Location:
    """Where persistent tensors are before the first iteration: on flash, or on an unlimited GPU."""
    return Location.GPU if policy.unlimited_memory else Location.FLASH
