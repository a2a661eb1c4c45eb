"""Reads execution traces of PyTorch: operators, the tensors that they use, and the allocations of these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from g10sim.errors import TraceError, shown
from g10sim.importers.kineto_events import Entry, Shape, Whole, listed
from g10sim.importers.near_json import read_json
from g10sim.importers.operations import Storage

WHAT = "an execution trace of PyTorch"
_SCHEMA, _FIRST_SCHEMA = "chakra", "1.0.1"
_EARLIER_ATTRIBUTES = ("rf_id", "op_schema", "kernel_backend", "fw_parent", "seq_id", "tid")
"""Of the schema 1.0.1, which names them as keys of a node."""
_Id = Annotated[int, Field(strict=True)]
_REFERENCE = TypeAdapter(tuple[_Id, _Id, Whole, Whole, Whole, str])
_SHAPE = TypeAdapter(Shape)
_LISTS = TypeAdapter(tuple[list[Any], list[Any]])
_COLUMNS = ("values", "types", "shapes")
_TENSOR, _LIST = "Tensor(", "GenericList["
_WHOLE = ("long", "int", "short", "char", "bool", "unsigned char", "signed char")
_TRITON, _COLLECTIVE, _RECEIVE = "triton", "c10d::", "recv"
HOST = "cpu"


class Reference(NamedTuple):
    """A tensor where an operator uses it, with the bytes of its storage that it reaches to.

    ``item_bytes`` are those of an element and ``kind`` is its type. Without strides it is contiguous.
    """

    tensor: int
    storage: int
    extent_bytes: int
    device: str
    item_bytes: int
    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether elements are whole numbers."""
        return self.kind.startswith(_WHOLE)

    @property
    def key(self) -> tuple[int, int]:
        """Ids of tensor and storage."""
        return self.tensor, self.storage


@dataclass(eq=False)
class Node:
    """One operator or annotation; ``id`` counts in the order of starts, over all threads.

    ``inputs`` are the tensors of each argument, ``values`` the arguments as they are written.
    """

    id: int
    name: str
    parent: int
    schema: str
    function_id: int
    thread: object
    backend: str
    inputs: list[tuple[Reference, ...]]
    outputs: list[Reference]
    values: list[Any] = field(default_factory=list)
    reads: dict[Storage, None] = field(default_factory=dict)
    writes: dict[Storage, None] = field(default_factory=dict)

    @property
    def is_kernel(self) -> bool:
        """Return whether it is a kernel that a compiler made: it has no schema, and none of its outputs."""
        return not self.schema and (bool(self.backend) or self.name.startswith(_TRITON))

    @property
    def arguments(self) -> list[Reference]:
        """All tensors among the arguments."""
        return [one for part in self.inputs for one in part]

    @property
    def _names(self) -> list[str]:
        return [text.split("=")[0].split()[-1] for text in _arguments_of(self.schema) if text != "*"]

    def value_of(self, argument: str) -> Any:
        """Return an argument by its name in the schema; None where there is none."""
        return dict(zip(self._names, self.values, strict=False)).get(argument)

    def tensors_of(self, argument: str) -> tuple[Reference, ...]:
        """Return the tensors of an argument by its name in the schema; none where there is none."""
        return dict(zip(self._names, self.inputs, strict=False)).get(argument, ())

    @property
    def is_collective(self) -> bool:
        """Return whether it communicates: no schema says that its first tensors are written to."""
        return self.name.startswith(_COLLECTIVE)

    @cached_property
    def received(self) -> list[Reference]:
        """Tensors among the arguments that a communication fills from others."""
        first, *others = [*filter(None, self.inputs), ()]
        return list(first) if self.is_collective and (any(others) or _RECEIVE in self.name) else []

    @cached_property
    def mutated(self) -> list[Reference]:
        """Tensors among the arguments that are written to, as the schema says."""
        return self.received or [one for _, part in self._marked for one in part]

    @cached_property
    def filled(self) -> list[Reference]:
        """Those of them that are given for the results alone (``out=``)."""
        return [one for is_named, part in self._marked if is_named for one in part]

    @property
    def _marked(self) -> list[tuple[bool, tuple[Reference, ...]]]:
        """Arguments that are written to: whether they come by name only, and their tensors."""
        texts = list(_arguments_of(self.schema))
        first_named = texts.index("*") if "*" in texts else len(texts)
        arguments = zip((text for text in texts if text != "*"), self.inputs, strict=False)
        return [
            (number >= first_named, part)
            for number, (text, part) in enumerate(arguments)
            if "!" in text.partition(" ")[0]
        ]


def _arguments_of(schema: str) -> Iterator[str]:
    """Yield the arguments of a schema, such as ``Tensor(a!) self``; defaults may hold commas."""
    depth, start = 0, schema.find("(") + 1
    for place in range(start, len(schema) if start else 0):
        character = schema[place]
        if character in "([":
            depth += 1
        elif character in ")]" and depth:
            depth -= 1
        elif character in ",)" and not depth:
            if text := schema[start:place].strip():
                yield text
            if character == ")":
                return
            start = place + 1


def parents_of(node: Node, nodes: Mapping[int, Node]) -> Iterator[Node]:
    """Yield the operators and annotations around a node, the nearest first."""
    while (parent := nodes.get(node.parent)) is not None and parent.id != node.id:
        yield parent
        node = parent


def read_nodes(path: Path) -> dict[int, Node]:
    """Return the nodes of a file by id, in the order in which they started.

    Reads the schemas 1.0.1 to 1.1.1 and what keeps to them. Raises TraceError naming the file and the node.
    """
    found = read_json(path, WHAT)
    entries = listed(found, "nodes", path, WHAT)
    schema = found.get("schema")
    if not isinstance(schema, str) or not (_SCHEMA in schema or schema.startswith(_FIRST_SCHEMA)):
        allowed = f"one with '{_SCHEMA}' (of PyTorch), or {_FIRST_SCHEMA}"
        raise TraceError.at(f"{path}: schema", shown(schema), allowed)
    nodes: dict[int, Node] = {}
    for number, values in enumerate(entries):
        entry = Entry(values, f"{path}: node number {number}")
        entry.place = f"{path}: node {shown(entry.values.get('id', 'without id'))}"
        is_early = "parent" in entry.values and "ctrl_deps" not in entry.values
        node = _node(_renewed(entry) if is_early else entry)
        if node.id in nodes:
            entry.fail(f"id {node.id} twice", "once")
        if node.parent > node.id:
            entry.fail(f"ctrl_deps {node.parent}", "a node that started before, or the node itself")
        nodes[node.id] = node
    nodes = dict(sorted(nodes.items()))
    _mend_parents(nodes)
    return nodes


def _mend_parents(nodes: dict[int, Node]) -> None:
    """Give nodes their parents where an operator before them was left by an exception.

    Checkpointing leaves the last operator of a block so. PyTorch does not write such an operator, and takes
    the latest node from before it that has not ended yet for one level more than there is, until the end.
    """
    recorded = {node.id: node.parent for node in nodes.values()}
    earliest: dict[object, int] = {}
    lost = set()
    for node in reversed(nodes.values()):
        if node.parent not in nodes and earliest.get(node.thread, node.parent) < node.parent:
            lost.add(node.parent)  # it is the parent of some nodes, and not of what comes after them
        earliest[node.thread] = min(earliest.get(node.thread, node.parent), node.parent)
    lost_in: defaultdict[object, list[int]] = defaultdict(list)
    latest: dict[object, int] = {}
    for node in nodes.values() if lost else ():
        if node.parent in lost and node.parent not in recorded:
            around = latest.get(node.thread, node.parent)
            while around in nodes and nodes[around].schema and recorded[around] != around:
                around = recorded[around]
            recorded[node.parent] = around
            lost_in[node.thread].append(node.parent)
        latest[node.thread] = node.id
        for left in reversed(lost_in[node.thread]):
            if node.parent > left:
                break
            node.parent = recorded.get(node.parent, node.parent)


def _renewed(entry: Entry) -> Entry:
    """Return a node of the schema 1.0.1 in the form of the later ones."""
    old = entry.values
    new = {"id": old.get("id"), "name": old.get("name"), "ctrl_deps": old["parent"]}
    new["attrs"] = [{"name": key, "value": old[key]} for key in _EARLIER_ATTRIBUTES if key in old]
    for side in ("input", "output"):
        keys = f"{side}s", f"{side}_types", f"{side}_shapes"
        new[f"{side}s"] = dict(zip(_COLUMNS, map(old.get, keys), strict=True))
    return Entry(new, entry.place)


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
        function_id=attributes.get("rf_id", "int", int, default=0),
        thread=attributes.get("tid", "int", int, type(None)),
        backend=str(attributes.values.get("kernel_backend", "")),
        inputs=list(_tensors(entry, "inputs")),
        outputs=[one for part in _tensors(entry, "outputs") for one in part],
        values=entry.values["inputs"]["values"],
    )


def _tensors(node: Entry, key: str) -> Iterator[tuple[Reference, ...]]:
    """Yield the tensors of each argument; an argument may be a list of them, or hold none.

    There are no strides before the schema 1.1.1, and later fewer than arguments where the last have none.
    """
    side = Entry(node.get(key, "dict", dict), node.place)
    columns = [side.get(column, "list", list) for column in _COLUMNS]
    if len({len(column) for column in columns}) != 1:
        side.fail(f"{', '.join(_COLUMNS)} of different lengths", "one of each per argument")
    strides = side.get("strides", "list", list, default=[])
    strides = strides + [None] * (len(columns[0]) - len(strides))
    for value, kind, shape, stride in zip(*columns, strides, strict=False):
        if not isinstance(kind, str):
            side.fail(f"type {shown(kind)}", "a text")
        if kind.startswith(_TENSOR):
            yield tuple(_reference(side, kind, value, shape, stride))
        elif kind.startswith(_LIST) and _TENSOR in kind:
            yield tuple(_listed(side, kind.removeprefix(_LIST), value, shape, stride))
        else:
            yield ()


def _listed(side: Entry, kind: str, value: Any, shape: Any, stride: Any) -> Iterator[Reference]:
    """Yield the tensors of a list, and of the lists in it; ``kind`` is the type of what is in it."""
    values, shapes = side.fitting("list", (value, shape), _LISTS, "tensors, shapes and strides")
    steps = stride if isinstance(stride, list) else []
    steps = steps + [None] * (len(values) - len(steps))
    for part in zip(values, shapes, steps, strict=False):
        if kind.startswith(_LIST):
            yield from _listed(side, kind.removeprefix(_LIST), *part)
        elif isinstance(part[0], list):  # a text where there is no tensor
            yield from _reference(side, kind, *part)


def _reference(side: Entry, kind: str, value: Any, shape: Any, stride: Any) -> Iterator[Reference]:
    """Yield the tensor, or nothing for one that is not defined or is empty.

    Without strides it is contiguous.
    """
    allowed = "[tensor id, storage id, offset, elements, bytes, device]: five integers and a text"
    found = side.fitting("tensor", value, _REFERENCE, allowed)
    tensor, storage, offset, elements, item_bytes, device = found
    if not elements or not item_bytes:
        return
    sizes = side.fitting("shape", shape, _SHAPE, "sizes")
    steps = tuple(prod(sizes[number + 1 :]) for number in range(len(sizes)))
    if stride is not None:
        given = side.fitting("strides", stride, _SHAPE, "a distance for each dimension")
        steps = tuple(given)
        if len(sizes) != len(steps):
            side.fail(f"shape {shown(shape)} with strides {shown(stride)}", "as many strides as dimensions")
    reach = sum(max(size - 1, 0) * step for size, step in zip(sizes, steps, strict=True)) + 1
    kind = kind.rpartition("(")[2].partition(")")[0]
    extent = (offset + reach) * item_bytes
    yield Reference(tensor, storage, extent, device, item_bytes, kind, tuple(sizes), steps)
