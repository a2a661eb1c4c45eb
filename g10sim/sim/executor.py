"""Runs one job: kernel after kernel, each as soon as its working set is on the GPU."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable
from itertools import accumulate
from typing import Any

from simpy.events import Event

from g10sim.errors import G10SimError, PolicyError
from g10sim.hardware.memory import GpuMemory
from g10sim.policies.base import Action, Policy
from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.records import JobRecord, StallReason
from g10sim.sim.accounts import WaitLog, reason_for_waiting
from g10sim.sim.admission import admission_bytes
from g10sim.sim.delayed import DelayedMoves
from g10sim.sim.exchange import GradientExchange
from g10sim.sim.gpu import Gpu
from g10sim.sim.ledger import Execution, Ledger
from g10sim.sim.machine import Machine
from g10sim.sim.migrator import Migrator, moves_by_kernel
from g10sim.sim.recomputation import Recomputation
from g10sim.sim.victims import NominatedVictims, RecencyVictims
from g10sim.sim.view import View
from g10sim.sim.working_set import FaultCharge, check_working_sets, count_faults, dominant_reason
from g10sim.trace.model import Kernel, Trace
from g10sim.trace.workload import Job
from g10sim.units import format_bytes


def released_after(trace: Trace) -> list[tuple[int, ...]]:
    """For each kernel the tensors that are dead once it has run (read no more, or written in vain)."""
    dying: list[tuple[int, ...]] = []
    for kernel in trace.kernels:
        dead = (
            tensor
            for tensor in kernel.tensors
            if not trace.tensors[tensor].persistent and trace.deaths[tensor] <= kernel.id + 1
        )
        dying.append(tuple(dead))
    return dying


class JobRun:
    """One job on its GPU, as a SimPy process.

    ``executed`` is the job's trace with the kernel times that it really takes; all decisions are made by
    those of the job.
    """

    def __init__(
        self,
        number: int,
        job: Job,
        executed: Trace,
        memory: GpuMemory,
        policy: Policy,
        plan: MigrationPlan | None,
        machine: Machine,
    ) -> None:
        trace, behaviour = job.trace, machine.behaviour
        check_working_sets(trace, memory)
        self.job, self._executed, self._number = job, executed, number
        self.exchange: GradientExchange | None = None
        self._memory, self._policy, self._machine = memory, policy, machine
        self._transfers, self._behaviour = machine.transfers, behaviour
        self._recomputation = Recomputation(trace)
        self._migrator = Migrator(trace, memory, policy, behaviour, self._recomputation)
        self._delayed = DelayedMoves(trace, memory, self._migrator, self._recomputation, machine)
        self._charge = FaultCharge(executed, machine.system, behaviour)
        self._view = View(
            number,
            job.gpu,
            trace,
            memory,
            lambda: machine.now,
            lambda: self._measured,
            self._recomputation.dropped,
        )
        self._ledger = Ledger(
            number,
            job.gpu,
            memory,
            machine.recorder,
            machine.checker,
            overlap_is_computing=behaviour.breakdown == "computing",
        )
        self._moves = moves_by_kernel(plan, trace)
        clock = machine.system.gpu.clock
        self._durations = [executed.duration_cycles(kernel, clock) for kernel in executed.kernels]
        self._measured = [trace.duration_cycles(kernel, clock) for kernel in trace.kernels]
        self._starts = [0, *accumulate(self._measured)]
        self.ideal_cycles = sum(self._durations)
        self._tensors = [kernel.tensors for kernel in trace.kernels]
        self._needed = [frozenset(tensors) for tensors in self._tensors]
        releases = behaviour.dead_tensors == "released" and not policy.unlimited_memory
        self._releases = releases
        self._dying = released_after(trace) if releases else [()] * len(trace.kernels)
        self._reacts = type(policy).on_kernel_start is not Policy.on_kernel_start
        self._reacts_at_end = type(policy).on_kernel_end is not Policy.on_kernel_end
        self._replans = type(policy).on_iteration_start is not Policy.on_iteration_start
        self._victims = self._victim_rule()

    @property
    def memory(self) -> GpuMemory:
        """The memory that the job's tensors are in."""
        return self._memory

    def expected_death(self, tensor: int) -> float:
        """Tell when a copy of a tensor made now will not be needed any more: when it is next used.

        A position in the iteration from 0 to 1; what is written together and has the same one dies together.
        """
        kernels = len(self.job.trace.kernels)
        return (self._view.kernel + self._view.next_use(tensor)) % kernels / kernels

    def _victim_rule(self) -> RecencyVictims:
        trace, policy, behaviour = self.job.trace, self._policy, self._behaviour
        if type(policy).choose_victims is Policy.choose_victims:
            return RecencyVictims(trace, policy, behaviour)
        return NominatedVictims(trace, policy, behaviour, self._nominate)

    def run(self, gpu: Gpu) -> Generator[Event, Any, None]:
        """SimPy process: wait for arrival and for the GPU, run all iterations, leave the GPU empty."""
        machine, job = self._machine, self.job
        if job.arrival_cycles:
            yield machine.env.timeout(job.arrival_cycles)
        admission = admission_bytes(job.trace, machine.sharing)
        pages = -(-admission // self._memory.page_bytes)
        self._gpu = gpu
        admitted = yield from gpu.enter(pages)
        start = machine.now
        if admitted:
            yield from self._occupy()
            gpu.leave(pages)
        record = JobRecord(
            self._number, job.gpu, job.arrival_cycles, start, machine.now, refused=not admitted
        )
        machine.recorder.job(record)

    def _occupy(self) -> Generator[Event, Any, None]:
        """Run all iterations and leave the GPU empty."""
        machine, transfers = self._machine, self._transfers
        transfers.advance(machine.now)
        transfers.attach(self._number, self.job.gpu, self._memory, self._victims, self._due)
        for iteration in range(self.job.iterations):
            yield from self._iterate(iteration)
        self._delayed.close()
        self._migrator.release(range(len(self.job.trace.tensors)))
        transfers.detach(self._number)
        machine.clockwork.rearm()

    def _iterate(self, iteration: int) -> Generator[Event, Any, None]:
        self._ledger.open_iteration(self._machine.now)
        self._replan(iteration)
        for kernel in self._executed.kernels:
            moves = self._moves[kernel.id]
            if kernel.id == 0 and iteration > 0:
                moves = self._moves[-1] + moves
            start, waits = self._machine.now, WaitLog()
            yield from self._await_gradients(iteration, kernel, waits)
            yield from self._reserve(kernel, waits)
            self._begin(iteration, kernel, moves)
            if self._recomputation.dropped:
                yield from self._recompute(iteration, kernel, waits)
            yield from self._execute(iteration, kernel, start, waits)
        self._ledger.close_iteration(iteration, self._machine.now, self.ideal_cycles)

    def _due(self, tensor: int) -> int:
        """Return the cycle at which a tensor is needed next if nothing has to wait until then."""
        trace, kernel = self.job.trace, self._view.kernel
        kernels, uses = len(trace.kernels), trace.uses[tensor]
        if not uses:
            return self._machine.now
        place = bisect_right(uses, kernel)
        use = uses[place] if place < len(uses) else uses[0] + kernels
        left = self._starts[min(use, kernels)] - self._starts[kernel]
        return self._machine.now + left + self._starts[max(0, use - kernels)]

    def _await_gradients(self, iteration: int, kernel: Kernel, waits: WaitLog) -> Generator[Event, Any, None]:
        """Wait until the gradients that a kernel reads have been exchanged with the other replicas."""
        arrival = self.exchange.arrival(iteration, kernel.id) if self.exchange is not None else None
        if arrival is not None:
            since = self._machine.now
            yield arrival
            waits.add(StallReason.BARRIER, self._machine.now - since)

    def _replan(self, iteration: int) -> None:
        """Let the policy replace the plan between iterations."""
        if not self._replans:
            return
        self._view.enter(iteration, 0)
        try:
            plan = self._policy.on_iteration_start(self._view)
        except Exception as error:
            raise self._blame("on_iteration_start", error) from error
        if plan is not None:
            self._moves = moves_by_kernel(plan, self.job.trace)

    def _reserve(self, kernel: Kernel, waits: WaitLog) -> Generator[Event, Any, None]:
        """Wait until this kernel's working set fits beside those of other jobs' kernels."""
        working_sets = self._gpu.working_sets
        if working_sets is None:
            return
        since = self._machine.now
        yield working_sets.request(self._working_set_pages(kernel))
        waits.add(StallReason.ALLOCATION, self._machine.now - since)

    def _give_up_working_set(self, kernel: Kernel) -> None:
        """Let kernels of other jobs have the memory that this kernel's working set fills."""
        if self._gpu.working_sets is not None:
            self._memory.needed = frozenset()
            self._gpu.working_sets.release(self._working_set_pages(kernel))

    def _recompute(self, iteration: int, kernel: Kernel, waits: WaitLog) -> Generator[Event, Any, None]:
        """Run the kernels again whose dropped results a kernel that is about to start reads."""
        producers = self._recomputation.needed_by(kernel)
        if not producers:
            return
        self._give_up_working_set(kernel)
        for producer in producers:
            yield from self._reserve(producer, waits)
            yield from self._run_again(iteration, producer, waits)
            self._recomputation.dropped.difference_update(producer.outputs)
            if self._releases:
                self._migrator.release(self._recomputation.gone(producer, kernel))
            self._give_up_working_set(producer)
        yield from self._reserve(kernel, waits)
        self._hold(kernel)
        self._memory.settle()
        self._restart_victims()

    def _run_again(self, iteration: int, producer: Kernel, waits: WaitLog) -> Generator[Event, Any, None]:
        machine, duration = self._machine, self._durations[producer.id]
        self._hold(producer)
        self._restart_victims()
        execution = self._execution(iteration, producer, machine.now)
        if not self._is_resident():
            yield from self._fetch(execution, waits)
        if machine.checker is not None:
            machine.checker.kernel_starts(self._memory, producer)
        machine.clockwork.rearm()
        since = machine.now
        yield self._compute(duration)
        self._transfers.advance(machine.now)
        waits.add(StallReason.RECOMPUTATION, duration)
        waits.add(StallReason.COMPUTE_SHARING, machine.now - since - duration)

    def _hold(self, kernel: Kernel) -> None:
        """Keep a kernel's working set on the GPU from now on."""
        memory = self._memory
        memory.needed = self._needed[kernel.id]
        if self._behaviour.running_tensors == "pinned":
            for tensor in self._tensors[kernel.id]:
                if memory.moving[tensor]:
                    memory.cancel_eviction(tensor)

    def _working_set_pages(self, kernel: Kernel) -> int:
        return sum(self._memory.pages[tensor] for tensor in self._tensors[kernel.id])

    def _begin(self, iteration: int, kernel: Kernel, moves: Iterable[PlannedMove]) -> None:
        """Let plan and policy act before a kernel starts."""
        memory, victims = self._memory, self._victims
        self._transfers.advance(self._machine.now)
        memory.protected = frozenset()
        victims.kernel = kernel.id
        self._view.enter(iteration, kernel.id)
        self._hold(kernel)
        self._migrator.issue(kernel.id, self._delayed.hold(iteration, kernel.id, moves))
        if self._reacts:
            self._migrator.perform(kernel.id, self._ask(self._policy.on_kernel_start))
        if self._behaviour.recency == "use":
            for tensor in self._tensors[kernel.id]:
                memory.touch(tensor)
        self._restart_victims()

    def _restart_victims(self) -> None:
        self._victims.restart()
        self._memory.recency.restart_scan()
        self._transfers.changed()

    def _execute(
        self, iteration: int, kernel: Kernel, start: int, waits: WaitLog
    ) -> Generator[Event, Any, None]:
        """Wait for the working set, then compute."""
        machine = self._machine
        execution = self._execution(iteration, kernel, start)
        duration = execution.duration
        end = machine.now + duration
        if not self._is_resident():
            extra = self._charge.cycles(kernel, duration, execution.inputs, execution.outputs)
            yield from self._fetch(execution, waits)
            end = self._end(execution, extra)
        if machine.checker is not None:
            machine.checker.kernel_starts(self._memory, kernel)
        execution.busy_at_compute = self._transfers.busy_cycles(self._number)
        machine.clockwork.rearm()
        computing_since = machine.now
        yield self._compute(end - machine.now)
        waits.add(StallReason.COMPUTE_SHARING, machine.now - end)
        self._measured[kernel.id] = machine.now - computing_since
        self._transfers.advance(machine.now)
        stall = machine.now - start - duration
        if stall:
            execution.stalls = waits.charge(stall, dominant_reason(execution.inputs, execution.outputs))
        execution.busy_at_end = self._transfers.busy_cycles(self._number)
        self._finish(kernel)
        self._transfers.changed()
        if self._memory.awaits:
            yield from self._join(execution)
        busy = self._transfers.busy_cycles(self._number)
        self._ledger.close_kernel(execution, machine.now, busy)
        self._give_up_working_set(kernel)
        if self.exchange is not None:
            self.exchange.kernel_ended(iteration, kernel.id)

    def _join(self, execution: Execution) -> Generator[Event, Any, None]:
        """Let a kernel that has computed end only after the transfers that the policy wants done."""
        since, waits = self._machine.now, WaitLog(execution.stalls)
        yield from self._synchronize(waits)
        stall = sum(cycles for _, cycles in execution.stalls) + self._machine.now - since
        execution.stalls = waits.charge(stall, StallReason.SYNCHRONIZATION)

    def _compute(self, cycles: int) -> Event:
        """Return an event that happens when the GPU has computed for so many cycles of this job's."""
        if self._gpu.compute is None:
            return self._machine.env.timeout(cycles)
        return self._gpu.compute.run(self._number, cycles, self.job.priority)

    def _finish(self, kernel: Kernel) -> None:
        """Release what died with a kernel, then let the policy act."""
        self._migrator.release(self._dying[kernel.id])
        self._react_at_end(kernel)

    def _react_at_end(self, kernel: Kernel) -> None:
        if self._reacts_at_end:
            self._memory.needed = frozenset()
            self._migrator.perform(kernel.id, self._ask(self._policy.on_kernel_end))

    def _execution(self, iteration: int, kernel: Kernel, start: int) -> Execution:
        inputs, outputs = count_faults(kernel, self._memory)
        return Execution(
            iteration,
            kernel,
            start=start,
            duration=self._durations[kernel.id],
            in_transfer_pages=sum([self._memory.moving[tensor] for tensor in self._tensors[kernel.id]]),
            inputs=inputs,
            outputs=outputs,
            busy_at_start=self._transfers.busy_cycles(self._number),
        )

    def _is_resident(self) -> bool:
        memory = self._memory
        if memory.queues.faulting or memory.awaits:
            return False
        return all(memory.idle[tensor] == memory.pages[tensor] for tensor in memory.needed)

    def _has_arrived(self) -> bool:
        memory = self._memory
        return not memory.queues.faulting and not any(memory.moving[tensor] for tensor in memory.needed)

    def _fetch(self, execution: Execution, waits: WaitLog) -> Generator[Event, Any, None]:
        """Demand what is missing and wait until it is there."""
        machine, memory = self._machine, self._memory
        if memory.awaits:
            yield from self._synchronize(waits)
        for tensor in self._tensors[execution.kernel.id]:
            self._transfers.demand(self._number, tensor)
        memory.traffic.faults += execution.faulting_pages
        self._transfers.changed()
        since, reason = machine.now, self._reason()

        def step() -> bool:
            nonlocal since, reason
            waits.add(reason, machine.now - since)
            since, reason = machine.now, self._reason()
            return self._has_arrived()

        if not self._has_arrived():
            yield machine.clockwork.wait(step, self._describe_wait)
            self._restart_victims()

    def _has_joined(self) -> bool:
        return self._memory.has_joined

    def _synchronize(self, waits: WaitLog) -> Generator[Event, Any, None]:
        """Wait for the evictions and prefetches that the policy wants done."""
        machine, memory = self._machine, self._memory
        self._transfers.changed()
        since = machine.now
        if not memory.has_joined:
            yield machine.clockwork.wait(self._has_joined, self._describe_wait)
        waits.add(StallReason.SYNCHRONIZATION, machine.now - since)
        memory.forget_awaited()

    def _reason(self) -> StallReason:
        return self._transfers.bottleneck(self._number) or reason_for_waiting(self._memory)

    def _end(self, execution: Execution, extra: int) -> int:
        now = self._machine.now
        if self._behaviour.compute_overlap == "while_arriving":
            return max(execution.start + execution.duration + extra, now)
        return now + execution.duration + extra

    def _describe_wait(self) -> str | G10SimError:
        memory, kernel = self._memory, self.job.trace.kernels[self._view.kernel]
        missing = sum(memory.moving[tensor] for tensor in kernel.tensors)
        return (
            f"kernel {kernel.id} ({kernel.name}) waits for ever for "
            f"{format_bytes(missing * memory.page_bytes)}: nothing moves any more; host memory has "
            f"{format_bytes(memory.host_pool.free * memory.page_bytes)} free, the SSD "
            f"{format_bytes(memory.flash_pool.free * memory.page_bytes)}"
        )

    def _ask(self, hook: Callable[[View], Iterable[Action]]) -> Iterable[Action]:
        try:
            return tuple(hook(self._view))
        except Exception as error:
            raise self._blame(hook.__name__, error) from error

    def _nominate(self) -> Iterable[int]:
        try:
            return tuple(self._policy.choose_victims(self._view) or ())
        except Exception as error:
            raise self._blame("choose_victims", error) from error

    def _blame(self, hook: str, error: Exception) -> G10SimError:
        if isinstance(error, G10SimError):
            return error
        return PolicyError(
            f"policy '{self._policy.name}', kernel {self._view.kernel}: {hook} raised "
            f"{type(error).__name__}: {error}"
        )
