"""Execution traces of PyTorch (``ExecutionTraceObserver``, schema Chakra), with a profile for their times.

An execution trace names every tensor by tensor and storage but has no times and no releases: times come
from a profile of the same run (``Record function id`` there is ``rf_id`` here), and a tensor lives until its
last use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from g10sim.errors import TraceError, few
from g10sim.importers.account import Account, Reason, accounted
from g10sim.importers.execution_nodes import HOST, WHAT, Node, parents_of, read_nodes
from g10sim.importers.execution_storages import Storages
from g10sim.importers.kineto_events import STEP, Profile
from g10sim.importers.kineto_steps import chosen_step, only, words_on_all
from g10sim.importers.kineto_work import COMPILED, Draft, account_for_host, idle_between, take_times
from g10sim.importers.operations import (
    BY_ITSELF,
    ByHand,
    Operation,
    Storage,
    build_trace,
    forget_reads_of_nothing,
    phase_of,
    short_name,
)
from g10sim.importers.work import work_of
from g10sim.trace.model import Device, TimeSource, Trace
from g10sim.trace.work import KernelCost

_MOST_NAMED = 5
_NO_DEVICES = frozenset({HOST, "meta", ""})
"""Names of no device: tensors on ``meta`` have shapes alone, as those with which torch.compile traces."""
Price = Callable[[KernelCost], int]


def import_execution_trace(
    path: str | Path,
    *,
    profile: Profile | None = None,
    price: Price | None = None,
    model: str | None = None,
    batch_size: int = 1,
    device: str | None = None,
    step: int | None = None,
    by_hand: ByHand = BY_ITSELF,
    keep_gaps: bool = False,
    partial: bool = False,
) -> Trace:
    """Read an execution trace; of several steps (``ProfilerStep#N``) the last whole one, or ``step``.

    Times come from ``profile``, of the same run, or else from ``price``, which gives nanoseconds for the
    work of an operator. An optimizer on the CPU is work of the CPU: without a profile an update of
    all that it writes. Raises TraceError naming the file, the node, what was found and what is allowed.
    """
    path, account = Path(path), Account()
    nodes = read_nodes(path)
    chosen, words = _step(path, nodes, step)
    devices = {one.device for node in chosen.values() for one in (*node.arguments, *node.outputs)}
    name: str = only(path, "device", devices - _NO_DEVICES or [HOST], device)
    Storages(name).follow(chosen, nodes)
    kernels = _kernels(chosen)
    if not kernels:
        raise TraceError(f"{path}: found no operator that writes a tensor; allowed: {WHAT} of a step")
    operations = [_operation(node, nodes, name) for node in kernels]
    forget_reads_of_nothing(operations)
    source = TimeSource.BYTES if profile is None else TimeSource.MEASURED
    if profile is not None:
        profile.refuse_without_device(is_used=name != HOST)
        drafts = _measured(path, kernels, operations, profile, account)
        operations = idle_between(drafts, account, keep_gaps=keep_gaps)
    elif price is not None:
        _price(kernels, operations, price, account)
    else:
        raise TraceError.at(path, "no times", "a profile of the same run, or a GPU to price work")
    _tell_others(chosen.values(), name, account)
    _tell_collectives(chosen.values(), account, is_priced=profile is None)
    if name == HOST and any(node.name.startswith(COMPILED) for node in chosen.values()):
        account.notes.append(
            "kernels of compiled functions on the CPU are not recorded: the trace lacks them"
        )
    account.facts.append(f"step: {words}")
    origin = {"source": "PyTorch execution trace", "step": words}
    trace = build_trace(operations, path, model, batch_size, origin, time_source=source, by_hand=by_hand)
    return accounted(trace, account, path, partial=partial)


def _step(path: Path, nodes: Mapping[int, Node], wanted: int | None) -> tuple[dict[int, Node], str]:
    """Return the nodes of a step, over all threads, and words on it; all where steps are not marked."""
    ordered = list(nodes.values())
    done = list(accumulate((bool(node.schema) or node.is_kernel for node in ordered), initial=0))
    spans: list[tuple[int, int]] = []
    sizes: list[tuple[str, float]] = []
    for first, node in enumerate(ordered):
        if node.name.startswith(STEP) and (not spans or first >= spans[-1][1]):
            end = _end(first, ordered)
            spans.append((first, end))
            sizes.append((node.name, float(done[end] - done[first])))
    if wanted is None and not any(size for _, size in sizes):
        return dict(nodes), words_on_all(sizes)
    position, words = chosen_step(sizes, wanted, str(path))
    first, end = spans[position]
    return {node.id: node for node in ordered[first:end]}, words


def _end(place: int, nodes: Sequence[Node]) -> int:
    """Return where the nodes of a step end: at the next one of its thread that is not inside it."""
    step = nodes[place]
    inside = {step.id}
    for later in range(place + 1, len(nodes)):
        node = nodes[later]
        if node.parent in inside:
            inside.add(node.id)
        elif node.parent == step.parent or node.name.startswith(STEP):
            return later
    return len(nodes)


def _tell_others(nodes: Iterable[Node], device: str, account: Account) -> None:
    others = Counter[str]()
    for node in nodes:
        if node.schema:
            used = {one.device for one in (*node.arguments, *node.outputs)}
            others.update(used - _NO_DEVICES - {device})
    for name, count in sorted(others.items()):
        account.facts.append(f"{count} operators on {name} are left out: --device {name} imports them")


def _tell_collectives(nodes: Iterable[Node], account: Account, *, is_priced: bool) -> None:
    """Tell of communications: the time of those that fill tensors, and that others are left out."""
    found = [node for node in nodes if node.is_collective and node.arguments]
    filled = sum(bool(node.received) for node in found)
    if filled and is_priced:
        account.notes.append(f"{filled} collectives take the time of their bytes in the memory of one device")
    if filled < len(found):
        names = few(sorted({short_name(one.name) for one in found if not one.received}), _MOST_NAMED)
        account.notes.append(f"{len(found) - filled} collectives are left out, which fill nothing: {names}")


def _kernels(nodes: dict[int, Node]) -> list[Node]:
    """Return the operators that do their own work, in the order of their starts.

    An operator whose reads and writes are all those of operators inside it is left out. The operators inside
    one that does work itself are left out, too.
    """
    working: defaultdict[int, list[Node]] = defaultdict(list)
    for node in reversed(nodes.values()):  # inner operators come later
        found = working.pop(node.id, [])
        if node.writes:
            reads = {storage for one in found for storage in one.reads}
            writes = {storage for one in found for storage in one.writes}
            if not found or not reads >= node.reads.keys() or not writes >= node.writes.keys():
                found = [node]
        working[node.parent] += found
    return sorted((node for found in working.values() for node in found), key=lambda node: node.id)


def _operation(node: Node, nodes: Mapping[int, Node], device: str) -> Operation:
    """Make the operation of a kernel; one that only uses tensors of the host runs on the CPU."""
    phase = phase_of([parent.name for parent in parents_of(node, nodes)])
    operation = Operation(short_name(node.name), phase, node.reads, node.writes)
    if device not in {HOST, *(one.device for one in (*node.arguments, *node.outputs))}:
        operation.device = Device.CPU
    return operation


def _price(kernels: Sequence[Node], operations: Sequence[Operation], price: Price, account: Account) -> None:
    """Price work; on the CPU an optimizer updates what its operators write, each storage once."""
    updated: set[Storage] = set()
    for node, operation in zip(kernels, operations, strict=True):
        if operation.device is Device.CPU:
            fresh = [one for one in operation.writes if one.external and one not in updated]
            operation.parameters = sum(one.size_bytes // one.item_bytes for one in fresh)
            updated.update(fresh)
        else:
            operation.cost = work_of(node, operation)
            operation.duration_ns = price(operation.cost)
            account.imported_ns += operation.duration_ns


def _measured(
    path: Path, kernels: Sequence[Node], operations: Sequence[Operation], profile: Profile, account: Account
) -> list[Draft]:
    """Set times from a profile: of device events, or the operators' own where there is no device."""
    numbers = ((span.args.get("Record function id"), span) for span in profile.operators)
    spans = {number: span for number, span in numbers if type(number) is int}
    names = {number: span.name for number, span in spans.items()}
    missing = [node for node in kernels if names.get(node.function_id) != node.name]
    if missing:
        raise TraceError(f"{profile.path}: {_missing_text(path, missing, len(kernels), bool(spans))}")
    owners = [spans[node.function_id] for node in kernels]
    drafts = [
        Draft(owner, [], operation, events)
        for owner, operation, events in zip(owners, operations, profile.device_times(owners), strict=True)
    ]
    start, end = min(span.start_ns for span in owners), max(span.end_ns for span in owners)
    for draft in drafts:
        if not profile.device or draft.operation.device is Device.CPU:
            draft.operation.duration_ns = draft.span.duration_ns
    if not profile.device:
        near = [span for span in profile.operators if start <= span.end_ns and span.start_ns <= end]
        account_for_host(near, sum(owner.duration_ns for owner in owners), account)
        return drafts
    take_times(drafts, account)
    known = {id(event) for draft in drafts for event in draft.events}
    for event in profile.device:
        launch = profile.launch_of(event)
        issued = event.start_ns if launch is None else launch.start_ns
        if id(event) not in known:
            reason = Reason.OUTPUTS if start <= issued <= end else Reason.OUTSIDE
            put = account.leave_out if reason is Reason.OUTPUTS else account.put_aside
            put(reason, max(event.duration_ns, 0))
    return drafts


def _missing_text(path: Path, missing: Sequence[Node], count: int, has_numbers: bool) -> str:
    """Say which operators a profile lacks."""
    named = few((f"{node.function_id} ('{node.name}')" for node in missing), _MOST_NAMED)
    what = "operator with this name and number" if has_numbers else "'Record function id' in any operator"
    return (
        f"found no {what}: {len(missing)} of the {count} kernels of {path} cannot be joined, with rf_id "
        f"{named}; allowed: the profile of the same run"
    )
