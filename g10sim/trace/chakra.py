"""Traces as Chakra execution traces in protobuf, which ASTRA-sim and other simulators read.

The messages are those of github.com/mlcommons/chakra, schema/protobuf/et_def.proto (package ChakraProtoMsg).
The file is a sequence of them, each behind its length as a varint (chakra's ``encode_message``): first
GlobalMetadata, then a Node for each kernel. Encoding: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

from g10sim.errors import TraceError
from g10sim.files import replacing, writing
from g10sim.trace.model import Device, Kernel, Trace

VERSION = "0.0.4"
"""Version of the schema, as PyTorch's own execution traces name it (1.1.1-chakra.0.0.4)."""
_VARINT, _LENGTH = 0, 2
_COMPUTING = 4
"""COMP_NODE of the enumeration NodeType."""
_ID, _NAME, _TYPE, _CONTROL, _DATA, _START, _DURATION, _INPUTS, _OUTPUTS, _ATTRIBUTE = range(1, 11)
_METADATA_ATTRIBUTE = 2
_INT64, _UINT64, _BOOL, _STRING = 9, 13, 27, 29
_MICROSECONDS_PER_SECOND = 10**6
_CONTINUED, _BITS = 0x80, 7


def save_chakra(trace: Trace, path: Path) -> None:
    """Write a trace as a Chakra execution trace; the file appears whole or not at all. Raises TraceError."""
    with writing(path, TraceError), replacing(path) as temporary, temporary.open("wb") as file:
        for message in chakra_messages(trace):
            file.write(_varint(len(message)) + message)


def chakra_messages(trace: Trace) -> Iterator[bytes]:
    """Yield the encoded messages of a trace.

    Kernels run one after the other (``ctrl_deps``); ``data_deps`` are the kernels that wrote last what one
    reads. Times are whole microseconds, of start and end each rounded down, so that roundings do not add up;
    ``duration_ns`` has them exactly. ``num_ops`` are FLOPs and ``tensor_size`` bytes moved, as ASTRA-sim's
    roofline takes them; inputs and outputs name tensors and their bytes.
    """
    yield _text(1, VERSION) + _attribute("model", _STRING, trace.model, _METADATA_ATTRIBUTE)
    writers: dict[int, int] = {}
    start = Fraction(0)
    scale = Fraction(_MICROSECONDS_PER_SECOND, trace.ticks_per_second)
    for kernel in trace.kernels:
        end = start + kernel.duration * scale
        sources = sorted({writers[tensor] for tensor in kernel.inputs if tensor in writers})
        yield b"".join(_node(trace, kernel, sources, start, end))
        writers.update(dict.fromkeys(kernel.outputs, kernel.id))
        start = end


def _node(trace: Trace, kernel: Kernel, deps: list[int], start: Fraction, end: Fraction) -> Iterator[bytes]:
    yield _number(_ID, kernel.id)
    yield _text(_NAME, kernel.name)
    yield _number(_TYPE, _COMPUTING)
    if kernel.id:
        yield _packed(_CONTROL, [kernel.id - 1])
    if deps:
        yield _packed(_DATA, deps)
    yield _number(_START, int(start))
    yield _number(_DURATION, int(end) - int(start))
    for field, tensors in ((_INPUTS, kernel.inputs), (_OUTPUTS, kernel.outputs)):
        yield _bytes(field, _io(trace, tensors))
    yield _attribute("is_cpu_op", _BOOL, kernel.device is Device.CPU)
    yield _attribute("num_ops", _INT64, kernel.flops)
    yield _attribute("tensor_size", _UINT64, kernel.moved_bytes)
    yield _attribute("duration_ns", _UINT64, int((end - start) * 1000))
    yield _attribute("phase", _STRING, kernel.phase.value)
    yield _attribute("layer", _STRING, kernel.layer)


def _io(trace: Trace, tensors: Iterable[int]) -> bytes:
    """Make an IOInfo: identifiers, sizes in bytes and kinds, as lists in text like PyTorch writes them."""
    found = [trace.tensors[tensor] for tensor in tensors]
    lists = [t.id for t in found], [[t.size_bytes] for t in found], [t.kind.value for t in found]
    return b"".join(_text(field, str(values)) for field, values in enumerate(lists, 1))


def _attribute(name: str, field: int, value: str | int, place: int = _ATTRIBUTE) -> bytes:
    """Make an AttributeProto; fields of the value's types are numbered in the schema."""
    content = _text(field, value) if isinstance(value, str) else _number(field, value)
    return _bytes(place, _text(1, name) + content)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= _CONTINUED:
        parts.append(value & (_CONTINUED - 1) | _CONTINUED)
        value >>= _BITS
    return bytes([*parts, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _bytes(field, b"".join(map(_varint, values)))
