"""PressureFit: residency is cut until every task fits, in several ways; a simulation takes the fastest."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import chain, filterfalse, groupby, pairwise

from g10sim.analysis.bound.demand import demand_of
from g10sim.analysis.recomputation import Recomputability
from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.looks import Look
from g10sim.policies.designs.pressure.dropping import chained
from g10sim.policies.designs.pressure.forecast import Dropped
from g10sim.policies.designs.pressurefit.choosing import Fitted, fastest
from g10sim.policies.designs.pressurefit.tasks import Programs, block_numbers, split_numbers
from g10sim.policies.interface import MigrationPlan, Planned, PolicyView, Requirements
from g10sim.policies.interface.jobs import JobPolicy, PolicyPerJob
from g10sim.policies.interface.machine import PlannedMachine, PlannedTier
from g10sim.policies.interface.moves import Await, Drop, Evict, Fetch, Free, Move
from g10sim.policies.interface.parameters import ShareOrFastest, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.channel import NEVER
from g10sim.policies.planning.leaving import first_gone
from g10sim.policies.planning.limit import Limited, TimeLimit
from g10sim.trace.model import Phase, Trace
from g10sim.trace.workload import Job
from g10sim.units import format_bytes

_FASTEST = "fastest"
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of blocks that are compared (als244/shadowspill, docs/architecture/recomputation-selection.md)."""


class Admission(JobPolicy):
    """One job: ``_queue`` was asked for without room so far, ``_coming`` and ``_leaving`` are on their way.

    Copies in never push out what the plan lets stay: they start when there is room. ``_near`` are all that
    may have pages on the GPU: what had some or moved when victims were named, was used or asked for since,
    and what kernels that run ``_again`` use.
    """

    def __init__(self, trace: Trace, fitted: Fitted, note: str) -> None:
        program, arrivals, tasks = fitted.program, fitted.replay.arrivals, fitted.program.tasks
        self._tiers, self._ahead = program.tiers, program.ahead
        moves = [Planned(drop.start, Drop(drop.tensor)) for drop in program.drops]
        mortal = (tensor for tensor, uses in enumerate(trace.uses) if uses and not trace.lasting[tensor])
        moves += [Planned(trace.deaths[tensor], Free(tensor)) for tensor in mortal]
        cut = [(number, program.gaps[number]) for number in program.first_due if number in arrivals]
        self._left = grouped((program.kernels[(gap.start - 1) % tasks + 1] - 1, gap.tensor) for _, gap in cut)
        self._asked = grouped((program.kernels[arrivals[number] % tasks], gap.tensor) for number, gap in cut)
        self.plan = MigrationPlan.ordered(moves, "pressurefit")
        self.note = note
        away = (gap.tensor for gap in program.gaps if gap.end >= tasks)
        self.homes = {tensor: program.tiers[tensor].name for tensor in away}
        """Tiers of persistent tensors between iterations."""
        self._queue, self._coming = deque[int](), dict[int, None]()
        self._leaving = dict[int, PlannedTier]()
        self._near = set(range(len(trace.tensors)))
        again = chain.from_iterable(drop.producers for drop in program.drops)
        self._again = {tensor for kernel in again for tensor in kernel.touched}

    def state(self, view: PolicyView) -> tuple[object, ...]:
        """Return what waits for room and what is on its way."""
        return tuple(self._queue), tuple(self._coming), tuple(self._leaving)

    def on_kernel_start(self, view: PolicyView) -> Iterator[Move]:
        """Bring in what the kernel needs, and as much of what was asked for as there is room for."""
        asked, kernel = self._asked.get(view.kernel, ()), view.trace.kernels[view.kernel]
        self._queue += asked
        self._near.update(asked, kernel.touched)
        for tensor in kernel.tensors:
            if tensor in self._queue:
                self._queue.remove(tensor)
                yield Fetch(tensor)
        yield from self._admitted(view)

    def on_kernel_end(self, view: PolicyView) -> Iterator[Move]:
        """Let tensors leave; wait until enough has left for the next kernel."""
        for tensor in self._left.get(view.kernel, ()):
            self._leaving[tensor] = self._tiers[tensor]
            yield Evict(tensor, self._tiers[tensor].name)
        following = view.trace.kernels[(view.kernel + 1) % len(view.trace.kernels)]
        missing = sum(view.size_bytes(one) - view.resident_bytes(one) for one in following.tensors)
        if missing <= view.free_bytes:
            return
        for tensor in [one for one in self._leaving if not view.in_transfer_bytes(one)]:
            del self._leaving[tensor]
        if awaited := first_gone(view, self._leaving, missing - view.free_bytes):
            yield Await(awaited)

    def choose_victims(self, view: PolicyView) -> list[int]:
        """Return what is used last first."""
        there = sorted(filter(view.resident_bytes, self._near))
        self._near = {*there, *self._queue, *filter(view.in_transfer_bytes, self._near), *self._again}
        needed = set(filter(view.is_needed, view.trace.kernels[view.kernel].touched))
        return sorted(filterfalse(needed.__contains__, there), key=view.next_use, reverse=True)

    def _admitted(self, view: PolicyView) -> Iterator[Move]:
        """Yield fetches of the first in the queue, as long as they have room."""
        room = view.free_bytes - self._ahead[view.kernel]
        for tensor in list(self._coming):
            under_way = view.in_transfer_bytes(tensor)
            room -= under_way
            if not under_way:
                del self._coming[tensor]
        while self._queue:
            size = view.size_bytes(self._queue[0]) - view.resident_bytes(self._queue[0])
            if size > room:
                return
            tensor = self._queue.popleft()
            room -= size
            self._coming[tensor] = None
            yield Fetch(tensor)


@register_policy
class PressureFit(Limited, PolicyPerJob):
    """Plans which tensors are on the GPU during which tasks, of several plans the one simulated as fastest.

    A task is what one block of the model computes of a micro-batch, or a kernel where that has no room.
    Tensors stay from their first use to their last. Then, again and again, one leaves between two uses, at
    the task that lacks most memory. It returns when a rule says, in the order of need, as soon as there is
    room. The plan is for as much memory as its tensors take with addresses. Persistent tensors are in host
    memory between iterations.
    """

    name = "pressurefit"
    label = "PressureFit"
    look = Look("#771122", "\\\\|", "$F$", "4 1 1 1")
    paper = "als244/shadowspill (2026), docs/architecture/pressurefit.md"
    requirements = Requirements(
        drops_dead_tensors=True, addresses="own", keeps_mappings=True, keeps_copies=True, host_memory="pinned"
    )

    recompute: ShareOrFastest = parameter(default=0.0, published="fastest, shadowspill")
    """Share of blocks that are computed again in the backward pass, evenly spread; ``fastest``: of none, a
    quarter, half, three quarters and all, the share that simulates as fastest."""

    job_class = Admission

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> Admission:
        """Plan a job."""
        limit = TimeLimit(self.planning_limit)
        demand = demand_of(job.trace, machine.clock_hz, machine.page_bytes)
        numbers = block_numbers(job.trace)
        programs = Programs(demand, machine, numbers)
        if too_large := programs.of(()).too_large:
            programs = Programs(demand, machine, split_numbers(numbers, too_large))
        drops: list[Sequence[Dropped]] = [()]
        if self.recompute:
            blocks = ModelBlocks(job.trace, numbers)
            shares = _SHARES if self.recompute == _FASTEST else (float(self.recompute),)
            drops = [dropped for dropped, _ in groupby(map(blocks.drops, shares))]
        plan = fastest(programs, drops, limit)
        told = f"no addresses: tensors span {format_bytes(plan.excess_bytes)} more than there are"
        notes = (limit.note, told if plan.excess_bytes else "")
        return Admission(job.trace, plan, "; ".join(filter(None, notes)))


class ModelBlocks:
    """Blocks of a model, and data of each that only its own backward pass reads and that can be made again.

    Kernel k belongs to task ``tasks[k]``. A block whose backward pass comes before the next forward pass is
    not one of them.
    """

    def __init__(self, trace: Trace, tasks: Sequence[int]) -> None:
        self._rules = Recomputability(trace, chains=True)
        self._drops = self._found(trace, tasks)

    def drops(self, share: float) -> tuple[Dropped, ...]:
        """Return what is dropped where a share of the blocks is computed again."""
        count, blocks = round(share * len(self._drops)), len(self._drops)
        chosen = [self._drops[(2 * place + 1) * blocks // (2 * count)] for place in range(count)]
        return chained(self._rules, [drop for block in chosen for drop in block])

    def _found(self, trace: Trace, numbers: Sequence[int]) -> list[list[Dropped]]:
        found = defaultdict[int, list[Dropped]](list)
        for tensor, uses in enumerate(trace.uses):
            tasks = [numbers[use] for use in uses]
            blocks = {trace.kernels[use].block for use in uses}
            is_own = len(blocks) == 1 and not trace.lasting[tensor] and tasks[0] < tasks[-1]
            if not is_own or trace.kernels[uses[0]].phase is not Phase.FORWARD:
                continue
            end = next(use for use, task in zip(uses, tasks, strict=True) if task > tasks[0])
            start = max(use for use in uses if use < end) + 1
            if start < end < trace.deaths[tensor] and not self._rules.problem(tensor, start):
                drop = Dropped(tensor, start, end, self._rules.chain(tensor, end))
                found[tasks[0]].append(drop)
        ends = {task: max(numbers[drop.end] for drop in drops) for task, drops in found.items()}
        following = pairwise((*sorted(found), NEVER))
        return [found[task] for task, later in following if later < ends[task]]
