"""Tells which allocations the operators of a profile use.

Inputs are matched by size: to the latest written allocation of that size that is alive, otherwise to a
tensor from before the recording. A backward operator reads the gradient first, and then what the forward
operator with the same sequence number used. A released tensor is held by the last operator before its
release: that operator kept it alive. An operator that allocates nothing writes into one of its arguments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from g10sim.importers.kineto_events import MemoryEvent, Operand, Span
from g10sim.importers.kineto_steps import Scope
from g10sim.importers.kineto_work import TO_DEVICE, TO_HOST, Draft, copies
from g10sim.importers.operations import OVERWRITING, Storage, aten
from g10sim.trace.model import Device, Phase, TensorKind

_DEVICE_ROUNDING = 512
"""The caching allocator rounds to this (PyTorch, c10/cuda/CUDACachingAllocator.h: ``kMinBlockSize``)."""
_UNSPLIT = 2**20
"""It leaves a block of more than this whole where the rest would be no larger (there: ``kSmallSize``)."""
_ITEMS = (4, 2, 8, 1)
_ALMOST = 0.9
"""A tensor for which this share of its bytes is left is taken to be a further one."""
_ATEN = "aten::"
DATA = {"aten::addmm": 1, "aten::baddbmm": 1, "aten::addmv": 1} | dict.fromkeys(
    aten(
        "mm bmm mv matmul linear convolution _convolution conv2d cudnn_convolution miopen_convolution "
        "mkldnn_convolution convolution_overrideable _scaled_mm _addmm_activation native_layer_norm"
    ),
    0,
)
"""Position of the operand that is no weight, of operators that have weights."""
_TABLES = aten("embedding index_select index _embedding_bag gather")
"""Operators whose first operand is a table of weights."""
_UPDATED = {"aten::_fused_sgd_": (0, 2), **dict.fromkeys(aten("_fused_adam_ _fused_adamw_"), (0, 2, 3, 4, 5))}
"""Lists among the arguments that fused optimizers update; the second one is the gradients."""


class Memory:
    """Follows allocations and releases, and tells which of them each operator uses.

    ``before_bytes`` and ``peak_bytes`` are what the file says was allocated when the step began, and at most
    in it; None where it does not tell. ``from_before`` are the storages from before the step.
    """

    def __init__(self, drafts: Sequence[Draft], scope: Scope) -> None:
        self._drafts = drafts
        self._rounding = _DEVICE_ROUNDING if scope.profile.device else 1
        self._events = scope.memory
        self._start_ns = scope.start_ns
        self.before_bytes, self.peak_bytes = _recorded(scope)
        self.from_before: dict[Storage, None] = {}
        self.given_buffers = 0
        self._room: int | None = None
        self._live: dict[int, Storage] = {}
        self._written: dict[int, dict[Storage, None]] = {}
        self._sizes: list[int] = []
        self._outside: defaultdict[int, list[Storage]] = defaultdict(list)
        self._used: defaultdict[int, list[Storage]] = defaultdict(list)
        self._fresh: dict[Storage, None] = {}
        self._changes: list[tuple[Storage, int]] = []
        self._pending: dict[Storage, None] = {}
        self._of_optimizer: set[Storage] = set()
        self._calls: Counter[str] = Counter()
        self._on_host: dict[tuple[int, int, int], Storage] = {}
        items = Counter(one.item_bytes for span in scope.operators for part in span.inputs for one in part
                        if one.item_bytes and not one.is_whole)  # fmt: skip
        self._item_bytes = items.most_common(1)[0][0] if items else _ITEMS[0]

    def follow(self) -> None:
        """Go through memory events and operators in the order of time."""
        end = max((draft.span.end_ns for draft in self._drafts), default=0)
        events = [event for event in self._events if event.time_ns <= end]
        times = [event.time_ns for event in events]
        cuts = [bisect_left(times, draft.span.start_ns) for draft in self._drafts]
        first = bisect_left(times, self._start_ns)
        for event in events[:first]:
            self._before_step(event)
        known = sum(storage.size_bytes for storage in self._live.values())
        self._room = None if self.before_bytes is None else self.before_bytes - known
        if not self._events:  # each size is one tensor: nothing says that there are more
            self._room = 0
        for event in events[first : cuts[0]]:
            self._in_step(event, self._drafts[0], is_inside=False)
        for draft, start, stop in zip(self._drafts, cuts, [*cuts[1:], len(events)], strict=True):
            if draft.operation.device is Device.CPU:
                self._use_host(draft)
                reads: list[Storage | None] = []
            else:
                reads = self._inputs(draft)
            handed, self._pending = self._pending, {}
            for event in events[start:stop]:
                self._in_step(event, draft, is_inside=event.time_ns <= draft.span.end_ns)
            self._write(draft, reads, handed)

    def hold_to_the_end(self) -> None:
        """Keep alive what the step allocates and does not release: the last kernels hold it.

        None of them needs more at a time for that than the kernel that needs most.
        """
        operations = [draft.operation for draft in self._drafts if draft.operation.device is Device.GPU]
        needed = [sum(one.size_bytes for one in one_of.touched) for one_of in operations]
        most, last = max(needed, default=0), len(operations) - 1
        left = [one for one in self._live.values() if not one.external]
        left.sort(key=lambda one: one.size_bytes)
        while left and last >= 0:
            storage = left.pop()
            if needed[last] + storage.size_bytes > most and needed[last]:
                last -= 1
            operations[last].holds[storage] = None
            needed[last] += storage.size_bytes

    def _use_host(self, draft: Draft) -> None:
        """Give an operator of the CPU its tensors: the n-th call of each operator uses the n-th ones."""
        name = draft.span.name
        self._calls[name] += 1
        targets, seen = _targets(draft.span) or {0}, Counter[int]()
        for number, (size, _, _) in enumerate(self._sized(draft.span)):
            key = self._calls[name], size, seen[size]
            seen[size] += 1
            storage = self._on_host.setdefault(key, Storage(size, external=True))
            draft.operation.reads[storage] = None
            if number in targets:
                draft.operation.writes[storage] = None

    @property
    def unused_bytes(self) -> int:
        """Bytes from before the step of which no operator says that it uses them."""
        return max((self.before_bytes or 0) - sum(one.size_bytes for one in self.from_before), 0)

    def _before_step(self, event: MemoryEvent) -> None:
        if event.size_bytes > 0:
            storage = Storage(event.size_bytes, external=True, role=TensorKind.WEIGHT)
            self._live[event.address] = storage
            self.from_before[storage] = None
            self._note_written(storage)
        else:
            released = self._live.pop(event.address, None)
            if released is not None:
                self.from_before.pop(released)
                self._written[released.size_bytes].pop(released, None)

    def _in_step(self, event: MemoryEvent, draft: Draft, *, is_inside: bool) -> None:
        if event.size_bytes > 0:
            storage = self._live[event.address] = Storage(event.size_bytes)
            (self._fresh if is_inside else self._pending)[storage] = None
            self._changes.append((storage, storage.size_bytes))
            return
        released = self._live.pop(event.address, None)
        if released is None:
            known = reversed(self._outside[-event.size_bytes])
            released = next((one for one in known if not one.is_freed), None)
        if released is None:
            return
        released.is_freed = True
        self._written.get(released.size_bytes, {}).pop(released, None)
        if released in self._fresh:  # scratch space of the operator
            self._changes.append((released, -released.size_bytes))
        elif released in self._pending:
            del self._pending[released]
        elif released.external or draft.operation.device is Device.GPU:
            draft.operation.holds[released] = None

    def _inputs(self, draft: Draft) -> list[Storage | None]:
        """Return the storage of each operand; None for one that does not lie on the device."""
        found: list[Storage | None] = []
        taken: set[Storage] = set()
        related = self._related(draft)
        operands = list(self._sized(draft.span))
        on_host = _on_host(draft, len(operands))
        targets = _targets(draft.span)
        data = _data_position(draft.span, operands)
        for number, (size, most, is_whole) in enumerate(operands):
            if number in on_host:
                found.append(None)
                continue
            needed, limit = self._rounded(size), self._rounded(most)
            saved = [one for one in related if needed <= one.size_bytes <= self._largest(needed, limit)]
            one = self._alive(draft, number, (needed, limit), taken, saved, is_target=number in targets)
            is_updated = number in targets and draft.operation.phase is Phase.OPTIMIZER
            if one is None and number == data and not is_updated:
                one = self._part_of_latest(needed, taken)
            if one is None:
                is_fed = draft.operation.phase is Phase.FORWARD and (
                    is_whole or (bool(self._events) and number == DATA.get(draft.span.name))
                )
                role = TensorKind.INPUT if is_fed else TensorKind.WEIGHT
                one = self._outside_one(draft, needed, taken, role)
            taken.add(one)
            found.append(one)
        return found

    def _sized(self, span: Span) -> Iterator[tuple[int, int, bool]]:
        """Yield bytes of each operand, those of the storage it may be a part of, and if it is whole."""
        for argument in span.inputs:
            item = argument[0].item_bytes or self._item_of_list(argument)
            for one in argument:
                yield one.elements * item, one.most * item, one.is_whole

    def _item_of_list(self, operands: Sequence[Operand]) -> int:
        """Return the bytes of an element for which most of a list's tensors are known."""

        def known(item: int) -> int:
            sizes = (self._rounded(one.elements * item) for one in operands)
            return sum(bool(self._written.get(size) or self._outside.get(size)) for size in sizes)

        return max(dict.fromkeys((self._item_bytes, *_ITEMS)), key=known)

    def _alive(
        self, draft: Draft, number: int, sizes: tuple[int, int], taken: set[Storage], saved: list[Storage],
        *, is_target: bool,
    ) -> Storage | None:  # fmt: skip
        """Return the allocation in the step that an operand most likely is."""
        if is_target or not any(self._written.get(sizes[0], ())):
            largest = self._largest(*sizes)
            pending = next((one for one in self._pending if sizes[0] <= one.size_bytes <= largest), None)
            if pending is not None and pending not in taken:
                return pending
        saved = [one for one in saved if one not in taken]
        if number and saved:
            return saved[0]
        alive = self._latest(sizes, taken | set(saved)) or self._latest(sizes, taken)
        if is_target and draft.operation.phase is Phase.OPTIMIZER:
            # An optimizer updates weights and its states, or what it made itself, and no gradient.
            latest = reversed(self._written.get(sizes[0], {}))
            own = (one for one in latest if one.external or one in self._of_optimizer)
            return next((one for one in own if one not in taken), None)
        return alive

    def _latest(self, sizes: tuple[int, int], taken: set[Storage]) -> Storage | None:
        """Return the latest written storage of the size, or the smallest that the allocator did not split."""
        needed, limit = sizes
        low, high = bisect_left(self._sizes, needed), bisect_right(self._sizes, self._largest(needed, limit))
        latest = (one for size in self._sizes[low:high] for one in reversed(self._written[size]))
        return next((one for one in latest if one not in taken), None)

    def _largest(self, needed: int, limit: int) -> int:
        """Return the most bytes of a block for a tensor: parts of storages are in larger ones."""
        return max(limit, needed + _UNSPLIT if self._rounding > 1 and needed > _UNSPLIT else needed)

    def _part_of_latest(self, needed: int, taken: set[Storage]) -> Storage | None:
        """Return the smallest storage, written in the step, that a tensor may be a part of."""
        sizes = self._sizes[bisect_left(self._sizes, needed) :]
        latest = (one for size in sizes for one in reversed(self._written[size]))
        return next((one for one in latest if not one.external and one not in taken), None)

    def _related(self, draft: Draft) -> list[Storage]:
        """Return what the forward operator of a backward operator used, as far as it is there."""
        if draft.operation.phase is not Phase.BACKWARD or draft.sequence is None:
            return []
        return [one for one in self._used[draft.sequence] if one.external or not one.is_freed]

    def _outside_one(self, draft: Draft, size: int, taken: set[Storage], role: TensorKind) -> Storage:
        """Find a tensor from before the step; the optimizer takes those of the other phases in turn.

        Where the file says how much was there, a tensor that finds no room in it is one that was seen before.
        """
        known = next((one for one in self._outside[size] if one not in taken and not one.is_freed), None)
        is_full = self._room is not None and self._room < _ALMOST * size
        if known is not None and (is_full or draft.operation.phase is Phase.OPTIMIZER):
            self._outside[size].remove(known)
            self._outside[size].append(known)
            return known
        if is_full and (whole := self._part_of_latest(size, taken)) is not None:
            return whole
        made = Storage(size, external=True, role=role)
        self._outside[size].append(made)
        self.from_before[made] = None
        if self._room is not None:
            self._room -= size
        return made

    def _rounded(self, size_bytes: int) -> int:
        return -(-size_bytes // self._rounding) * self._rounding

    def _write(self, draft: Draft, reads: Sequence[Storage | None], handed: dict[Storage, None]) -> None:
        """Give the operator what it reads, and what it writes: allocates, is given for that, or updates."""
        operation, span = draft.operation, draft.span
        given = [one for one in reads if one is not None]
        operation.reads.update(dict.fromkeys(given))
        targets = {reads[one] for one in _targets(span) if one < len(reads)} - {None}
        made = [one for one in (*self._fresh, *handed) if not one.is_freed]
        if draft.events and not made and not targets and given and not _copies(draft, TO_HOST):
            targets = {given[-1] if span.name.startswith(_ATEN) else given[0]}
            self.given_buffers += 1
        is_fed = operation.phase is Phase.FORWARD and _copies(draft, TO_DEVICE)
        for storage in made:
            storage.role = TensorKind.INPUT if is_fed else None
            operation.writes[storage] = None
            self._note_written(storage)
        if scratch := {one for one in self._fresh if one.is_freed}:
            sizes = accumulate(size for storage, size in self._changes if storage in scratch)
            operation.writes[Storage(max(sizes), role=TensorKind.WORKSPACE)] = None
        if operation.phase is Phase.FORWARD and draft.sequence is not None:
            self._used[draft.sequence] += [*given, *made]
        if operation.phase is Phase.OPTIMIZER:
            self._of_optimizer.update(made)
        self._fresh.clear()
        self._changes.clear()
        for target in given:
            if target in targets:
                operation.writes[target] = None
                if span.name in OVERWRITING:
                    operation.reads.pop(target, None)
                if self._written.get(target.size_bytes, {}).pop(target, target) is None:
                    self._written[target.size_bytes][target] = None  # the latest again

    def _note_written(self, storage: Storage) -> None:
        if storage.size_bytes not in self._written:
            insort(self._sizes, storage.size_bytes)
            self._written[storage.size_bytes] = {}
        self._written[storage.size_bytes][storage] = None


def _recorded(scope: Scope) -> tuple[int | None, int | None]:
    """Return what was allocated when the step began, and at most in it, where the file tells.

    Of host memory the profiler knows only what it has seen itself.
    """
    inside = [event for event in scope.memory if event.time_ns >= scope.start_ns and event.on_device]
    told = [(event, event.total_bytes) for event in inside if event.total_bytes is not None]
    totals = [total for event, total in told if total >= max(event.size_bytes, 0)]
    if not totals or len(totals) < len(inside) or not any(totals):
        return None, None
    before = max(totals[0] - inside[0].size_bytes, 0)
    return before, max(before, *totals)


def _targets(span: Span) -> set[int]:
    """Return the positions, among all operands, of those that an operator updates in place."""
    if not span.inputs or not span.name.endswith("_"):
        return set()
    updated = _UPDATED.get(span.name, (0,))
    places = (place for place, part in enumerate(span.inputs) for _ in part)
    return {number for number, place in enumerate(places) if place in updated}


def _copies(draft: Draft, direction: tuple[str, ...]) -> bool:
    """Return whether all that an operator did on the device was to copy in one direction."""
    return bool(draft.events) and all(copies(event, direction) for event in draft.events)


def _on_host(draft: Draft, count: int) -> set[int]:
    """Return the operands that lie in host memory: the source or the target of a copy."""
    if _copies(draft, TO_DEVICE):
        return set(range(1, count))
    return {0} if _copies(draft, TO_HOST) and count > 1 else set()


def _data_position(span: Span, operands: Sequence[tuple[int, int, bool]]) -> int:
    """Return the operand that is no weight: the largest, unless the operator is known."""
    if span.name in _TABLES or not operands:
        return -1
    sizes = [size for size, _, _ in operands]
    return DATA.get(span.name, sizes.index(max(sizes)))
