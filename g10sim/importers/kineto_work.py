"""Kernels of a profile's step: operators with the device time that they launched, and launches of graphs."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from g10sim.importers.account import Account, Reason
from g10sim.importers.kineto_events import Span, innermost
from g10sim.importers.kineto_steps import Scope
from g10sim.importers.operations import NO_KERNELS, Operation, aten, phase_of, short_name
from g10sim.trace.model import Device, Phase

_OWN_SHARE = 0.5
"""An operator on the CPU with a smaller its own share time, which passes all its tensors to operators
inside it, does no work itself."""
COMPILED, _FUSED = ("Torch-Compiled Region", "CompiledFunction"), "cpp_fused"
"""Beginnings of the names of what torch.compile runs, and a part of those of its kernels on the CPU."""
_GRAPH, _WAIT = "GraphLaunch", "Synchronize"
_SEQUENCE, _FORWARD_THREAD = "Sequence number", "Fwd thread id"
TO_DEVICE, TO_HOST = ("HtoD", "HostToDevice"), ("DtoH", "DeviceToHost")
"""Words in the names of copies between host and device, of CUDA and of HIP."""
_FEW = 1024
"""Bytes that no scalar has."""
IDLE = "idle"
"""Name of a kernel without tensors for the time in which the device waited for its host."""
_VIEWS = aten(
    """
    T alias as_strided chunk detach diagonal expand expand_as flatten is_nonzero lift_fresh mT movedim narrow
    numpy_T permute reshape resolve_conj resolve_neg result_type select slice split split_with_sizes squeeze
    t transpose unbind unflatten unfold unsqueeze view view_as _reshape_alias _unsafe_view
    """
)


@dataclass(eq=False)
class Draft:
    """Work that becomes a kernel: its span (an operator or a launch alone) and the operators around it.

    ``events`` are its device events; ``idle_ns`` is how long the device had nothing to do before them.
    """

    span: Span
    around: list[Span]
    operation: Operation
    events: list[Span] = field(default_factory=list)
    idle_ns: int = 0

    @property
    def sequence(self) -> int | None:
        """The number that a backward operator shares with its forward operator."""
        numbers = (span.args.get(_SEQUENCE) for span in (self.span, *self.around))
        return next((number for number in numbers if type(number) is int and number >= 0), None)


def copies(event: Span, direction: tuple[str, ...]) -> bool:
    """Return whether a device event is a copy between host and device in a direction."""
    return any(word in event.name for word in direction)


def drafts_of(scope: Scope, account: Account) -> list[Draft]:
    """Return the kernels of a step in the order of their launches, and put their times into the account."""
    if scope.profile.device:
        drafts = _on_device(scope, account)
    else:
        drafts = _on_host(scope.operators)
        account_for_host(scope.operators, sum(one.operation.duration_ns for one in drafts), account)
    _tell_phases(drafts, scope)
    account.put_aside(Reason.OUTSIDE, scope.outside_ns)
    account.put_aside(Reason.DEVICES, scope.other_devices_ns)
    return drafts


def _tell_phases(drafts: Sequence[Draft], scope: Scope) -> None:
    note_around = innermost(scope.annotations)
    for draft in drafts:
        names = [span.name for span in draft.around]
        note = note_around(draft.span)
        phase = phase_of([*names, *([] if note is None else [scope.annotations[note].name])])
        spans = (draft.span, *draft.around)
        if phase is Phase.FORWARD and any(span.args.get(_FORWARD_THREAD) for span in spans):
            phase = Phase.BACKWARD
        draft.operation.phase = phase


def account_for_host(operators: Sequence[Span], imported_ns: int, account: Account) -> None:
    """Put the time of operators on the CPU into the account: of kernels, of compiled functions, of others.

    The time of compiled functions is what no operator inside them takes.
    """
    whole_ns = 0
    own = {
        position: span.duration_ns
        for position, span in enumerate(operators)
        if span.name.startswith(COMPILED) or _FUSED in span.name
    }
    for span, around in zip(operators, _nested(operators), strict=True):
        whole_ns += 0 if around else span.duration_ns
        if around and around[0] in own:
            own[around[0]] -= span.duration_ns
    compiled_ns = sum(max(time_ns, 0) for time_ns in own.values())
    account.imported_ns = imported_ns
    account.leave_out(Reason.COMPILED, compiled_ns)
    account.put_aside(Reason.AROUND, max(whole_ns - imported_ns - compiled_ns, 0))


def _nested(operators: Sequence[Span]) -> list[list[int]]:
    """For each operator the positions of those around it, the nearest first."""
    open_by_thread: defaultdict[Any, list[int]] = defaultdict(list)
    found = []
    for position, span in enumerate(operators):
        stack = open_by_thread[span.thread]
        while stack and operators[stack[-1]].end_ns <= span.start_ns:
            stack.pop()
        found.append(stack[::-1])
        stack.append(position)
    return found


def _draft(span: Span, around: list[Span], events: Sequence[Span] = (), *, name: str = "") -> Draft:
    return Draft(span, around, Operation(name or short_name(span.name), Phase.FORWARD), list(events))


def _on_device(scope: Scope, account: Account) -> list[Draft]:
    """Give every device event to the operator that launched it, or make it its own kernel.

    Kernels of a graph are kernels of the trace, each by its name. So are those after the first one that a
    compiled function launches itself, as before PyTorch 2.2.
    """
    operators, nested = scope.operators, _nested(scope.operators)
    owner_of = innermost(operators)
    by_operator: dict[int, Draft] = {}
    drafts: list[Draft] = []
    launched: set[int] = set()
    for event in scope.device:
        launch = scope.profile.launch_of(event)
        owner = owner_of(launch)
        around = [] if owner is None else [operators[one] for one in (owner, *nested[owner])]
        is_of_graph = launch is not None and _GRAPH in launch.name
        if is_of_graph:
            launched.add(event.args["correlation"])
        is_known = owner in by_operator
        if owner is None or is_of_graph or (is_known and around[0].name.startswith(COMPILED)):
            drafts.append(_draft(launch or event, around, [event], name=event.name))
        elif is_known:
            by_operator[owner].events.append(event)
        else:
            by_operator[owner] = _draft(around[0], around[1:], [event])
            drafts.append(by_operator[owner])
    drafts += _silent_graphs(scope, launched, account)
    drafts += _on_cpu(scope, nested, set(by_operator), account)
    drafts.sort(key=lambda draft: draft.span.start_ns)
    take_times(drafts, account)
    return drafts


def take_times(drafts: Sequence[Draft], account: Account, *, are_rounded: bool = True) -> None:
    """Give drafts the time for which their events keep the device busy; what runs at a time counts once.

    Events of one stream that begin at the same time run one after another if times ``are_rounded``, as those
    of older profiles are.
    """
    pairs = [(event, draft) for draft in drafts for event in draft.events]
    pairs.sort(key=lambda pair: (pair[0].start_ns, pair[0].end_ns))
    busy = pairs[0][0].start_ns if pairs else 0
    latest: dict[Any, tuple[int, int]] = {}
    idle = taken = 0
    for event, draft in pairs:
        began, ended = latest.get(event.thread, (-1, -1))
        start = ended if are_rounded and event.start_ns == began else event.start_ns
        end = start + event.duration_ns
        latest[event.thread] = event.start_ns, end
        used = max(end - max(start, busy), 0)
        draft.operation.duration_ns += used
        draft.idle_ns += max(start - busy, 0)
        taken, idle, busy = taken + used, idle + max(start - busy, 0), max(busy, end)
    account.imported_ns = taken
    account.put_aside(Reason.OVERLAP, sum(event.duration_ns for event, _ in pairs) - taken)
    account.put_aside(Reason.GAPS, idle)


def idle_between(drafts: Sequence[Draft], account: Account, *, keep_gaps: bool) -> list[Operation]:
    """Return the operations of drafts, and before them the time in which the device waited, if it is kept."""
    if not keep_gaps:
        return [draft.operation for draft in drafts]
    account.put_aside(Reason.KEPT_GAPS, account.aside.pop(Reason.GAPS, 0))
    found = []
    for draft in drafts:
        if draft.idle_ns:
            found.append(Operation(IDLE, Phase.OTHER, duration_ns=draft.idle_ns))
        found.append(draft.operation)
    return found


def _silent_graphs(scope: Scope, launched: set[int], account: Account) -> list[Draft]:
    """Make a kernel of each graph whose kernels are not recorded.

    It takes the time in which the device shows nothing else: from the launch, or the end of what ran before,
    to the next device event or the end of the next operator that waits.
    """
    every = (launch for found in scope.profile.launches.values() for launch in found)
    own = sorted((one for one in every if one.thread[0] == scope.process), key=lambda one: one.start_ns)
    graphs = [one for one in own if _GRAPH in one.name and scope.start_ns <= one.start_ns < scope.end_ns]
    silent = [one for one in graphs if one.args["correlation"] not in launched]
    ends = sorted(event.end_ns for event in scope.device)
    marks = [event.start_ns for event in scope.device] + [launch.start_ns for launch in silent]
    marks = sorted([*marks, *(one.end_ns for one in own if _WAIT in one.name)])
    drafts = []
    for launch in silent:
        before = bisect_right(ends, launch.end_ns)
        begin = max(launch.start_ns, ends[before - 1] if before else 0)
        end = next(iter(marks[bisect_right(marks, begin) :]), max([launch.end_ns, *ends[-1:]]))
        event = Span("graph", begin, max(end, begin), launch.thread, {})
        drafts.append(_draft(launch, [], [event], name="graph"))
    if silent:
        time_ns = sum(draft.events[0].duration_ns for draft in drafts)
        account.notes.append(
            f"{len(silent)} graph launches have no kernels in the file: each is one kernel, without tensors, "
            f"of the time in which the device shows nothing else ({time_ns / 1000:,.0f} us together)"
        )
    return drafts


def _on_cpu(scope: Scope, nested: Sequence[list[int]], launching: set[int], account: Account) -> list[Draft]:
    """Return what an offloaded optimizer computes on the CPU: operators on tensors that launch nothing."""
    if not any(copies(event, TO_HOST) and event.args.get("bytes", _FEW) >= _FEW for event in scope.device):
        return []  # no gradient comes to the host
    owner_of = innermost(scope.operators)
    busy = launching | {owner_of(launch) for found in scope.profile.launches.values() for launch in found}
    busy |= {outer for one in busy if one is not None for outer in nested[one]}
    others = [
        _draft(span, [scope.operators[outer] for outer in nested[position]])
        for position, span in enumerate(scope.operators)
        if position not in busy
        and _works(span)
        and (span.lacks_lists or any(one.elements > 1 for part in span.inputs for one in part))
    ]
    _tell_phases(others, scope)
    found = _on_host([one.span for one in others if one.operation.phase is Phase.OPTIMIZER])
    for draft in found:
        draft.operation.device = Device.CPU
    if found:
        time_us = sum(draft.operation.duration_ns for draft in found) / 1000
        account.facts.append(f"{len(found)} kernels of the optimizer run on the CPU ({time_us:,.0f} us)")
    return found


def _on_host(operators: Sequence[Span]) -> list[Draft]:
    """Choose operators that do work themselves; those inside them are part of them."""
    nested = _nested(operators)
    inner = [0] * len(operators)
    handed: list[set[int] | None] = [None] * len(operators)
    for position, span in enumerate(operators):
        for outer in nested[position][:1]:
            inner[outer] += span.duration_ns
        if _works(span):
            for outer in nested[position]:
                handed[outer] = (handed[outer] or set()).union(_sizes(span))
    chosen: set[int] = set()
    for position, span in enumerate(operators):
        own = span.duration_ns - inner[position] >= _OWN_SHARE * span.duration_ns
        inside = handed[position]
        own = own or inside is None or not inside.issuperset(_sizes(span))
        if _works(span) and own and not chosen.intersection(nested[position]):
            chosen.add(position)
    drafts = [_draft(operators[one], [operators[outer] for outer in nested[one]]) for one in sorted(chosen)]
    for draft in drafts:
        draft.operation.duration_ns = draft.span.duration_ns
    return drafts


def _works(span: Span) -> bool:
    autograd = span.name.startswith(("autograd::", "torch::autograd::"))
    return "::" in span.name and not autograd and span.name not in _VIEWS | NO_KERNELS


def _sizes(span: Span) -> list[int]:
    return [one.elements * max(one.item_bytes, 1) for argument in span.inputs for one in argument]
