"""The trace file format: version 1, suffix ``.g10t``, described in ``docs/trace-format.md``."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from g10sim.errors import TraceError
from g10sim.text import shown
from g10sim.trace.check import Problem, problems
from g10sim.trace.jsonlines import Fields, RecordReader, encode_line, hash_lines, write_lines
from g10sim.trace.model import FaultProfile, Kernel, Phase, Tensor, TensorKind, TimeSource, Trace

FORMAT = "g10sim-trace"
VERSION = 1

_HEADER = Fields(
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
_TENSOR = Fields(
    {"tensor": int, "name": str, "size_bytes": int, "kind": str},
    {"persistent": (bool, False)},
)
_KERNEL = Fields(
    {"kernel": int, "name": str, "duration": int, "inputs": list, "outputs": list},
    {
        "phase": (str, Phase.OTHER.value),
        "layer": (str, ""),
        "layer_type": (str, ""),
        "flops": (int, 0),
        "moved_bytes": (int, 0),
        "time_source": (str, TimeSource.MEASURED.value),
        "fault_profile": (list, None),
        "operator_class": (str, ""),
        "reads": (list, ()),
    },
)
# The keys of a line stand in the order of the fields of the class.
_TENSOR_FIELDS, _KERNEL_FIELDS = itemgetter(*_TENSOR.types), itemgetter(*_KERNEL.types)
_TENSOR_VALUES, _KERNEL_VALUES = (
    attrgetter(*(field.name for field in fields(kind))) for kind in (Tensor, Kernel)
)
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
    header["sha256"] = hash_lines([encode_line(header), *body])
    if trace.origin:
        header["origin"] = dict(sorted(trace.origin.items()))
    write_lines(path, [encode_line(header), *body], TraceError)


def trace_hash(trace: Trace) -> str:
    """SHA-256 (hexadecimal) of everything in a trace but its origin: equal where simulations are equal."""
    return hash_lines(chain([encode_line(_identity(trace))], _body_lines(trace)))


def load_trace(path: str | Path) -> Trace:
    """Read a trace, gzip-compressed or plain text, and check it.

    Raises TraceError naming file, line, what was found and what is allowed.
    """
    path = Path(path)
    reader = _Reader(path, TraceError)
    # Reading makes a million objects without one cycle; searching them again and again costs a fifth more.
    with without_cycle_collection():
        trace = reader.read()
    for problem in problems(trace):
        raise TraceError(f"{path}: line {_line_of(problem, trace)}: {problem}")
    reader.check_hash(lambda: trace_hash(trace))
    return trace


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Keep Python's cycle collector out while open."""
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


def _body_lines(trace: Trace) -> Iterator[str]:
    for tensor in trace.tensors:
        yield _line(_TENSOR, _TENSOR_VALUES(tensor))
    for kernel in trace.kernels:
        yield _line(_KERNEL, _KERNEL_VALUES(kernel))


def _line(keys: Fields, values: Iterable[Any]) -> str:
    """Write a record without the keys that have their default value; required keys have none."""
    missing, pairs = object(), zip(keys.types, values, strict=True)
    return encode_line({key: value for key, value in pairs if value != keys.defaults.get(key, missing)})


class _Reader(RecordReader):
    """Reads one trace file line by line."""

    def read(self) -> Trace:
        header = self._header()
        tensors = tuple(self._tensor() for _ in range(header["tensors"]))
        kernels = tuple(self._kernel() for _ in range(header["kernels"]))
        self.finish(f"{len(tensors)} tensors and {len(kernels)} kernels")
        return Trace(
            model=header["model"],
            batch_size=header["batch_size"],
            ticks_per_second=header["ticks_per_second"],
            tensors=tensors,
            kernels=kernels,
            origin=header["origin"],
        )

    def _header(self) -> dict[str, Any]:
        header = self.header(FORMAT, (VERSION,), _HEADER, counts=("tensors", "kernels"))
        for key, value in header["origin"].items():
            if type(value) is not str:
                self.fail(f"origin.{key}: found {shown(value)}; allowed: a text")
        return header

    def _tensor(self) -> Tensor:
        found = self.record("tensor", _TENSOR)
        found["kind"] = self.choice("kind", found["kind"], _KINDS)
        return Tensor(*_TENSOR_FIELDS(found))

    def _kernel(self) -> Kernel:
        found = self.record("kernel", _KERNEL)
        found["inputs"] = self.integers("inputs", found["inputs"])
        found["outputs"] = self.integers("outputs", found["outputs"])
        found["phase"] = self.choice("phase", found["phase"], _PHASES)
        found["time_source"] = self.choice("time_source", found["time_source"], _TIME_SOURCES)
        if found["reads"]:
            found["reads"] = self.integers("reads", found["reads"])
        if found["fault_profile"] is not None:
            found["fault_profile"] = self._profile(found["fault_profile"])
        return Kernel(*_KERNEL_FIELDS(found))

    def _profile(self, values: list[Any]) -> FaultProfile:
        numbers = self.integers("fault_profile", values)
        if len(numbers) != 2:
            self.fail(f"fault_profile: found {shown(values)}; allowed: [outputs_faulting, all_faulting]")
        return FaultProfile(*numbers)
