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
from typing import Any, NamedTuple, NoReturn

from g10sim.errors import TraceError
from g10sim.importers.kineto_events import Profile, Span, read_json_object
from g10sim.importers.operations import (
    NO_KERNELS,
    OVERWRITING,
    Operation,
    Storage,
    build_trace,
    forget_reads_of_nothing,
    phase_of,
    short_name,
)
from g10sim.trace.check import check_trace
from g10sim.trace.model import TimeSource, Trace

_WHAT = "an execution trace of PyTorch"
_SCHEMA = "chakra"
_REFERENCE_PARTS = 6
_STEP = "ProfilerStep#"
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
    nodes = _Reader(path).nodes()
    chosen = _last_step(nodes)
    device = _device(chosen.values())
    _Storages(device).follow(chosen)
    kernels = _kernels(chosen)
    if not kernels:
        raise TraceError(f"{path}: found no operator that writes a tensor; allowed: {_WHAT} of a step")
    operations = [
        Operation(short_name(node.name), phase_of(_around(node, nodes)), node.reads, node.writes)
        for node in kernels
    ]
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
    trace = build_trace(operations, model or path.stem, batch_size, origin)
    check_trace(trace, str(path))
    return trace


class _Reader:
    """Reads the nodes of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._node: dict[str, Any] = {}

    def nodes(self) -> dict[int, Node]:
        """Return the nodes by id, in the order in which they started. Raises TraceError."""
        found = read_json_object(self._path, "nodes", _WHAT)
        schema = found.get("schema")
        if not isinstance(schema, str) or _SCHEMA not in schema:
            raise TraceError(
                f"{self._path}: schema: found {schema!r}; allowed: one with '{_SCHEMA}' (of PyTorch)"
            )
        if not isinstance(found["nodes"], list):
            raise TraceError(f"{self._path}: nodes: found no list; allowed: {_WHAT}")
        nodes = [self._read(number, node) for number, node in enumerate(found["nodes"])]
        return {node.id: node for node in sorted(nodes, key=lambda node: node.id)}

    def _read(self, number: int, node: object) -> Node:
        if not isinstance(node, dict):
            raise TraceError(f"{self._path}: node number {number}: found no object; allowed: {_WHAT}")
        self._node = node
        attributes = self._attributes()
        return Node(
            id=self._get(node, "id", int),
            name=self._get(node, "name", str),
            parent=self._get(node, "ctrl_deps", int),
            schema=str(attributes.get("op_schema", "")),
            function_id=self._get(attributes, "rf_id", int),
            inputs=list(self._arguments(self._get(node, "inputs", dict))),
            outputs=[one for part in self._arguments(self._get(node, "outputs", dict)) for one in part],
        )

    def _attributes(self) -> dict[str, Any]:
        found = {}
        for attribute in self._get(self._node, "attrs", list):
            if not isinstance(attribute, dict) or "name" not in attribute:
                self._fail("an attribute without a name", "objects with name and value")
            found[attribute["name"]] = attribute.get("value")
        return found

    def _get(self, values: Mapping[str, Any], key: str, kind: type) -> Any:
        value = values.get(key)
        if type(value) is not kind:
            self._fail(f"{key} {value!r}"[:80], f"{kind.__name__}")
        return value

    def _fail(self, found: str, allowed: str) -> NoReturn:
        where = self._node.get("id", "without id")
        raise TraceError(f"{self._path}: node {where}: found {found}; allowed: {allowed}")

    def _arguments(self, side: Mapping[str, Any]) -> Iterator[tuple[Reference, ...]]:
        """Yield the tensors of each argument; an argument may be a list of them, or hold none."""
        columns = [self._get(side, key, list) for key in ("values", "types", "shapes", "strides")]
        if len({len(column) for column in columns}) != 1:
            self._fail("values, types, shapes and strides of different lengths", "one of each per argument")
        for value, kind, shape, stride in zip(*columns, strict=True):
            if not isinstance(kind, str):
                self._fail(f"type {kind!r}", "a text")
            if kind.startswith("Tensor("):
                yield tuple(self._reference(value, shape, stride))
            elif kind.startswith("GenericList[Tensor("):
                pairs = zip(value, shape, stride, strict=False)
                yield tuple(one for parts in pairs for one in self._reference(*parts))
            else:
                yield ()

    def _reference(self, value: Any, shape: Any, stride: Any) -> Iterator[Reference]:
        """Yield the tensor, or nothing for one that is not defined or is empty."""
        if not isinstance(value, list) or len(value) != _REFERENCE_PARTS:
            self._fail(f"tensor {value!r}"[:80], "[tensor id, storage id, offset, elements, bytes, device]")
        tensor, storage, offset, elements, item_bytes, device = value
        if not all(type(number) is int for number in value[:-1]) or not isinstance(device, str):
            self._fail(f"tensor {value!r}"[:80], "five integers and a device")
        if not elements or not item_bytes:
            return
        if not isinstance(shape, list) or not isinstance(stride, list) or len(shape) != len(stride):
            self._fail(f"shape {shape!r} with strides {stride!r}"[:80], "as many strides as dimensions")
        reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
        yield Reference(tensor, storage, (offset + reach) * item_bytes, device)


def _last_step(nodes: Mapping[int, Node]) -> dict[int, Node]:
    """Return the nodes of the last profiled step, or all where steps are not marked."""
    steps = [node.id for node in nodes.values() if node.name.startswith(_STEP)]
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
    """Tells which allocation each tensor is: ids are used again after a release."""

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
            running = _running(node, chosen)
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


def _running(node: Node, nodes: Mapping[int, Node]) -> list[int]:
    """Return the operator and those around it, by id."""
    found = [node.id]
    while (parent := nodes.get(node.parent)) is not None and parent.id != node.id:
        found.append(parent.id)
        node = parent
    return found


def _kernels(nodes: Mapping[int, Node]) -> list[Node]:
    """Return the operators that do work of their own, in the order of their starts.

    One that leaves all its reading and writing to operators inside it is not among them; of one that does
    work itself, those inside are not.
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


def _around(node: Node, nodes: Mapping[int, Node]) -> list[str]:
    names = []
    parent = nodes.get(node.parent)
    while parent is not None and parent.id != parent.parent:
        names.append(parent.name)
        parent = nodes.get(parent.parent)
    return names


def _measured(path: Path, kernels: Sequence[Node], profile: Profile) -> list[int]:
    """Return times from a profile: of device events, or the operators' own where there is no device."""
    spans = {span.args.get("Record function id"): span for span in profile.operators}
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
