"""Records the operators of a training step and the storages they read and write."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from g10sim.capture import operators
from g10sim.capture.foreach import launches
from g10sim.capture.gpu import COMPUTING, NumberFormat, OperatorClass
from g10sim.capture.gradients import CONVOLUTION_GRADIENTS, convolution_gradients
from g10sim.capture.layers import Layer, LayerTracker
from g10sim.capture.operator_kinds import KernelCost
from g10sim.trace.model import Phase, TensorKind


@dataclass(slots=True, eq=False)
class StorageRecord:
    """One allocation from birth to death; views of it are the same storage.

    ``born_in`` is None for a storage from before the recording. ``on_host`` marks scalars that a CUDA device
    never holds. ``alive`` turns false when the last reference, Python's or autograd's, is gone.
    """

    size_bytes: int
    born_in: Phase | None
    name: str = ""
    kind: TensorKind | None = None
    persistent: bool = False
    on_host: bool = False
    alive: bool = True
    written: bool = False
    watch: Any = None


@dataclass(slots=True)
class KernelDraft:
    """One kernel before it has a duration: storages instead of tensor ids."""

    operator: str
    operator_class: OperatorClass
    number_format: NumberFormat
    phase: Phase
    layer: Layer
    flops: int = 0
    moved_bytes: int = 0
    weight_bytes: int = 0
    products: int = 0
    known_cost: bool = True
    call: int = 0
    reads: dict[StorageRecord, None] = field(default_factory=dict)
    writes: dict[StorageRecord, None] = field(default_factory=dict)

    @property
    def cost(self) -> KernelCost:
        """What its time depends on."""
        return KernelCost(
            self.operator,
            self.operator_class,
            self.number_format,
            self.phase,
            self.layer.kind,
            self.flops,
            self.moved_bytes,
            self.weight_bytes,
            self.products,
        )


@cache
def _mutated_arguments(func: Any) -> tuple[tuple[int, str, bool], ...]:
    """Position, name and whether it is a pure output, of each argument that an operator writes to."""
    return tuple(
        (position, argument.name, argument.is_out)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator below autograd while it is entered.

    ``kernels`` and ``storages`` are in order of appearance. ``allocated_peak_bytes`` is the largest sum of
    device storages alive together, counted from allocation to release (not from first to last use).
    """

    def __init__(self, layers: LayerTracker, keep: Callable[[Any, Any, Any], None] | None = None) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._keep = keep
        self.phase = Phase.FORWARD
        self.kernels: list[KernelDraft] = []
        self.storages: list[StorageRecord] = []
        self.unpriced: dict[str, int] = {}
        self.allocated_peak_bytes = 0
        self._live_bytes = 0
        self._layers = layers
        self._known: dict[int, StorageRecord] = {}

    def describe(self, tensor: Any, kind: TensorKind, name: str, *, persistent: bool = False) -> None:
        """Say what a tensor's storage is; the first description of a storage counts."""
        record = self._record_of(tensor, None)
        if record is not None and record.kind is None:
            record.kind, record.name, record.persistent = kind, name, persistent
            self._move(record, to_host=False)

    def describe_host(self, tensor: Any) -> None:
        """Say that a tensor stays in host memory (step counters of an optimizer)."""
        record = self._record_of(tensor, None)
        if record is not None:
            self._move(record, to_host=True)

    def add_workspaces(self, size_bytes: int) -> None:
        """Give every kernel that computes scratch space of this size, which nobody reads."""
        for kernel in self.kernels:
            if size_bytes and kernel.operator_class in COMPUTING:
                scratch = StorageRecord(size_bytes, kernel.phase, "workspace", TensorKind.WORKSPACE)
                kernel.writes[scratch] = None

    def _move(self, record: StorageRecord, *, to_host: bool) -> None:
        if record.on_host != to_host:
            record.on_host = to_host
            self._live_bytes += -record.size_bytes if to_host else record.size_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator on fake tensors and record it."""
        kwargs = kwargs or {}
        layer = self._layers.current()
        inputs = _tensors((args, kwargs))
        for tensor in inputs:
            self._record_of(tensor, None)
        result = func(*args, **kwargs)
        outputs = [tensor for tensor in _tensors(result) if not self._is_known(tensor)]
        for tensor in outputs:
            self._record_of(tensor, self.phase)
        name = func._schema.name
        if operators.launches_nothing(func):
            return result
        self.calls.append(name)
        if self._keep is not None:
            self._keep(func, args, kwargs)
        if "_foreach_" in name or ("_fused_" in name and _mutated_arguments(func)):
            self._record_lists(func, args, kwargs, result, layer)
        else:
            self._record_kernel(func, args, kwargs, result, layer, inputs, outputs)
        return result

    def _is_known(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._known

    def _record_of(self, tensor: Any, born_in: Phase | None) -> StorageRecord | None:
        """Return the record of a tensor's storage, made at first sight; None for an empty storage."""
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None or not storage.nbytes():
            return known
        record = StorageRecord(storage.nbytes(), born_in)
        # A scalar from nowhere is a Python number, which CUDA kernels take by value.
        record.on_host = born_in is None and tensor.dim() == 0
        record.watch = weakref.ref(storage, self._farewell(storage._cdata, record))
        self._known[storage._cdata] = record
        self.storages.append(record)
        if not record.on_host:
            self._live_bytes += record.size_bytes
            self.allocated_peak_bytes = max(self.allocated_peak_bytes, self._live_bytes)
        return record

    def _farewell(self, key: int, record: StorageRecord) -> Any:
        def release(_: Any) -> None:
            record.alive = False
            self._known.pop(key, None)
            if not record.on_host:
                self._live_bytes -= record.size_bytes

        return release

    def _draft(self, func: Any, layer: Layer, inputs: Sequence[Any]) -> KernelDraft:
        kind = operators.operator_class(func)
        name = operators.short_name(func._schema.name)
        known = operators.has_known_cost(func)
        if not known:
            self.unpriced[name] = self.unpriced.get(name, 0) + 1
        draft = KernelDraft(name, kind, operators.number_format(func, inputs), self.phase, layer)
        draft.known_cost = known
        draft.call = len(self.calls) - 1
        return draft

    def _record_kernel(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        result: Any,
        layer: Layer,
        inputs: list[Any],
        outputs: list[Any],
    ) -> None:
        mutated, overwritten = _mutated_tensors(func, args, kwargs)
        if not outputs and not mutated:
            return
        if func._schema.name == CONVOLUTION_GRADIENTS:
            self._record_convolution_gradients(func, args, result, layer)
            return
        draft = self._draft(func, layer, inputs)
        draft.flops = operators.count_flops(func, args, kwargs, result)
        if outputs:
            draft.products = operators.products_per_element(draft.flops, outputs[0])
        written = sum(operators.touched_bytes(tensor) for tensor in outputs)
        traffic = _Traffic(draft)
        for position, tensor in enumerate(inputs):
            pure = id(tensor) in overwritten
            amount = 0 if pure else operators.read_bytes(func, inputs, position, written)
            if id(tensor) in mutated:
                amount = min(amount, operators.mutated_bytes(func, inputs, tensor))
            self._read(traffic, tensor, amount, pure=pure)
        for tensor in inputs:
            if id(tensor) in mutated:
                self._write(traffic, tensor, operators.mutated_bytes(func, inputs, tensor))
        for tensor in outputs:
            self._write(traffic, tensor, operators.touched_bytes(tensor))
        self._emit(traffic)

    def _record_convolution_gradients(self, func: Any, args: Any, result: Any, layer: Layer) -> None:
        for part in convolution_gradients(func, args, result):
            draft = self._draft(func, layer, part.reads)
            draft.operator, draft.operator_class, draft.flops = part.name, part.operator_class, part.flops
            draft.products = operators.products_per_element(part.flops, part.written)
            traffic = _Traffic(draft)
            for tensor in part.reads:
                self._read(traffic, tensor, operators.touched_bytes(tensor), pure=False)
            self._write(traffic, part.written, operators.touched_bytes(part.written))
            self._emit(traffic)

    def _record_lists(self, func: Any, args: Any, kwargs: Any, result: Any, layer: Layer) -> None:
        """Record an operator on lists of tensors as the launches that CUDA makes of it."""
        mutated, overwritten = _mutated_tensors(func, args, kwargs)
        lists = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, (list, tuple)) and _tensors(arg)]
        singles = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
        results = [result] if isinstance(result, (list, tuple)) and _tensors(result) else []
        if not lists or all(self._on_host(tensor) for tensor in lists[0]):
            return
        elements = [int(tensor.numel()) for tensor in lists[0]]
        alike = [group for group in lists if sum(tensor.numel() for tensor in group) == sum(elements)]
        for parts in launches(elements, len(alike) + len(results)):
            traffic = _Traffic(self._draft(func, layer, lists[0]))
            cut = [
                (group[part.position], part.elements)
                for group in lists
                for part in parts
                if part.position < len(group)
            ]
            for tensor, amount in [*cut, *((single, single.numel()) for single in singles)]:
                pure = id(tensor) in overwritten
                self._read(traffic, tensor, 0 if pure else _bytes_of(tensor, amount), pure=pure)
            new = [(group[part.position], part.elements) for group in results for part in parts]
            for tensor, amount in [*((t, n) for t, n in cut if id(t) in mutated), *new]:
                self._write(traffic, tensor, _bytes_of(tensor, amount))
            self._emit(traffic)

    def _on_host(self, tensor: Any) -> bool:
        record = self._record_of(tensor, None)
        return record is None or record.on_host

    def _read(self, traffic: _Traffic, tensor: Any, amount: int, *, pure: bool) -> None:
        record = self._record_of(tensor, None)
        if record is None or record.on_host:
            return
        unwritten = record.born_in is not None and not record.written
        replaced = pure and operators.touched_bytes(tensor) == record.size_bytes
        if not unwritten and not replaced:
            traffic.draft.reads[record] = None
            _add(traffic.read, record, amount)

    def _write(self, traffic: _Traffic, tensor: Any, amount: int) -> None:
        record = self._record_of(tensor, None)
        if record is not None and not record.on_host:
            traffic.draft.writes[record] = None
            _add(traffic.written, record, amount)

    def _emit(self, traffic: _Traffic) -> None:
        draft = traffic.draft
        if not draft.writes:
            return
        draft.moved_bytes = sum(traffic.read.values()) + sum(traffic.written.values())
        weights = (amount for record, amount in traffic.read.items() if record.kind is TensorKind.WEIGHT)
        draft.weight_bytes = sum(weights)
        for record in draft.writes:
            record.written = True
        self.kernels.append(draft)


@dataclass(slots=True)
class _Traffic:
    """Bytes that a kernel reads and writes of each storage."""

    draft: KernelDraft
    read: dict[StorageRecord, int] = field(default_factory=dict)
    written: dict[StorageRecord, int] = field(default_factory=dict)


def _add(amounts: dict[StorageRecord, int], record: StorageRecord, amount: int) -> None:
    amounts[record] = min(amounts.get(record, 0) + amount, record.size_bytes)


def _bytes_of(tensor: Any, elements: int) -> int:
    return min(elements * int(tensor.element_size()), operators.touched_bytes(tensor))


def _mutated_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[set[int], set[int]]:
    """Python ids of the tensor arguments that are written to, and of those written without being read."""
    mutated: set[int] = set()
    overwritten: set[int] = set()
    for tensor, is_out in _mutations(func, args, kwargs):
        mutated.add(id(tensor))
        if is_out or func._schema.name in operators.OVERWRITING:
            overwritten.add(id(tensor))
    return mutated, overwritten


def _mutations(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, bool]]:
    unscaled = func._schema.name in operators.SCALING_GRADIENTS and kwargs.get("grad_scale") is None
    for position, name, is_out in _mutated_arguments(func):
        if unscaled and name == "grads":
            continue
        value = args[position] if position < len(args) else kwargs.get(name)
        for tensor in _tensors(value):
            yield tensor, is_out
    for position in operators.running_statistics(func, args):
        yield args[position], False
