"""The trace file format: version 1, suffix ``.g10t``, described in ``docs/trace-format.md``."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from g10sim.errors import TraceError
from g10sim.trace.check import Problem, problems
from g10sim.trace.jsonlines import Fields, RecordReader, encode_line, hash_lines, shown, write_lines
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
    },
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
    with _no_cycle_collection():
        trace = reader.read()
    for problem in problems(trace):
        raise TraceError(f"{path}: line {_line_of(problem, trace)}: {problem}")
    reader.check_hash(lambda: trace_hash(trace))
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
    if kernel.operator_class:
        record["operator_class"] = kernel.operator_class
    return record


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
        header = self.header(FORMAT, VERSION, _HEADER, counts=("tensors", "kernels"))
        for key, value in header["origin"].items():
            if type(value) is not str:
                self.fail(f"origin.{key}: found {shown(value)}; allowed: a text")
        return header

    def _tensor(self) -> Tensor:
        fields = self.record("tensor", _TENSOR)
        kind = self.choice("kind", fields["kind"], _KINDS)
        return Tensor(fields["tensor"], fields["name"], fields["size_bytes"], kind, fields["persistent"])

    def _kernel(self) -> Kernel:
        fields = self.record("kernel", _KERNEL)
        profile = fields["fault_profile"]
        return Kernel(
            fields["kernel"],
            fields["name"],
            fields["duration"],
            self.integers("inputs", fields["inputs"]),
            self.integers("outputs", fields["outputs"]),
            self.choice("phase", fields["phase"], _PHASES),
            fields["layer"],
            fields["layer_type"],
            fields["flops"],
            fields["moved_bytes"],
            self.choice("time_source", fields["time_source"], _TIME_SOURCES),
            None if profile is None else self._profile(profile),
            fields["operator_class"],
        )

    def _profile(self, values: list[Any]) -> FaultProfile:
        numbers = self.integers("fault_profile", values)
        if len(numbers) != 2:
            self.fail(f"fault_profile: found {shown(values)}; allowed: [outputs_faulting, all_faulting]")
        return FaultProfile(*numbers)
