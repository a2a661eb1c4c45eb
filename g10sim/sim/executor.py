"""Runs one job: kernel after kernel, each as soon as its working set is on the GPU."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from itertools import accumulate, count, takewhile

from g10sim.hardware.faults import FaultCount, ProfiledFaultCost
from g10sim.hardware.gpu_memory.contiguous import Contiguous
from g10sim.policies.interface.plan import Planned
from g10sim.records import JobRecord, StallReason
from g10sim.sim.accounts.ledger import Execution, Ledger
from g10sim.sim.accounts.owners import WaitLog
from g10sim.sim.accounts.repetition import EndState
from g10sim.sim.beside.cpu import HostStores
from g10sim.sim.beside.work import WorkBeside
from g10sim.sim.context import JobContext
from g10sim.sim.contiguous import WholeFetching, move_in
from g10sim.sim.fabric import Process
from g10sim.sim.gpu import Gpu
from g10sim.sim.moves.migrator import DelayedMoves, Migrator, moves_by_kernel
from g10sim.sim.moves.reactions import NominatedVictims, Reactions, RecencyVictims
from g10sim.sim.stages.fetching import Fetching, InPlaceAccess
from g10sim.sim.stages.recomputation import Recomputation
from g10sim.sim.stages.working_set import check_working_sets, count_faults, dominant_reason, released_after
from g10sim.sim.view import View, kernels_to_next_use
from g10sim.trace.model import Kernel


class JobRun:
    """One job on its GPU, as a SimPy process."""

    def __init__(self, context: JobContext) -> None:
        job, machine, memory, behaviour = context.job, context.machine, context.memory, context.behaviour
        trace, executed, clock = job.trace, context.executed, machine.system.gpu.clock
        self.context, self.job, self.memory, self.addresses = context, job, memory, context.addresses
        self._number, self._machine = context.number, machine
        self._fabric, self._clock, self._behaviour = context.fabric, context.fabric.clock, behaviour
        self._transfers = context.fabric.transfers
        self._kernels, self._recomputation = executed.kernels, Recomputation(trace)
        self._launched = frozenset(one.id for one in (*trace.cpu_kernels, *trace.link_kernels))
        self._nothing = FaultCount([0] * len(memory.pages))
        is_profiled, ticks = behaviour.fault_cost == "profiled", executed.ticks_per_second
        self._fault_cost = ProfiledFaultCost(machine.system, ticks) if is_profiled else None
        self._durations = executed.durations_cycles(clock)
        self._measured = list(self._durations) if executed is trace else trace.durations_cycles(clock)
        self._own = list(self._measured)
        self._starts = [0, *accumulate(self._measured)]
        dropped = self._recomputation.dropped
        self._view = View(context, dropped, self._measured, self._own)
        stores = HostStores(context) if trace.cpu_kernels else None
        self._whole = memory if isinstance(memory, Contiguous) else None
        self._releases = (
            behaviour.dead_tensors == "released"
            and not context.policy.requirements.unlimited_memory
            and not context.addresses.are_shared
        )
        dying = released_after(trace) if self._releases or self._whole else [()] * len(trace.kernels)
        self._migrator = Migrator(context, self._view, self._recomputation, dying, stores)
        self._delayed = DelayedMoves(trace, self._migrator, self._fabric)
        self._ledger = Ledger(context)
        slowed = machine.system.gpu.copy_contention and machine.sharing.compute == "exclusive"
        self._slower = StallReason.COPY_CONTENTION if slowed else StallReason.COMPUTE_SHARING
        self._in_place = InPlaceAccess(context)
        self._moves = moves_by_kernel(context.plan, trace, machine.tiers)
        is_checked = machine.checker is not None
        self._reactions = Reactions(context.policy, self._view, self._migrator, is_checked=is_checked)
        self._reacts = self._reactions.has("on_kernel_start")
        self._reacts_at_end = self._reactions.has("on_kernel_end")
        self._replans = self._reactions.has("on_iteration_start")
        touched = context.addresses.touched()
        check_working_sets(context.addresses.trace, touched, memory)
        if self._whole is None:
            self._fetching = Fetching(context, self._view, touched)
        else:
            self._fetching = WholeFetching(context, self._whole, self._view, self._reactions)
        self._tensors = self._fetching.tensors
        self._beside = WorkBeside(context, self._migrator.release_dying, stores, self._fetching.make_room)
        self._victims = RecencyVictims(context, dropped)
        if self._reactions.has("choose_victims"):
            self._victims = NominatedVictims(context, dropped, self._reactions)
        self._computes_since: int | None = None

    def given_id_at(self, place: int) -> int:
        """Return the id in the trace's file of the tensor whose contents lie at a range of addresses."""
        tensor, given = self.addresses.tensor_at(place), self.job.trace.given_ids
        return given[tensor] if given else tensor

    def death_of(self, place: int) -> float:
        """Tell when a copy of what lies at a range, made now, will not be needed any more: when it is used.

        A position in the iteration from 0 to 1; what is written together and has the same one dies together.
        """
        trace, now = self.addresses.trace, self._view.kernel
        return (now + kernels_to_next_use(trace, place, now)) % len(trace.kernels) / len(trace.kernels)

    def run(self, gpu: Gpu) -> Process[None]:
        """SimPy process: wait for arrival and for the GPU, run all iterations, leave the GPU empty."""
        machine, job = self._machine, self.job
        if job.arrival_cycles:
            yield self._clock.timeout(job.arrival_cycles)
        pages = gpu.pages_of(job.trace, self.memory.page_bytes)
        self._gpu, self._working_sets = gpu, gpu.working_sets if self._whole is None else None
        admitted = yield from gpu.enter(pages)
        start = self._clock.cycle
        if admitted:
            yield from self._occupy()
            gpu.leave(pages)
        times, drops = (job.arrival_cycles, start, self._clock.cycle), self._recomputation.drops
        record = JobRecord(self._number, job.gpu, *times, refused=not admitted, drops=drops)
        machine.recorder.jobs.append(record)

    def _occupy(self) -> Process[None]:
        """Run all iterations and leave the GPU empty."""
        shared = None if self._gpu.working_sets is None else self._whole
        if shared is not None:
            with self._fabric.alter(self._number):
                move_in(shared, self.job.trace, self.context.policy)
        with self._fabric.alter():
            self._transfers.attach(self._number, self.job.gpu, self.memory, self._victims, self._due)
        iterations = self.context.iterations
        for iteration in takewhile(iterations.has, count()):
            yield from self._iterate(iteration)
            if iterations.are_joint:  # so that others that end now have ended, too
                yield self._clock.timeout(0)
        self._delayed.close()
        yield from self._beside.drain()
        with self._fabric.alter(self._number):
            self._migrator.release_all()
        with self._fabric.alter():
            self._transfers.detach(self._number)
        if shared is not None:
            with self._fabric.alter(self._number):
                shared.give_up_scratch()

    def _iterate(self, iteration: int) -> Process[None]:
        self._ledger.open_iteration(self._clock.cycle)
        before = self._beside.figures()
        if self._replans:
            self._view.enter(iteration, 0)
            if (plan := self._reactions.replan()) is not None:
                self._moves = moves_by_kernel(plan, self.job.trace, self._machine.tiers)
        if iteration == 1 and self.context.policy.requirements.keeps_mappings:
            self.memory.stay_mapped()
        for kernel, moves in enumerate(self._moves[:-1]):
            if kernel == 0 and iteration > 0:
                moves = self._moves[-1] + moves
            start, waits = self._clock.cycle, WaitLog()
            if self._beside.may_wait:
                yield from self._beside.let(iteration, self._kernels[kernel], waits)
            if kernel in self._launched:
                self._launch(iteration, kernel, start, waits, moves)
                continue
            if self._working_sets is not None:
                yield from self._reserve(kernel, waits)
            with self._fabric.alter(self._number):
                self._begin(iteration, kernel, moves)
            if self._recomputation.dropped:
                yield from self._recompute(iteration, kernel, waits)
            yield from self._execute(iteration, kernel, start, waits)
        found = self._end_state(), self._beside.since(before)
        self.context.iterations.ended(self._ledger.close_iteration(iteration, self._clock.cycle, *found))

    def _end_state(self) -> EndState:
        """Return the state at the end of an iteration."""
        memory = self.memory
        settled, learnt = self._reactions.state()
        lies = memory.lies()
        lies.extend(self._transfers.cache_pages())
        crossing = self._transfers.state(self._number)
        rest = None if crossing is None else self._rest(learnt)
        return EndState(lies, memory.order(), crossing, rest, is_settled=settled)

    def _rest(self, learnt: Hashable) -> Hashable:
        """Return what later iterations depend on besides pages in memory and on links; None: not known."""
        memory = self.memory.state(self._clock.cycle)
        wears = any(pool.has_worn for pool in self.memory.pools.values())
        if memory is None or self._machine.is_mixed or wears:
            return None
        others = {
            record.job: (record.iteration - self._view.iteration, self._clock.cycle - record.end)
            for record in self._machine.recorder.iterations
            if record.job != self._number
        }
        kept = tuple(sorted(self.memory.discarded)), tuple(sorted(self._recomputation.dropped))
        return memory, kept, self._delayed.state(), self._beside.state(), others, learnt

    def _launch(
        self, iteration: int, kernel: int, start: int, waits: WaitLog, moves: Iterable[Planned]
    ) -> None:
        """Launch a kernel on the CPU, or a collective, which takes the GPU no time."""
        with self._fabric.alter(self._number):
            self._begin(iteration, kernel, moves)
            execution = self._execution(iteration, kernel, start)
            execution.stalls = waits.charge(self._clock.cycle - start, StallReason.CPU)
            self._beside.launch(iteration, self._kernels[kernel])
            self._recomputation.kernel_ended(kernel)
            self.addresses.leave(kernel)
            self._react_at_end()
        self._ledger.close_kernel(execution, self._clock.cycle, self._transfers.busy_cycles(self._number))

    def _due(self, span: int, now: int) -> int:
        """Return the cycle at which a range is needed next if nothing waits from ``now`` until then."""
        trace, kernel = self.addresses.trace, self._view.kernel
        kernels, uses = len(trace.kernels), trace.uses[span]
        if not uses:
            return now
        place = bisect_right(uses, kernel)
        use = uses[place] if place < len(uses) else uses[0] + kernels
        left = self._starts[min(use, kernels)] - self._starts[kernel]
        since = now if self._computes_since is None else self._computes_since
        return since + left + self._starts[max(0, use - kernels)]

    def _reserve(self, kernel: int, waits: WaitLog) -> Process[None]:
        """Wait until this kernel's working set fits next to those of other jobs' kernels.

        No other job takes the space of whole tensors away.
        """
        if self._working_sets is not None:
            since = self._clock.cycle
            yield self._working_sets.request(self._working_set_pages(kernel))
            waits.add(StallReason.ALLOCATION, self._clock.cycle - since)

    def _give_up_working_set(self, kernel: int) -> None:
        """Let kernels of other jobs have the memory that this kernel's working set fills."""
        if self._working_sets is not None:
            with self._fabric.alter(self._number):
                self.memory.hold(frozenset())
            self._working_sets.release(self._working_set_pages(kernel))

    def _recompute(self, iteration: int, kernel: int, waits: WaitLog) -> Process[None]:
        """Run the kernels again whose dropped results a kernel that is about to start reads."""
        again = self._recomputation.needed_by(self._kernels[kernel])
        if not again:
            return
        self._give_up_working_set(kernel)
        for producer, left in again:
            yield from self._beside.let_again(producer, waits)
            yield from self._reserve(producer.id, waits)
            yield from self._run_again(iteration, producer, waits)
            if self._releases:
                with self._fabric.alter(self._number):
                    self._migrator.release(left)
            self._give_up_working_set(producer.id)
        yield from self._reserve(kernel, waits)
        with self._fabric.alter(self._number):
            self._hold(kernel)

    def _run_again(self, iteration: int, producer: Kernel, waits: WaitLog) -> Process[None]:
        duration = self._durations[producer.id]
        with self._fabric.alter(self._number):
            self._hold(producer.id)
        execution = self._execution(iteration, producer.id, self._clock.cycle)
        if not self._fetching.has_all():
            yield from self._fetching.fetch(execution, waits)
        self._check_start(producer.id)
        since = self._clock.cycle
        self._recomputation.dropped.difference_update(producer.outputs)
        computed, done = yield from self._compute(producer.id, duration)
        waits.add(StallReason.RECOMPUTATION, duration)
        waits.add(self._slower, computed - since - duration)
        waits.add(StallReason.IN_PLACE_ACCESS, done - computed)

    def _hold(self, kernel: int) -> None:
        """Keep a kernel's working set on the GPU from now on."""
        memory = self.memory
        memory.hold(frozenset(self._tensors[kernel]))
        if self._behaviour.running_tensors == "pinned":
            for tensor in self._tensors[kernel]:
                if memory.moving[tensor]:
                    memory.cancel_eviction(tensor)

    def _working_set_pages(self, kernel: int) -> int:
        return sum(self.memory.sizes[tensor] for tensor in self._tensors[kernel])

    def _begin(self, iteration: int, kernel: int, moves: Iterable[Planned]) -> None:
        """Let plan and policy act before a kernel starts."""
        memory = self.memory
        if memory.protected:
            memory.protect(frozenset())
        memory.bring_in()
        memory.reclaim(self.addresses.enter(kernel))
        self._view.enter(iteration, kernel)
        self._recomputation.kernel_starts(kernel)
        self._computes_since = None
        self._hold(kernel)
        self._delayed.enter(iteration, kernel)
        if moves:
            self._migrator.perform(self._delayed.hold(moves))
        if self._reacts:
            self._reactions.react("on_kernel_start")
        memory.reclaim(self._tensors[kernel])  # what was freed before the kernel makes it
        if self._behaviour.recency == "use":
            memory.touch(*self._tensors[kernel])

    def _execute(self, iteration: int, kernel: int, start: int, waits: WaitLog) -> Process[None]:
        """Wait for the working set, then compute."""
        has_all = self._fetching.has_all()
        execution = self._execution(iteration, kernel, start, lacks_none=has_all and self._whole is None)
        duration = execution.duration
        since = self._clock.cycle
        end = since + duration
        if not has_all:
            extra = 0
            if self._fault_cost is not None:
                profile, sides = self._kernels[kernel].fault_profile, (execution.inputs, execution.outputs)
                extra = self._fault_cost.cycles(duration, profile, *sides)
            yield from self._fetching.fetch(execution, waits)
            since, end = self._clock.cycle, self._fetching.end(execution, extra)
            execution.busy_at_compute = self._transfers.busy_cycles(self._number)
        self._check_start(kernel)
        self._computes_since = since
        computed, done = yield from self._compute(kernel, end - since)
        with self._fabric.alter(self._number):
            if done != end:
                waits.add(self._slower, computed - end)
                waits.add(StallReason.IN_PLACE_ACCESS, done - computed)
            self._measured[kernel] = computed - since
            self._own[kernel] = end - since
            if stall := done - start - duration:
                rest = dominant_reason(self.memory, execution.inputs, execution.outputs)
                execution.stalls = waits.charge(stall, rest)
            busy = execution.busy_at_end = self._transfers.busy_cycles(self._number)
            self._recomputation.kernel_ended(kernel)
            self._finish(kernel)
        if self.memory.awaits:
            yield from self._fetching.join(execution)
            done, busy = self._clock.cycle, self._transfers.busy_cycles(self._number)
        self._ledger.close_kernel(execution, done, busy)
        self._give_up_working_set(kernel)
        if self.context.exchange is not None:
            self.context.exchange.kernel_ended(iteration, kernel)

    def _check_start(self, kernel: int) -> None:
        """Check the state in which a kernel begins to compute, where somebody checks."""
        if self._machine.checker is not None:
            self._machine.checker.kernel_starts(self.memory, self.addresses.trace.kernels[kernel])

    def _compute(self, kernel: int, cycles: int) -> Process[tuple[int, int]]:
        """Let the GPU compute for that many cycles of this job's, next to what the kernel uses where it lies.

        Returns when it has computed, and when all is done.
        """
        used = self._in_place.begin(kernel) if self.memory.in_place else []
        yield from self._gpu.compute.run(self._number, cycles, self.job.priority)
        computed = self._clock.cycle
        if not used:
            return computed, computed
        stuck = self._fetching.describe_wait
        yield self._fabric.until(lambda: all(message.is_done for message in used), stuck)
        self._in_place.end(kernel)
        return computed, self._clock.cycle

    def _finish(self, kernel: int) -> None:
        """Release what died with a kernel, then let the policy act."""
        self.memory.bring_in()
        if self.memory.keeps_copies:
            for tensor in self._kernels[kernel].outputs:
                self.memory.written(self.addresses.held(tensor))
        self._migrator.release_dying(kernel)
        self.memory.end_kernel(kernel)
        self.addresses.leave(kernel)
        self._react_at_end()

    def _react_at_end(self) -> None:
        if self._reacts_at_end:
            self.memory.hold(frozenset())
            self._reactions.react("on_kernel_end")

    def _execution(self, iteration: int, kernel: int, start: int, *, lacks_none: bool = False) -> Execution:
        """Return an execution that begins; pages that fault or move are counted unless it ``lacks_none``."""
        busy = self._transfers.busy_cycles(self._number)
        execution = Execution(iteration, kernel, start, self._durations[kernel], busy, self._nothing)
        if not lacks_none:
            moving = self.memory.moving
            execution.in_transfer_pages = sum([moving[tensor] for tensor in self._tensors[kernel]])
            if kernel not in self._launched:
                sides = self.addresses.sides(kernel)
                execution.inputs, execution.outputs = count_faults(*sides, self.memory)
        return execution
