"""The trace file format: version 1, suffix ``.g10t``, described in ``docs/trace-format.md``."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from g10sim.errors import TraceError
from g10sim.trace.check import Problem, problems
from g10sim.trace.jsonlines import decode_line, decode_text, encode_line, read_lines, shown, write_lines
from g10sim.trace.model import FaultProfile, Kernel, Phase, Tensor, TensorKind, TimeSource, Trace

FORMAT = "g10sim-trace"
VERSION = 1

_Choice = TypeVar("_Choice", bound=StrEnum)


class _Fields:
    """Keys that a line may have: their types, which are required, and the values of the others."""

    def __init__(self, required: dict[str, type], optional: dict[str, tuple[type, Any]]) -> None:
        self.types = required | {key: kind for key, (kind, _) in optional.items()}
        self.required = frozenset(required)
        self.defaults = {key: default for key, (_, default) in optional.items()}


_HEADER = _Fields(
    {
        "format": str,
        "version": int,
        "model": str,
        "batch_size": int,
        "ticks_per_second": int,
        "tensors": int,
        "kernels": int,
    },
    {"sha256": (str, ""), "origin": (dict, {})},
)
_TENSOR = _Fields(
    {"tensor": int, "name": str, "size_bytes": int, "kind": str},
    {"persistent": (bool, False)},
)
_KERNEL = _Fields(
    {"kernel": int, "name": str, "duration": int, "inputs": list, "outputs": list},
    {
        "phase": (str, Phase.OTHER.value),
        "layer": (str, ""),
        "layer_type": (str, ""),
        "flops": (int, 0),
        "moved_bytes": (int, 0),
        "time_source": (str, TimeSource.MEASURED.value),
        "fault_profile": (list, None),
    },
)
_TYPE_NAMES = {
    str: "a text",
    int: "an integer",
    bool: "true or false",
    list: "a list of integers",
    dict: "an object of texts",
}
_KINDS = {kind.value: kind for kind in TensorKind}
_PHASES = {phase.value: phase for phase in Phase}
_TIME_SOURCES = {source.value: source for source in TimeSource}


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace: equal traces give equal bytes, and the file appears whole or not at all.

    Raises TraceError for a trace that breaks a rule of ``check`` and for a path that cannot be written.
    """
    path = Path(path)
    for problem in problems(trace):
        raise TraceError(f"{path}: not written: {problem}")
    body = list(_body_lines(trace))
    header = _identity(trace)
    header["sha256"] = _hash(header, body)
    if trace.origin:
        header["origin"] = dict(sorted(trace.origin.items()))
    write_lines(path, [encode_line(header), *body], TraceError)


def trace_hash(trace: Trace) -> str:
    """SHA-256 (hexadecimal) of everything in a trace but its origin: equal where simulations are equal."""
    return _hash(_identity(trace), _body_lines(trace))


def load_trace(path: str | Path) -> Trace:
    """Read a trace, gzip-compressed or plain text, and check it.

    Raises TraceError naming file, line, what was found and what is allowed.
    """
    path = Path(path)
    reader = _Reader(path)
    with _no_cycle_collection():
        trace = reader.read()
    for problem in problems(trace):
        raise TraceError(f"{path}: line {_line_of(problem, trace)}: {problem}")
    if reader.expected_hash not in ("", reader.found_hash):
        # The same contents written with other spacing or key order are still the same contents.
        found = trace_hash(trace)
        if reader.expected_hash != found:
            raise TraceError(
                f"{path}: line 1: found contents with sha256 {found}; "
                f"allowed: {shown(reader.expected_hash)}, as the header says (changed after it was written)"
            )
    return trace


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    # Reading makes a million objects without one cycle; searching them again and again costs a fifth more.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _line_of(problem: Problem, trace: Trace) -> int:
    if problem.subject == "trace":
        return 1
    return 2 + problem.index + (len(trace.tensors) if problem.subject == "kernel" else 0)


def _identity(trace: Trace) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": trace.model,
        "batch_size": trace.batch_size,
        "ticks_per_second": trace.ticks_per_second,
        "tensors": len(trace.tensors),
        "kernels": len(trace.kernels),
    }


def _hash(identity: dict[str, Any], body: Iterator[str] | list[str]) -> str:
    digest = hashlib.sha256(encode_line(identity).encode("ascii"))
    for line in body:
        digest.update(line.encode("ascii"))
    return digest.hexdigest()


def _body_lines(trace: Trace) -> Iterator[str]:
    for tensor in trace.tensors:
        yield encode_line(_tensor_record(tensor))
    for kernel in trace.kernels:
        yield encode_line(_kernel_record(kernel))


def _tensor_record(tensor: Tensor) -> dict[str, Any]:
    record: dict[str, Any] = {
        "tensor": tensor.id,
        "name": tensor.name,
        "size_bytes": tensor.size_bytes,
        "kind": tensor.kind.value,
    }
    if tensor.persistent:
        record["persistent"] = True
    return record


def _kernel_record(kernel: Kernel) -> dict[str, Any]:
    record: dict[str, Any] = {
        "kernel": kernel.id,
        "name": kernel.name,
        "duration": kernel.duration,
        "inputs": kernel.inputs,
        "outputs": kernel.outputs,
    }
    optional = {
        "phase": kernel.phase.value,
        "layer": kernel.layer,
        "layer_type": kernel.layer_type,
        "flops": kernel.flops,
        "moved_bytes": kernel.moved_bytes,
        "time_source": kernel.time_source.value,
    }
    record.update((key, value) for key, value in optional.items() if value != _KERNEL.defaults[key])
    if kernel.fault_profile is not None:
        record["fault_profile"] = [kernel.fault_profile.outputs_faulting, kernel.fault_profile.all_faulting]
    return record


class _Reader:
    """Reads one file line by line; knows the place for messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = read_lines(path, TraceError)
        self._number = 0
        self._digest = hashlib.sha256()
        self._accepted_shapes: set[tuple[object, ...]] = set()
        self.expected_hash = ""

    @property
    def found_hash(self) -> str:
        """Hash of the lines as they stand in the file; valid after reading."""
        return self._digest.hexdigest()

    def read(self) -> Trace:
        header = self._header()
        tensors = tuple(self._tensor() for _ in range(header["tensors"]))
        kernels = tuple(self._kernel() for _ in range(header["kernels"]))
        extra = next(self._lines, None)
        if extra is not None:
            self._number += 1
            text = decode_text(self._path, self._number, extra, TraceError)
            promised = f"{len(tensors)} tensors and {len(kernels)} kernels"
            self._fail(f"found {shown(text)}; allowed: nothing (the header promises {promised})")
        return Trace(
            model=header["model"],
            batch_size=header["batch_size"],
            ticks_per_second=header["ticks_per_second"],
            tensors=tensors,
            kernels=kernels,
            origin=header["origin"],
        )

    def _header(self) -> dict[str, Any]:
        record = self._next("a header", hashed=False)
        if record.get("format") != FORMAT:
            self._fail(f"found format {shown(record.get('format'))}; allowed: {FORMAT!r}")
        version = record.get("version")
        if type(version) is not int or version != VERSION:
            self._fail(f"found version {shown(version)}; allowed: {VERSION}")
        header = self._fields(record, _HEADER)
        for key in ("tensors", "kernels"):
            if header[key] < 0:
                self._fail(f"{key}: found {header[key]}; allowed: 0 or more")
        for key, value in header["origin"].items():
            if type(value) is not str:
                self._fail(f"origin.{key}: found {shown(value)}; allowed: a text")
        self.expected_hash = header["sha256"]
        identity = {key: header[key] for key in record if key not in ("sha256", "origin")}
        self._digest.update(encode_line(identity).encode("ascii"))
        return header

    def _tensor(self) -> Tensor:
        fields = self._fields(self._next("tensor"), _TENSOR)
        kind = self._choice("kind", fields["kind"], _KINDS)
        return Tensor(fields["tensor"], fields["name"], fields["size_bytes"], kind, fields["persistent"])

    def _kernel(self) -> Kernel:
        fields = self._fields(self._next("kernel"), _KERNEL)
        profile = fields["fault_profile"]
        return Kernel(
            fields["kernel"],
            fields["name"],
            fields["duration"],
            self._integers("inputs", fields["inputs"]),
            self._integers("outputs", fields["outputs"]),
            self._choice("phase", fields["phase"], _PHASES),
            fields["layer"],
            fields["layer_type"],
            fields["flops"],
            fields["moved_bytes"],
            self._choice("time_source", fields["time_source"], _TIME_SOURCES),
            None if profile is None else self._profile(profile),
        )

    def _next(self, wanted: str, *, hashed: bool = True) -> dict[str, Any]:
        line = next(self._lines, None)
        self._number += 1
        if line is None:
            self._fail(f"found the end of the file; allowed: {wanted}")
        record = decode_line(self._path, self._number, line, TraceError)
        if hashed:
            self._digest.update(line)
            if wanted not in record:
                self._fail(f"found {shown(record)}; allowed: a {wanted} (the header promises more)")
        return record

    def _fields(self, record: dict[str, Any], allowed: _Fields) -> dict[str, Any]:
        # Lines of one file have few shapes, so each shape is judged once.
        shape = (*record, *map(type, record.values()))
        if shape not in self._accepted_shapes:
            self._check_fields(record, allowed)
            self._accepted_shapes.add(shape)
        return allowed.defaults | record

    def _check_fields(self, record: dict[str, Any], allowed: _Fields) -> None:
        types = allowed.types
        for key, value in record.items():
            if key not in types:
                self._fail(f"found unknown key {shown(key)}; allowed: {', '.join(types)}")
            if type(value) is not types[key]:
                self._fail(f"{key}: found {shown(value)}; allowed: {_TYPE_NAMES[types[key]]}")
        for key in types:
            if key in allowed.required and key not in record:
                self._fail(f"found no {key}; allowed: {key} with {_TYPE_NAMES[types[key]]}")

    def _choice(self, key: str, value: str, allowed: Mapping[str, _Choice]) -> _Choice:
        found = allowed.get(value)
        if found is None:
            self._fail(f"{key}: found {shown(value)}; allowed: {', '.join(allowed)}")
        return found

    def _integers(self, key: str, values: list[Any]) -> tuple[int, ...]:
        for value in values:
            if type(value) is not int:
                self._fail(f"{key}: found {shown(value)} in a list; allowed: integers")
        return tuple(values)

    def _profile(self, values: list[Any]) -> FaultProfile:
        numbers = self._integers("fault_profile", values)
        if len(numbers) != 2:
            self._fail(f"fault_profile: found {shown(values)}; allowed: [outputs_faulting, all_faulting]")
        return FaultProfile(*numbers)

    def _fail(self, message: str) -> NoReturn:
        raise TraceError(f"{self._path}: line {self._number}: {message}")
