"""Execution traces of PyTorch (``ExecutionTraceObserver``, schema Chakra), with a profile for their times.

An execution trace names every tensor by tensor and storage but has no times and no releases: times come
from a profile of the same run (``Record function id`` there is ``rf_id`` here), and a tensor lives until its
last use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from g10sim.errors import TraceError
from g10sim.importers.aten import OVERWRITING, short_name
from g10sim.importers.kineto_events import STEP, Entry, Profile, Shape, Span, Whole, read_json_list
from g10sim.importers.operations import (
    NO_KERNELS,
    Operation,
    Storage,
    build_trace,
    forget_reads_of_nothing,
    phase_of,
)
from g10sim.text import shown
from g10sim.trace.model import TimeSource, Trace

_WHAT = "an execution trace of PyTorch"
_SCHEMA = "chakra"
_Id = Annotated[int, Field(strict=True)]
_REFERENCE = TypeAdapter(tuple[_Id, _Id, Whole, Whole, Whole, str])
_SHAPE = TypeAdapter(Shape)
_LISTS = TypeAdapter(tuple[list[Any], list[Any], list[Any]])
_HOST = "cpu"
# PyTorch makes tensors of the numbers among an operator's arguments, without an operator, in storages whose
# ids have been used before.
_NUMBER_BYTES = 8

Price = Callable[[int], int]


class Reference(NamedTuple):
    """A tensor where an operator uses it: ids, the bytes of its storage it reaches to, and its device."""

    tensor: int
    storage: int
    extent_bytes: int
    device: str


@dataclass(eq=False)
class Node:
    """One operator or annotation; ``position`` is its number in the order of starts."""

    id: int
    name: str
    parent: int
    schema: str
    function_id: int
    inputs: list[tuple[Reference, ...]]
    outputs: list[Reference]
    reads: dict[Storage, None] = field(default_factory=dict)
    writes: dict[Storage, None] = field(default_factory=dict)

    @cached_property
    def mutated(self) -> list[Reference]:
        """Tensors among the arguments that the schema says are written to."""
        inside = self.schema.partition("(")[2].partition(" -> ")[0]
        arguments = [part for part in inside.split(", ") if part != "*"]
        pairs = zip(arguments, self.inputs, strict=False)
        return [one for text, found in pairs if "!)" in text.partition(" ")[0] for one in found]


def import_execution_trace(
    path: str | Path,
    *,
    profile: Profile | None = None,
    price: Price | None = None,
    model: str | None = None,
    batch_size: int = 1,
) -> Trace:
    """Read an execution trace; of several steps (``ProfilerStep#N``) the last.

    Times come from ``profile``, of the same run, or else from ``price``, which gives nanoseconds for the
    bytes that an operator moves. Raises TraceError naming the file, the node, what was found and what is
    allowed.
    """
    path = Path(path)
    nodes = _read_nodes(path)
    chosen = _last_step(nodes)
    device = _device(chosen.values())
    _Storages(device).follow(chosen)
    kernels = _kernels(chosen)
    if not kernels:
        raise TraceError(f"{path}: found no operator that writes a tensor; allowed: {_WHAT} of a step")
    operations = []
    for node in kernels:
        phase = phase_of([parent.name for parent in _parents(node, nodes)])
        operations.append(Operation(short_name(node.name), phase, node.reads, node.writes))
    forget_reads_of_nothing(operations)
    if profile is not None:
        durations, source = _measured(path, kernels, profile), TimeSource.MEASURED
    elif price is not None:
        durations, source = [price(one.moved_bytes) for one in operations], TimeSource.BYTES
    else:
        raise TraceError(
            f"{path}: found no times; allowed: a profile of the same run, or a GPU to price bytes"
        )
    for operation, duration in zip(operations, durations, strict=True):
        operation.duration_ns, operation.time_source = duration, source
    origin = {"source": "PyTorch execution trace", "time_source": source.value}
    return build_trace(operations, path, model, batch_size, origin)


def _read_nodes(path: Path) -> dict[int, Node]:
    """Return the nodes of a file by id, in the order in which they started."""
    found, listed = read_json_list(path, "nodes", _WHAT)
    schema = found.get("schema")
    if not isinstance(schema, str) or _SCHEMA not in schema:
        raise TraceError(f"{path}: schema: found {schema!r}; allowed: one with '{_SCHEMA}' (of PyTorch)")
    nodes = {}
    for number, values in enumerate(listed):
        entry = Entry(values, f"{path}: node number {number}")
        entry.place = f"{path}: node {shown(entry.values.get('id', 'without id'))}"
        node = _node(entry)
        if node.id in nodes:
            entry.fail(f"id {node.id} twice", "once")
        if node.parent > node.id:
            entry.fail(f"ctrl_deps {node.parent}", "a node that started before, or the node itself")
        nodes[node.id] = node
    return dict(sorted(nodes.items()))


def _node(entry: Entry) -> Node:
    attributes = Entry({}, entry.place)
    for attribute in entry.get("attrs", "list", list):
        if not isinstance(attribute, dict) or not isinstance(attribute.get("name"), str):
            entry.fail("an attribute without a name", "objects with name and value")
        attributes.values[attribute["name"]] = attribute.get("value")
    return Node(
        id=entry.get("id", "int", int),
        name=entry.get("name", "str", str),
        parent=entry.get("ctrl_deps", "int", int),
        schema=str(attributes.values.get("op_schema", "")),
        function_id=attributes.get("rf_id", "int", int),
        inputs=list(_arguments(entry, "inputs")),
        outputs=[one for part in _arguments(entry, "outputs") for one in part],
    )


def _arguments(node: Entry, key: str) -> Iterator[tuple[Reference, ...]]:
    """Yield the tensors of each argument; an argument may be a list of them, or hold none."""
    side = Entry(node.get(key, "dict", dict), node.place)
    columns = [side.get(column, "list", list) for column in ("values", "types", "shapes", "strides")]
    if len({len(column) for column in columns}) != 1:
        side.fail("values, types, shapes and strides of different lengths", "one of each per argument")
    for value, kind, shape, stride in zip(*columns, strict=True):
        if not isinstance(kind, str):
            side.fail(f"type {shown(kind)}", "a text")
        if kind.startswith("Tensor("):
            yield tuple(_reference(side, value, shape, stride))
        elif kind.startswith("GenericList[Tensor("):
            lists = side.fitting("list", (value, shape, stride), _LISTS, "tensors, shapes and strides")
            parts = zip(*lists, strict=False)
            yield tuple(one for part in parts for one in _reference(side, *part))
        else:
            yield ()


def _reference(side: Entry, value: Any, shape: Any, stride: Any) -> Iterator[Reference]:
    """Yield the tensor, or nothing for one that is not defined or is empty."""
    allowed = "[tensor id, storage id, offset, elements, bytes, device]: five integers and a text"
    found = side.fitting("tensor", value, _REFERENCE, allowed)
    tensor, storage, offset, elements, item_bytes, device = found
    if not elements or not item_bytes:
        return
    sizes = side.fitting("shape", shape, _SHAPE, "sizes")
    steps = side.fitting("strides", stride, _SHAPE, "a distance for each dimension")
    if len(sizes) != len(steps):
        side.fail(f"shape {shown(shape)} with strides {shown(stride)}", "as many strides as dimensions")
    reach = sum(max(size - 1, 0) * step for size, step in zip(sizes, steps, strict=True)) + 1
    yield Reference(tensor, storage, (offset + reach) * item_bytes, device)


def _last_step(nodes: Mapping[int, Node]) -> dict[int, Node]:
    """Return the nodes of the last profiled step, or all where steps are not marked."""
    steps = [node.id for node in nodes.values() if node.name.startswith(STEP)]
    if not steps:
        return dict(nodes)
    inside = {steps[-1]}
    for node in nodes.values():  # a parent has a smaller id
        if node.parent in inside:
            inside.add(node.id)
    return {number: nodes[number] for number in nodes if number in inside}


def _device(nodes: Iterable[Node]) -> str:
    devices = {one.device for node in nodes for part in node.inputs for one in part}
    return min((device for device in devices if device != _HOST), default=_HOST)


class _Storages:
    """Matches tensors to allocations, since ids are used again after a release."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._current: dict[int, Storage] = {}
        self._of_tensor: dict[int, dict[int, Storage]] = {}
        self._maker: dict[Storage, int] = {}

    def follow(self, chosen: Mapping[int, Node]) -> None:
        """Go through the chosen operators in the order of their starts and give them their storages."""
        for node in chosen.values():
            if not node.schema:
                continue
            inputs = [one for part in node.inputs for one in part if one.device == self._device]
            before = {one.storage for one in inputs}
            reads = {one: self._used(one) for one in inputs}
            mutated = {one for one in node.mutated if one.device == self._device}
            overwritten = mutated if node.name in OVERWRITING else set()
            node.reads = {reads[one]: None for one in inputs if one not in overwritten}
            node.writes = {reads[one]: None for one in inputs if one in mutated}
            running = [node.id, *(parent.id for parent in _parents(node, chosen))]
            for one in node.outputs:
                if one.device == self._device and one.storage not in before:
                    node.writes[self._made(one, running)] = None
            if node.name in NO_KERNELS:
                node.reads, node.writes = {}, {}

    def _used(self, one: Reference) -> Storage:
        known = self._of_tensor.get(one.storage, {}).get(one.tensor)
        if known is None:
            known = self._current.get(one.storage)
            if known is None or one.extent_bytes <= _NUMBER_BYTES < known.size_bytes:
                known = self._current[one.storage] = Storage(0, external=True)
        return self._seen(one, known)

    def _made(self, one: Reference, running: Sequence[int]) -> Storage:
        """Return the storage of an output: of the same tensor that an operator around it returns, or new."""
        tensors = self._of_tensor.get(one.storage, {})
        made = tensors.get(one.tensor)
        if made is None or self._maker.get(made) not in running:
            made = Storage(0)
            self._maker[made] = running[0]
            # What an operator still running will return has its ids from the end of that operator on.
            self._of_tensor[one.storage] = {
                tensor: storage for tensor, storage in tensors.items() if self._maker.get(storage) in running
            }
        self._current[one.storage] = made
        return self._seen(one, made)

    def _seen(self, one: Reference, storage: Storage) -> Storage:
        self._of_tensor.setdefault(one.storage, {})[one.tensor] = storage
        storage.size_bytes = max(storage.size_bytes, one.extent_bytes)
        return storage


def _parents(node: Node, nodes: Mapping[int, Node]) -> Iterator[Node]:
    """Yield the operators and annotations around a node, the nearest first."""
    while (parent := nodes.get(node.parent)) is not None and parent.id != node.id:
        yield parent
        node = parent


def _kernels(nodes: Mapping[int, Node]) -> list[Node]:
    """Return the operators that do work of their own, in the order of their starts.

    An operator whose reads and writes are all those of operators inside it is left out. The operators inside
    one that does work itself are left out, too.
    """
    working: dict[int, list[Node]] = {}
    for number in sorted(nodes, reverse=True):  # inner operators have larger ids
        node = nodes[number]
        inside = working.pop(number, [])
        found = inside
        if node.writes:
            reads = {storage for one in inside for storage in one.reads}
            writes = {storage for one in inside for storage in one.writes}
            left = inside and reads >= set(node.reads) and writes >= set(node.writes)
            found = inside if left else [node]
        working.setdefault(node.parent, []).extend(found)
    return sorted((node for found in working.values() for node in found), key=lambda node: node.id)


def _measured(path: Path, kernels: Sequence[Node], profile: Profile) -> list[int]:
    """Return times from a profile: of device events, or the operators' own where there is no device."""
    numbers = ((span.args.get("Record function id"), span) for span in profile.operators)
    spans = {number: span for number, span in numbers if type(number) is int}
    owners: list[Span] = []
    for node in kernels:
        span = spans.get(node.function_id)
        if span is None or span.name != node.name:
            raise TraceError(
                f"{profile.path}: found no operator '{node.name}' with Record function id {node.function_id} "
                f"(node {node.id} of {path}); allowed: the profile of the same run"
            )
        owners.append(span)
    if not profile.device:
        return [span.duration_ns for span in owners]
    return [sum(event.duration_ns for event in events) for events in profile.device_times(owners)]
