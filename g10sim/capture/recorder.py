"""Records the operators of a step and the storages that they read and write."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from g10sim.capture import moved, operators
from g10sim.capture.following import Layer, LayerTracker, PhaseTracker
from g10sim.importers.operations import short_name
from g10sim.trace.model import Kernel, Phase, TensorKind, TimeSource
from g10sim.trace.work import COMPUTING, KernelCost


@dataclass(slots=True, eq=False)
class StorageRecord:
    """One allocation from birth to death; views of it are the same storage.

    ``phase`` is that of the operator that made it, None where no recorded one did; ``existed`` tells that it
    was there before the recording, and not put in by the step itself. ``on_host`` marks scalars that a CUDA
    device never holds. ``released`` is the number of kernels before the last reference to it, Python's or
    autograd's, was gone; None while there is one. ``outlived`` is the number before the end of the last step
    after which it was still there.
    """

    size_bytes: int
    phase: Phase | None
    name: str = ""
    kind: TensorKind | None = None
    persistent: bool = False
    on_host: bool = False
    existed: bool = False
    released: int | None = None
    outlived: int = 0
    written: bool = False
    watch: Any = None

    @property
    def alive(self) -> bool:
        """Return True if it was still there after the recording."""
        return self.released is None


@dataclass(slots=True, eq=False, kw_only=True)
class KernelDraft(KernelCost):
    """One kernel before it has a duration: the bytes it reads and writes of each storage.

    ``call`` is the position of the operator that launches it among all operators of the step; ``passes`` the
    number of passes backward that accumulated gradients before it.
    """

    layer: Layer
    known_cost: bool = True
    call: int = 0
    passes: int = 0
    reads: dict[StorageRecord, int] = field(default_factory=dict)
    writes: dict[StorageRecord, int] = field(default_factory=dict)
    bytes_again: int = 0

    def note(self, sizes: Mapping[str, int]) -> None:
        """Note sizes by name."""
        for name, value in sizes.items():
            setattr(self, name, value)

    def count_bytes(self) -> None:
        """Add up what it moves of each storage, and in further passes."""
        self.moved_bytes = sum(self.reads.values()) + sum(self.writes.values()) + self.bytes_again

    def kernel(
        self, number: int, inputs: tuple[int, ...], outputs: tuple[int, ...], layer: str, micro_batch: int = 0
    ) -> Kernel:
        """Return the kernel of a trace, without a duration."""
        return Kernel(
            id=number,
            name=self.operator,
            duration=0,
            inputs=inputs,
            outputs=outputs,
            phase=self.phase,
            layer=layer,
            layer_type=self.layer.kind,
            flops=self.flops,
            moved_bytes=self.moved_bytes,
            time_source=TimeSource.ROOFLINE if self.known_cost else TimeSource.BYTES,
            operator_class=self.operator_class.value,
            number_format=self.number_format.value,
            sizes=self.sizes,
            micro_batch=micro_batch,
        )


_ABOUT_ITSELF = ("prim", "profiler")
"""Operators of PyTorch that no program calls on a device."""
Keep = Callable[[Any, Any, Any], None]
"""Is called with an operator and its arguments."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator below autograd while it is entered.

    ``kernels`` and ``storages`` are in order of appearance; ``ends`` has the number of kernels at the end of
    each step. ``allocated_peak_bytes`` is the largest sum of
    device storages alive together, counted from allocation to release (not from first to last use).
    """

    def __init__(
        self, layers: LayerTracker, before_update: Callable[[Recorder], None], keep: Keep | None = None
    ) -> None:
        """Record; ``before_update`` is called when gradients are there and nothing has used them yet."""
        super().__init__()
        self.calls: list[str] = []
        self.phases = PhaseTracker(lambda: before_update(self))
        self._keep = keep
        self.kernels: list[KernelDraft] = []
        self.storages: list[StorageRecord] = []
        self.ends: list[int] = []
        self.allocated_peak_bytes = 0
        self._issued = 0
        self._live_bytes = 0
        self._layers = layers
        self._known: dict[int, StorageRecord] = {}
        self._before = weakref.WeakValueDictionary[int, Any]()

    def remember_what_exists(self) -> None:
        """Note every tensor that is alive: what the step finds of it has contents from before."""
        for found in gc.get_objects():
            if self._may_be_found(found):
                # The address of a storage that is gone may come again, for another.
                storage = found.untyped_storage()
                self._before[storage._cdata] = storage

    @staticmethod
    def _may_be_found(found: object) -> bool:
        return issubclass(type(found), FakeTensor)

    def lasting(self) -> dict[StorageRecord, int]:
        """Return the storages from before the recording that are still there, with keys to know them by."""
        return {
            record: key
            for key, record in self._known.items()
            if record.phase is None and (record.persistent or record.existed) and not record.on_host
        }

    def used(self) -> dict[StorageRecord, None]:
        """Return the storages that kernels use, in the order of first uses."""
        return {record: None for draft in self.kernels for record in (*draft.reads, *draft.writes)}

    def describe(self, tensor: Any, kind: TensorKind, name: str, *, persistent: bool = False) -> None:
        """Say what a tensor's storage is; the first description of a storage counts.

        A gradient that was there before the step is persistent in any case.
        """
        record = self._record_of(tensor, None)
        if record is not None and record.kind is None:
            record.kind, record.name, record.persistent = kind, name, persistent or record.existed
            self._move(record, to_host=False)

    def describe_host(self, tensor: Any) -> None:
        """Say that a tensor stays in host memory (step counters of an optimizer)."""
        record = self._record_of(tensor, None)
        if record is not None:
            self._move(record, to_host=True)

    def add_workspaces(self, size_bytes: int) -> None:
        """Give every kernel that computes scratch space of this size, which no kernel reads."""
        for kernel in self.kernels:
            if size_bytes and kernel.operator_class in COMPUTING:
                scratch = StorageRecord(size_bytes, kernel.phase, "workspace", TensorKind.WORKSPACE)
                kernel.writes[scratch] = 0

    def _move(self, record: StorageRecord, *, to_host: bool) -> None:
        if record.on_host != to_host:
            record.on_host = to_host
            self._live_bytes += -record.size_bytes if to_host else record.size_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operator on fake tensors and record it."""
        kwargs = kwargs or {}
        layer, phase = self._layers.current(), self.phases.current()
        inputs = moved.tensors_of((args, kwargs))
        for tensor in inputs:
            self._record_of(tensor, None)
        if func._schema.name == operators.LOOK:
            self._look_at(inputs)
        result = func(*args, **kwargs)
        if operators.scatters_in_place(func):
            # The result is the storage of the tensor that it is a changed copy of.
            self._watch(result.untyped_storage(), self._known.pop(args[0].untyped_storage()._cdata))
        known = self._known
        outputs = [made for made in moved.tensors_of(result) if made.untyped_storage()._cdata not in known]
        for tensor in outputs:
            self._record_of(tensor, phase)
        name = func._schema.name
        self._issued += func.namespace not in _ABOUT_ITSELF
        if operators.launches_nothing(func):
            return result
        self.calls.append(name)
        if self._keep is not None:
            self._keep(func, args, kwargs)
        if "_foreach_" in name or ("_fused_" in name and moved.mutated_arguments(func)):
            self._record_lists(func, args, kwargs, result, layer)
        elif name == operators.CONVOLUTION_GRADIENTS:
            self._record_convolution_gradients(func, args, result, layer)
        else:
            self._record_kernel(func, args, kwargs, result, layer, inputs, outputs)
        return result

    def end_step(self) -> None:
        """Note the end of a step, and what is still there."""
        self.ends.append(len(self.kernels))
        made = [record for record in self._known.values() if record.phase is not None]
        if made:
            gc.collect()  # what only a cycle of references keeps does not count
        for record in made:
            if record.alive:
                record.outlived = len(self.kernels)

    def _look_at(self, tensors: Sequence[Any]) -> None:
        """Let the last kernel read, in 0 bytes, tensors whose values the host copies now."""
        for tensor in tensors:
            record = self._on_device(tensor)
            if record is not None and self.kernels and record not in self.kernels[-1].writes:
                self.kernels[-1].reads.setdefault(record, 0)

    def _record_of(self, tensor: Any, phase: Phase | None) -> StorageRecord | None:
        """Return the record of a tensor's storage, made at first sight; None for an empty storage."""
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None or not storage.nbytes():
            return known
        record = StorageRecord(storage.nbytes(), phase)
        # A scalar from nowhere is a Python number, which CUDA kernels take by value.
        record.on_host = phase is None and tensor.dim() == 0
        record.existed = phase is None and storage._cdata in self._before
        self._watch(storage, record)
        self.storages.append(record)
        if phase is not None:
            self.phases.note(record)
        if not record.on_host:
            self._live_bytes += record.size_bytes
            self.allocated_peak_bytes = max(self.allocated_peak_bytes, self._live_bytes)
        return record

    def _watch(self, storage: Any, record: StorageRecord) -> None:
        """Know a storage by its address until nothing refers to it."""
        key = storage._cdata

        def release(_: Any) -> None:
            record.released = len(self.kernels)
            self._known.pop(key, None)
            if not record.on_host:
                self._live_bytes -= record.size_bytes

        record.watch = weakref.ref(storage, release)
        self._known[key] = record

    def _draft(self, func: Any, layer: Layer, inputs: Sequence[Any]) -> KernelDraft:
        kind = operators.operator_class(func)
        name = short_name(func._schema.name)
        known = operators.has_known_cost(func)
        call, passes = len(self.calls) - 1, self.phases.passes
        facts = name, kind, operators.number_format(func, inputs), self.phases.current(), layer.kind
        return KernelDraft(*facts, layer=layer, known_cost=known, call=call, passes=passes)

    def _record_kernel(
        self, func: Any, args: Any, kwargs: Any, result: Any, layer: Layer, inputs: Any, outputs: Any
    ) -> None:
        mutated, overwritten = moved.mutated_tensors(func, args, kwargs)
        if operators.scatters_in_place(func):
            mutated = {id(result)}
            inputs = [result, *inputs[1:]]
        if not outputs and not mutated:
            return
        draft = self._draft(func, layer, inputs)
        draft.flops = operators.count_flops(func, args, kwargs, result)
        draft.note(operators.sizes_of(func, args, [*inputs, *outputs]))
        if outputs:
            draft.products = operators.products_per_element(draft.flops, outputs[0])
        written = sum(map(moved.touched_bytes, outputs))
        for position, tensor in enumerate(inputs):
            pure, changes = id(tensor) in overwritten, id(tensor) in mutated
            amount = 0 if pure else moved.read_bytes(func, inputs, position, written)
            if changes and not pure:
                amount = min(amount, moved.kept_bytes(func, args, inputs, tensor))
            if amount or changes:
                self._read(draft, tensor, amount, pure=pure)
            if changes:
                self._write(draft, tensor, moved.mutated_bytes(func, inputs, tensor))
        for tensor in outputs:
            self._write(draft, tensor, moved.touched_bytes(tensor))
        draft.bytes_again = moved.bytes_again(func, args)
        self._emit(draft)

    def _record_convolution_gradients(self, func: Any, args: Any, result: Any, layer: Layer) -> None:
        """Record a kernel for each gradient that is asked for."""
        for (name, positions, kind), written in zip(operators.GRADIENT_PARTS, result, strict=True):
            if written is None:
                continue
            reads = [args[position] for position in positions]
            draft = self._draft(func, layer, reads)
            draft.operator, draft.operator_class = f"convolution_backward_{name}", kind
            draft.flops = operators.gradient_flops(args) if kind in COMPUTING else 0
            if draft.flops:
                draft.note(operators.sizes_of(func, args, ()))
            draft.products = operators.products_per_element(draft.flops, written)
            for tensor in reads:
                self._read(draft, tensor, moved.touched_bytes(tensor), pure=False)
            self._write(draft, written, moved.touched_bytes(written))
            self._emit(draft)

    def _record_lists(self, func: Any, args: Any, kwargs: Any, result: Any, layer: Layer) -> None:
        """Record an operator on lists of tensors as the launches that CUDA makes of it."""
        mutated, overwritten = moved.mutated_tensors(func, args, kwargs)
        given = (*args, *kwargs.values())
        lists, results = (
            [one for one in values if isinstance(one, (list, tuple)) and moved.tensors_of(one)]
            for values in (given, [result])
        )
        singles = [one for one in given if isinstance(one, torch.Tensor)]
        if not lists or not any(self._on_device(tensor) for tensor in lists[0]):
            return
        sizes = [int(tensor.numel()) for tensor in lists[0]]
        alike = [group for group in lists if sum(tensor.numel() for tensor in group) == sum(sizes)]
        for parts in operators.launches(sizes, len(alike) + len(results)):
            draft = self._draft(func, layer, lists[0])
            cut = [(group[at], elements) for group in lists for at, elements in parts if at < len(group)]
            for tensor, amount in [*cut, *((single, single.numel()) for single in singles)]:
                pure = id(tensor) in overwritten
                self._read(draft, tensor, 0 if pure else _bytes_of(tensor, amount), pure=pure)
            new = [(group[at], elements) for group in results for at, elements in parts]
            for tensor, amount in [*((t, n) for t, n in cut if id(t) in mutated), *new]:
                self._write(draft, tensor, _bytes_of(tensor, amount))
            self._emit(draft)

    def _on_device(self, tensor: Any) -> StorageRecord | None:
        """Return the record of a tensor's storage; None for one that no device holds."""
        record = self._record_of(tensor, None)
        return None if record is None or record.on_host else record

    def _read(self, draft: KernelDraft, tensor: Any, amount: int, *, pure: bool) -> None:
        record = self._on_device(tensor)
        if record is None:
            return
        unwritten = record.phase is not None and not record.written
        replaced = pure and moved.touched_bytes(tensor) == record.size_bytes
        if not unwritten and not replaced:
            _add(draft.reads, record, amount)

    def _write(self, draft: KernelDraft, tensor: Any, amount: int) -> None:
        record = self._on_device(tensor)
        if record is not None:
            _add(draft.writes, record, amount)

    def _emit(self, draft: KernelDraft) -> None:
        if not draft.writes:
            return
        draft.count_bytes()
        draft.views, self._issued = max(self._issued - 1, 0), 0
        weights = (amount for record, amount in draft.reads.items() if record.kind is TensorKind.WEIGHT)
        draft.weight_bytes = sum(weights)
        for record in draft.writes:
            record.written = True
        self.kernels.append(draft)
        updates_weights = any(record.kind is TensorKind.WEIGHT for record in draft.writes)
        self.phases.note(draft, updates_weights=updates_weights)


def _add(amounts: dict[StorageRecord, int], record: StorageRecord, amount: int) -> None:
    amounts[record] = min(amounts.get(record, 0) + amount, record.size_bytes)


def _bytes_of(tensor: Any, elements: int) -> int:
    return min(elements * int(tensor.element_size()), moved.touched_bytes(tensor))
