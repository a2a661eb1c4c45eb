"""Profiles of PyTorch (Kineto, ``export_chrome_trace``) with shapes and memory events.

A profile names no tensors. It records allocations and releases with their addresses, and the shapes of
operators' inputs, but not the allocation of an input. Births and deaths of tensors are therefore as recorded,
and inputs are matched by size: to the latest written allocation of that size that is alive, otherwise to a
tensor from before the recording. A backward operator reads the gradient first, and then what the forward
operator with the same sequence number used. A released tensor is read by the last operator before its
release: that operator kept it alive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from g10sim.errors import TraceError
from g10sim.importers.aten import OVERWRITING, aten, short_name
from g10sim.importers.kineto_events import STEP, MemoryEvent, Profile, Span, innermost
from g10sim.importers.operations import (
    NO_KERNELS,
    Operation,
    Storage,
    build_trace,
    phase_of,
)
from g10sim.trace.model import Phase, Trace

_SEQUENCE = "Sequence number"
_OWN_SHARE = 0.5
"""An operator on the CPU with a smaller share of its own time, which passes all its tensors to operators
inside it, does no work itself."""
_DEVICE_ROUNDING = 512
"""The caching allocator rounds to this (PyTorch, c10/cuda/CUDACachingAllocator.h: ``kMinBlockSize``)."""
_VIEWS = aten(
    """
    T alias as_strided chunk detach diagonal expand expand_as flatten is_nonzero lift_fresh mT movedim narrow
    numpy_T permute reshape resolve_conj resolve_neg result_type select slice split split_with_sizes squeeze
    t transpose unbind unflatten unfold unsqueeze view view_as _reshape_alias _unsafe_view
    """
)


def import_kineto(profile: Profile, *, model: str | None = None, batch_size: int = 1) -> Trace:
    """Make a trace of a profile; of several steps (``ProfilerStep#N``) the last.

    With device events the kernels are the operators that launched them, in the order of launches, and take
    the sum of their device times. Without, they are the operators of the CPU and take its time. Raises
    TraceError naming the file, what was found and what is allowed.
    """
    operators = _within_step(profile)
    if not any("Input Dims" in span.args for span in operators):
        raise TraceError(
            f"{profile.path}: found no operator with shapes; allowed: a profile with record_shapes=True"
        )
    if not profile.memory:
        raise TraceError(
            f"{profile.path}: found no memory events; allowed: a profile with profile_memory=True"
        )
    drafts = _on_device(profile, operators) if profile.device else _on_host(operators)
    if not drafts:
        raise TraceError(f"{profile.path}: found no operator that does work; allowed: a profile of a step")
    around = innermost(profile.annotations)
    for draft in drafts:
        names = [span.name for span in draft.around]
        note = around(draft.span.thread, draft.span.start_ns)
        draft.operation.phase = phase_of(
            [*names, *([] if note is None else [profile.annotations[note].name])]
        )
    _Memory(drafts, profile).follow()
    operations = [draft.operation for draft in drafts if draft.operation.writes]
    origin = {"source": "PyTorch profile (Kineto)", "time_source": "measured"}
    return build_trace(operations, profile.path, model, batch_size, origin)


@dataclass(eq=False)
class _Draft:
    """An operator that becomes a kernel, with the operators around it."""

    span: Span
    around: list[Span]
    operation: Operation
    inputs: list[int] = field(default_factory=list)
    targets: int = 0


def _within_step(profile: Profile) -> list[Span]:
    steps = [span for span in profile.annotations if span.name.startswith(STEP)]
    if not steps:
        return profile.operators
    start, end = steps[-1].start_ns, steps[-1].end_ns
    return [span for span in profile.operators if start <= span.start_ns and span.end_ns <= end]


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


def _draft(operators: Sequence[Span], position: int, around: Sequence[int], duration_ns: int) -> _Draft:
    span = operators[position]
    operation = Operation(short_name(span.name), phase_of(()), duration_ns=duration_ns)
    updated = len(span.inputs[0]) if span.inputs and span.name.endswith("_") else 0
    return _Draft(span, [operators[outer] for outer in around], operation, _sizes(span), updated)


def _on_device(profile: Profile, operators: Sequence[Span]) -> list[_Draft]:
    nested = _nested(operators)
    drafts = []
    for position, events in enumerate(profile.device_times(operators)):
        if events:
            duration = sum(event.duration_ns for event in events)
            drafts.append(_draft(operators, position, nested[position], duration))
    return drafts


def _on_host(operators: Sequence[Span]) -> list[_Draft]:
    """Choose operators that do work themselves; those inside them are part of them."""
    nested = _nested(operators)
    inner = [0] * len(operators)
    handed: list[set[int]] = [set() for _ in operators]
    for position, span in enumerate(operators):
        for outer in nested[position][:1]:
            inner[outer] += span.duration_ns
        if _works(span):
            for outer in nested[position]:
                handed[outer].update(_sizes(span))
    chosen: set[int] = set()
    for position, span in enumerate(operators):
        own = span.duration_ns - inner[position] >= _OWN_SHARE * span.duration_ns
        own = own or not handed[position].issuperset(_sizes(span))
        if _works(span) and own and not chosen.intersection(nested[position]):
            chosen.add(position)
    return [_draft(operators, one, nested[one], operators[one].duration_ns) for one in sorted(chosen)]


def _works(span: Span) -> bool:
    autograd = span.name.startswith(("autograd::", "torch::autograd::"))
    return "::" in span.name and not autograd and span.name not in _VIEWS | NO_KERNELS


def _sizes(span: Span) -> list[int]:
    return [size for argument in span.inputs for size in argument]


def _sequence(draft: _Draft) -> int | None:
    """Return the number that a backward operator shares with its forward operator."""
    numbers = (span.args.get(_SEQUENCE) for span in (draft.span, *draft.around))
    return next((number for number in numbers if type(number) is int and number >= 0), None)


class _Memory:
    """Follows allocations and releases, and tells which of them each operator uses."""

    def __init__(self, drafts: Sequence[_Draft], profile: Profile) -> None:
        self._drafts = drafts
        on_device = bool(profile.device)
        self._rounding = _DEVICE_ROUNDING if on_device else 1
        self._events = [event for event in profile.memory if event.on_device is on_device]
        self._live: dict[int, Storage] = {}
        self._written: defaultdict[int, dict[Storage, None]] = defaultdict(dict)
        self._outside: defaultdict[int, list[Storage]] = defaultdict(list)
        self._used: defaultdict[int, list[Storage]] = defaultdict(list)
        self._fresh: list[Storage] = []
        self._of_optimizer: set[Storage] = set()

    def follow(self) -> None:
        """Go through memory events and operators in the order of time."""
        end = self._drafts[-1].span.end_ns
        events = [event for event in self._events if event.time_ns <= end]
        times = [event.time_ns for event in events]
        cuts = [bisect_left(times, draft.span.start_ns) for draft in self._drafts]
        for event in events[: cuts[0]]:
            self._allocate_or_release(event, None)
        for draft, start, stop in zip(self._drafts, cuts, [*cuts[1:], len(events)], strict=True):
            reads = self._inputs(draft)
            draft.operation.reads.update(dict.fromkeys(reads))
            for event in events[start:stop]:
                self._allocate_or_release(event, draft)
            self._write(draft, reads)

    def _allocate_or_release(self, event: MemoryEvent, draft: _Draft | None) -> None:
        if event.size_bytes > 0:
            storage = self._live[event.address] = Storage(event.size_bytes, external=draft is None)
            if draft is None:
                self._written[event.size_bytes][storage] = None
            else:
                self._fresh.append(storage)
            return
        released = self._live.pop(event.address, None)
        if released is not None:
            self._written[released.size_bytes].pop(released, None)
            if draft is not None and released not in self._fresh:
                draft.operation.reads[released] = None
            elif released in self._fresh:
                self._fresh.remove(released)  # scratch space of the operator

    def _rounded(self, size_bytes: int) -> int:
        return -(-size_bytes // self._rounding) * self._rounding

    def _inputs(self, draft: _Draft) -> list[Storage]:
        found: list[Storage] = []
        related = self._related(draft)
        for number, size in enumerate(draft.inputs):
            rounded = self._rounded(size)
            alive = [one for one in self._written[rounded] if one not in found]
            saved = [one for one in related if one.size_bytes == rounded and one not in found]
            if number == 0:  # the gradient
                alive = [one for one in alive if one not in saved] or alive
            elif saved:
                alive = saved[:1]
            if number < draft.targets and draft.operation.phase is Phase.OPTIMIZER:
                # An optimizer updates weights and its states, or what it made itself, and no gradient.
                alive = [one for one in alive if one.external or one in self._of_optimizer]
            found.append(alive[-1] if alive else self._from_before(draft, rounded, found))
        if draft.operation.phase is Phase.FORWARD and (sequence := _sequence(draft)) is not None:
            self._used[sequence] += found
        return found

    def _related(self, draft: _Draft) -> list[Storage]:
        """Return what the forward operator of a backward operator used, as far as it is there."""
        sequence = _sequence(draft)
        if draft.operation.phase is not Phase.BACKWARD or sequence is None:
            return []
        alive = set(self._live.values())
        return [storage for storage in self._used[sequence] if storage.external or storage in alive]

    def _from_before(self, draft: _Draft, size: int, taken: Sequence[Storage]) -> Storage:
        """Find a tensor from before the recording; the optimizer takes those of the other phases in turn."""
        if draft.operation.phase is Phase.OPTIMIZER:
            every = self._outside[size]
            known = next((one for one in every if one not in taken), None)
            if known is not None:
                every.remove(known)
                every.append(known)
                return known
        made = Storage(size, external=True)
        self._outside[size].append(made)
        return made

    def _write(self, draft: _Draft, reads: Sequence[Storage]) -> None:
        operation = draft.operation
        for storage in self._fresh:
            operation.writes[storage] = None
            if storage in self._live.values():
                self._written[storage.size_bytes][storage] = None
        sequence = _sequence(draft)
        if operation.phase is Phase.FORWARD and sequence is not None:
            self._used[sequence] += self._fresh
        if operation.phase is Phase.OPTIMIZER:
            self._of_optimizer.update(self._fresh)
        self._fresh.clear()
        for storage in reads[: draft.targets]:
            operation.writes[storage] = None
            if draft.span.name in OVERWRITING:
                operation.reads.pop(storage, None)
            written = self._written[storage.size_bytes]
            if written.pop(storage, storage) is None:
                written[storage] = None  # the latest again
