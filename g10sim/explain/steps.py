"""A simulation kernel by kernel, in words: what the policy answered, what moved, how full memories were."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.display import rounded_bytes
from g10sim.errors import few
from g10sim.experiment.execution import simulate
from g10sim.places import place
from g10sim.policies.interface.contract import Move
from g10sim.policies.interface.observed import observed
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.plan_format import options_of
from g10sim.policies.interface.policy import Policy, PolicyView
from g10sim.records import KernelRecord, Location, MigrationRecord, RunRecords
from g10sim.sim.hooks import moves_of, victims_of
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload

_MOST_NAMED = 6


@dataclass
class _Heard:
    """Lines about answers, by iteration and kernel; those of a plan are the same in every iteration."""

    planned: Mapping[int, list[str]] = field(default_factory=dict)
    answered: dict[tuple[int, int], list[str]] = field(default_factory=lambda: defaultdict(list))

    def listen(self, hook: str, given: tuple[Any, ...], answer: Any) -> Any:
        """Write down an answer, and return it for the simulation to go on with."""
        if hook == "plan":
            workload, plans = given[0], tuple(answer)
            self.planned = _plan_lines(plans[0], workload.jobs[0].trace) if plans else {}
            return plans
        view: PolicyView = given[0]
        if hook == "on_iteration_start":
            if isinstance(answer, MigrationPlan):
                self.planned = _plan_lines(answer, view.trace)
                self._add(view, "on_iteration_start: a new plan")
            return answer
        if hook == "choose_victims":
            answer = victims_of(answer)
            named = [view.trace.tensors[tensor].name for tensor in answer]
            self._add(view, f"choose_victims: {few(named, _MOST_NAMED) or 'left to recency'}")
            return answer
        answer = moves_of(answer)
        if answer:
            self._add(view, f"{hook}: {few((_words(move, view.trace) for move in answer), _MOST_NAMED)}")
        return answer

    def _add(self, view: PolicyView, line: str) -> None:
        planned = self.planned.get(view.kernel, []) if not self.answered[view.iteration, view.kernel] else []
        self.answered[view.iteration, view.kernel] += [*planned, line]


def steps(
    trace: Trace, system: SystemSpec, policy: Policy, behaviour: BehaviourSpec, iterations: int
) -> Iterator[list[str]]:
    """Simulate iterations of a trace and yield, kernel by kernel, lines that say what happened.

    Raises as a simulation does.
    """
    heard = _Heard()
    workload = Workload((Job(trace, iterations=iterations),))
    tables = ("kernels", "migrations", "memory")
    records, _ = simulate(workload, system, observed(policy, heard.listen), behaviour, tables=tables)
    memory = {record.time: record for record in records.memory}
    for record in records.kernels:
        lines = [*_what_it_did(record, trace)]
        at_end = memory.get(record.end)
        if at_end is not None:
            lines.append(f"  in use at its end: {_fullness(at_end.gpu_bytes, at_end.tier_bytes, system)}")
        key = record.iteration, record.kernel
        answers = heard.answered.get(key) or heard.planned.get(record.kernel, [])
        lines += [f"  {line}" for line in answers]
        lines += [f"  moved: {line}" for line in _moved(record, records, trace)]
        yield lines


def _what_it_did(record: KernelRecord, trace: Trace) -> Iterator[str]:
    kernel, when = trace.kernels[record.kernel], f"cycles {record.start:,} to {record.end:,}"
    where = f", {kernel.layer}" if kernel.layer else ""
    yield (
        f"iteration {record.iteration}, kernel {record.kernel} ({kernel.name}{where}): {when}, "
        f"{record.compute_cycles:,} of them computing"
    )
    yield f"  uses {few((trace.tensors[tensor].name for tensor in kernel.touched), _MOST_NAMED)}"
    for reason, cycles in record.stalls:
        if cycles:
            yield f"  stalled for {cycles:,} cycles: {reason.words}"


def _fullness(gpu_bytes: int, tier_bytes: Mapping[str, int], system: SystemSpec) -> str:
    parts = [f"GPU {rounded_bytes(gpu_bytes)} of {rounded_bytes(system.gpu.memory)}"]
    for name, size in tier_bytes.items():
        parts.append(f"{place(name.removesuffix('_bytes')).words} {rounded_bytes(size)}")
    return ", ".join(parts)


def _moved(record: KernelRecord, records: RunRecords, trace: Trace) -> Iterator[str]:
    """Yield what began to move while a kernel waited and ran; the last kernel's end is not its own."""
    moves = records.migrations
    first, end = (bisect_left(moves, time, key=attrgetter("start")) for time in (record.start, record.end))
    for move in moves[first:end]:
        yield _migration(move, trace)


def _migration(move: MigrationRecord, trace: Trace) -> str:
    source, target = place(move.source.name), place(move.target.name)
    ways = {move.source: "allocated", move.target: "dropped"}
    way = ways.get(Location.NONE, f"{source.words} to {target.words}")
    size, name = rounded_bytes(move.size_bytes), trace.tensors[move.tensor].name
    return f"{name}, {size}, {way}, {move.cause.words}, cycles {move.start:,} to {move.end:,}"


def _plan_lines(plan: MigrationPlan | None, trace: Trace) -> dict[int, list[str]]:
    by_kernel: dict[int, list[str]] = defaultdict(list)
    for planned in plan.moves if plan is not None else ():
        delay = f" after {planned.delay_cycles:,} cycles" if planned.delay_cycles else ""
        by_kernel[planned.kernel].append(f"{_words(planned.move, trace)}{delay}")
    return {kernel: [f"plan: {few(moves, _MOST_NAMED)}"] for kernel, moves in by_kernel.items()}


def _words(move: Move, trace: Trace) -> str:
    """Write a move: its kind, the tensors by name, its tier, and other options."""
    named = few((trace.tensors[tensor].name for tensor in sorted(move.subjects())), _MOST_NAMED)
    tiers = "".join(f" to {tier}" for tier in move.tiers())
    shown = ("tensor", "tensors", "target")
    options = [f"{key} {value}" for key, value in options_of(move).items() if key not in shown]
    bracketed = f" ({', '.join(options)})" if options else ""
    return f"{' '.join(filter(None, (move.name, named)))}{tiers}{bracketed}"
