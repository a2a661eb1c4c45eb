"""Reads execution traces of PyTorch: operators and annotations with the tensors that they use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from g10sim.errors import TraceError
from g10sim.importers.kineto_events import Entry, Shape, Whole, read_json_list
from g10sim.importers.operations import Storage
from g10sim.text import shown

WHAT = "an execution trace of PyTorch"
_SCHEMA, _FIRST_SCHEMA = "chakra", "1.0.1"
_EARLIER_ATTRIBUTES = ("rf_id", "op_schema", "kernel_backend", "fw_parent", "seq_id", "tid")
"""Of the schema 1.0.1, which names them as keys of a node."""
_Id = Annotated[int, Field(strict=True)]
_REFERENCE = TypeAdapter(tuple[_Id, _Id, Whole, Whole, Whole, str])
_SHAPE = TypeAdapter(Shape)
_LISTS = TypeAdapter(tuple[list[Any], list[Any]])
_COLUMNS = ("values", "types", "shapes")
_TENSOR, _TENSORS = "Tensor(", "GenericList[Tensor("
_WHOLE = ("long", "int", "short", "char", "bool", "unsigned char", "signed char")
_TRITON = "triton"
HOST = "cpu"


class Reference(NamedTuple):
    """A tensor where an operator uses it, with the bytes of its storage that it reaches to.

    ``item_bytes`` are those of an element; ``is_whole`` says whether they are whole numbers.
    """

    tensor: int
    storage: int
    extent_bytes: int
    device: str
    item_bytes: int
    is_whole: bool

    @property
    def key(self) -> tuple[int, int]:
        """Ids of tensor and storage."""
        return self.tensor, self.storage


@dataclass(eq=False)
class Node:
    """One operator or annotation; ``id`` counts in the order of starts, over all threads."""

    id: int
    name: str
    parent: int
    schema: str
    function_id: int
    backend: str
    inputs: list[tuple[Reference, ...]]
    outputs: list[Reference]
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

    @cached_property
    def mutated(self) -> list[Reference]:
        """Tensors among the arguments that the schema says are written to."""
        return [one for _, part in self._marked for one in part]

    @cached_property
    def filled(self) -> list[Reference]:
        """Those of them that are given for the results alone (``out=``)."""
        return [one for is_named, part in self._marked if is_named for one in part]

    @property
    def _marked(self) -> list[tuple[bool, tuple[Reference, ...]]]:
        """Arguments that are written to: whether they come by name only, and their tensors."""
        is_named, found = False, []
        arguments = []
        for text in _arguments_of(self.schema):
            is_named = is_named or text == "*"
            if text != "*":
                arguments.append((is_named, text))
        for (named, text), part in zip(arguments, self.inputs, strict=False):
            if "!" in text.partition(" ")[0]:
                found.append((named, part))
        return found


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
    found, listed = read_json_list(path, "nodes", WHAT)
    schema = found.get("schema")
    if not isinstance(schema, str) or not (_SCHEMA in schema or schema.startswith(_FIRST_SCHEMA)):
        raise TraceError(
            f"{path}: schema: found {shown(schema)}; allowed: one with '{_SCHEMA}' (of PyTorch), "
            f"or {_FIRST_SCHEMA}"
        )
    nodes = {}
    for number, values in enumerate(listed):
        entry = Entry(values, f"{path}: node number {number}")
        entry.place = f"{path}: node {shown(entry.values.get('id', 'without id'))}"
        node = _node(
            entry if "parent" not in entry.values or "ctrl_deps" in entry.values else _renewed(entry)
        )
        if node.id in nodes:
            entry.fail(f"id {node.id} twice", "once")
        if node.parent > node.id:
            entry.fail(f"ctrl_deps {node.parent}", "a node that started before, or the node itself")
        nodes[node.id] = node
    return dict(sorted(nodes.items()))


def _renewed(entry: Entry) -> Entry:
    """Return a node of the schema 1.0.1 in the form of the later ones."""
    old = entry.values
    sides = {
        side: {
            "values": old.get(f"{side}s"),
            "types": old.get(f"{side}_types"),
            "shapes": old.get(f"{side}_shapes"),
        }
        for side in ("input", "output")
    }
    attributes = [{"name": key, "value": old[key]} for key in _EARLIER_ATTRIBUTES if key in old]
    new = {"id": old.get("id"), "name": old.get("name"), "ctrl_deps": old["parent"], "attrs": attributes}
    return Entry({**new, "inputs": sides["input"], "outputs": sides["output"]}, entry.place)


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
        backend=str(attributes.values.get("kernel_backend", "")),
        inputs=list(_tensors(entry, "inputs")),
        outputs=[one for part in _tensors(entry, "outputs") for one in part],
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
        elif kind.startswith(_TENSORS):
            values, shapes = side.fitting("list", (value, shape), _LISTS, "tensors, shapes and strides")
            steps = stride if isinstance(stride, list) else [None] * len(values)
            steps = steps + [None] * (len(values) - len(steps))
            parts = zip(values, shapes, steps, strict=False)
            yield tuple(one for part in parts for one in _reference(side, kind, *part))
        else:
            yield ()


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
    reach = prod(sizes)
    if stride is not None:
        steps = side.fitting("strides", stride, _SHAPE, "a distance for each dimension")
        if len(sizes) != len(steps):
            side.fail(f"shape {shown(shape)} with strides {shown(stride)}", "as many strides as dimensions")
        reach = sum(max(size - 1, 0) * step for size, step in zip(sizes, steps, strict=True)) + 1
    is_whole = kind.rpartition("(")[2].partition(")")[0].startswith(_WHOLE)
    yield Reference(tensor, storage, (offset + reach) * item_bytes, device, item_bytes, is_whole)
