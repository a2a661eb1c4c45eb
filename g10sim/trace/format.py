"""The trace file format: versions 1 and 2, suffix ``.g10t``, described in ``docs/trace-format.md``."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from enum import StrEnum
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from sys import intern
from typing import Any

from g10sim.errors import TraceError, shown
from g10sim.trace import model
from g10sim.trace.check import Problem, problems
from g10sim.trace.jsonlines import Fields, RecordReader, encode_line, hash_lines, write_lines
from g10sim.trace.repetition import Block, Item, Value, blocks_of, joined
from g10sim.trace.work import SIZES, NumberFormat

_log = logging.getLogger(__name__)

FORMAT = "g10sim-trace"
VERSION = 1
REPEATING = 2
"""The version of files in which blocks repeat; all others are written as version 1."""

# A few lines must not fill the memory of a computer.
_MOST_REPEATED = 10**8
_MOST_SHARED = 2**17
_YOUNG_OBJECTS = 100_000
"""Objects made, less those freed, between two searches for cycles in a simulation."""

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
_TENSOR = Fields({"tensor": int, "name": str, "size_bytes": int, "kind": str}, {"persistent": (bool, False)})
_KERNEL = Fields(
    {"kernel": int, "name": str, "duration": int, "inputs": list, "outputs": list},
    {
        "phase": (str, model.Phase.OTHER.value),
        "layer": (str, ""),
        "layer_type": (str, ""),
        "flops": (int, 0),
        "moved_bytes": (int, 0),
        "time_source": (str, model.TimeSource.MEASURED.value),
        "fault_profile": (list, None),
        "operator_class": (str, ""),
        "reads": (list, ()),
        "device": (str, model.Device.GPU.value),
        "parameters": (int, 0),
        "micro_batch": (int, 0),
        "number_format": (str, ""),
        "sizes": (dict, {}),
    },
)
_REPEATED_TENSORS = Fields({"repeat_tensors": int, "times": int}, {})
_REPEATED_KERNELS = Fields({"repeat_kernels": int, "times": int, "since": int, "shift": int}, {})
# The keys of a line stand in the order of the fields of the class.
_TENSOR_FIELDS, _KERNEL_FIELDS = itemgetter(*_TENSOR.types), itemgetter(*_KERNEL.types)
_TENSOR_VALUES, _KERNEL_VALUES = (
    attrgetter(*(field.name for field in fields(kind) if field.init)) for kind in (model.Tensor, model.Kernel)
)
_KINDS = {kind.value: kind for kind in model.TensorKind}
_WORDS: Mapping[str, Mapping[str, StrEnum]] = {
    key: {one.value: one for one in kind}
    for key, kind in (("phase", model.Phase), ("time_source", model.TimeSource), ("device", model.Device))
}
_FORMATS = {number_format.value: number_format for number_format in NumberFormat}
_MOST_SIZE = 2**63 - 1


def save_trace(trace: model.Trace, path: str | Path) -> None:
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


def trace_hash(trace: model.Trace) -> str:
    """SHA-256 (hexadecimal) of everything in a trace but its origin: equal where simulations are equal."""
    return hash_lines(chain([encode_line(_identity(trace))], _body_lines(trace)))


def load_trace(path: str | Path) -> model.Trace:
    """Read a trace, gzip-compressed or plain text, and check it.

    Raises TraceError naming file, line, what was found and what is allowed.
    """
    path = Path(path)
    _log.info("reads %s", path)
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


@contextmanager
def rare_cycle_collection() -> Iterator[None]:
    """Let Python's cycle collector search seldom while open.

    A simulation makes and frees objects all the time, and few cycles: those of trials that have ended.
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _line_of(problem: Problem, trace: model.Trace) -> int:
    if problem.subject == "trace":
        return 1
    if problem.subject == "tensor":
        return 2 + _line_in(trace.tensors, problem.index)
    return 2 + _line_in(trace.tensors, len(trace.tensors)) + _line_in(trace.kernels, problem.index)


def _line_in(items: Sequence[Item], number: int) -> int:
    """Return the number of lines before the one of an item, of those that describe a sequence."""
    lines = 0
    for block in blocks_of(items):
        if number < block.count:
            return lines + number % len(block.items)
        number -= block.count
        lines += len(block.items) + (block.times > 1)
    return lines


def _identity(trace: model.Trace) -> dict[str, Any]:
    repeats = any(block.times > 1 for items in (trace.tensors, trace.kernels) for block in blocks_of(items))
    return {
        "format": FORMAT,
        "version": REPEATING if repeats else VERSION,
        "model": trace.model,
        "batch_size": trace.batch_size,
        "ticks_per_second": trace.ticks_per_second,
        "tensors": len(trace.tensors),
        "kernels": len(trace.kernels),
    }


def _body_lines(trace: model.Trace) -> Iterator[str]:
    for tensors in blocks_of(trace.tensors):
        for tensor in tensors.items:
            yield _line(_TENSOR, _TENSOR_VALUES(tensor))
        if tensors.times > 1:
            yield _line(_REPEATED_TENSORS, (len(tensors.items), tensors.times))
    for kernels in blocks_of(trace.kernels):
        for kernel in kernels.items:
            *facts, sized = _KERNEL_VALUES(kernel)
            yield _line(_KERNEL, (*facts, dict(sized)))
        if kernels.times > 1:
            values = len(kernels.items), kernels.times, kernels.since, kernels.shift
            yield _line(_REPEATED_KERNELS, values)


def _line(keys: Fields, values: Iterable[Any]) -> str:
    """Write a record without the keys that have their default value; required keys have none."""
    missing, pairs = object(), zip(keys.types, values, strict=True)
    return encode_line({key: value for key, value in pairs if value != keys.defaults.get(key, missing)})


_REPEATING_TEXTS = ("name", "layer", "layer_type", "operator_class", "number_format")


class _Reader(RecordReader):
    """Reads one trace file line by line."""

    def read(self) -> model.Trace:
        self._known: dict[Any, Any] = {}
        header = self.header(FORMAT, (VERSION, REPEATING), _HEADER, counts=("tensors", "kernels"))
        for key, value in header["origin"].items():
            if type(value) is not str:
                self.fail(f"origin.{key}: found {shown(value)}; allowed: a text")
        self._repeats = header["version"] == REPEATING
        tensors = self._items(header["tensors"], "tensor", _REPEATED_TENSORS, self._tensor)
        kernels = self._items(header["kernels"], "kernel", _REPEATED_KERNELS, self._kernel)
        self.finish(f"{len(tensors)} tensors and {len(kernels)} kernels")
        facts = header["model"], header["batch_size"], header["ticks_per_second"]
        return model.Trace(*facts, tensors, kernels, header["origin"])

    def _items(
        self, promised: int, subject: str, repetition: Fields, read: Callable[[dict[str, Any]], Item]
    ) -> Sequence[Item]:
        """Read the lines of all tensors or of all kernels."""
        blocks: list[Block[Item]] = []
        items: list[Item] = []
        count, again = 0, f"repeat_{subject}s"
        while count < promised:
            record = self.entry(subject, *([again] if self._repeats and items else []))
            if subject in record:
                items.append(read(record))
                count += 1
                continue
            block = self._block(self.fields(record, repetition), again, items, promised - count)
            first = len(items) - len(block.items)
            blocks += [Block(tuple(items[:first])), block]
            count += block.count - len(block.items)
            items = []
        return joined(blocks, items)

    def _block(self, found: dict[str, Any], again: str, items: Sequence[Item], promised: int) -> Block[Item]:
        """Return the block that the last lines make, of at most that many items more."""
        size, times = found[again], found["times"]
        if not 1 <= size <= len(items):
            self.fail(f"{again}: found {size}; allowed: 1 to {len(items)}, lines that no other line repeats")
        most = 1 + min(promised, _MOST_REPEATED) // size
        if most < 2:
            self.fail(f"{again}: found {size}; allowed: at most {promised}, as the header promises no more")
        if not 2 <= times <= most:
            self.fail(f"times: found {times}; allowed: 2 to {most}, by what the header promises")
        for key in ("since", "shift"):
            if found.get(key, 0) < 0:
                self.fail(f"{key}: found {found[key]}; allowed: 0 or more")
        return Block(tuple(items[len(items) - size :]), times, found.get("since", 0), found.get("shift", 0))

    def _tensor(self, record: dict[str, Any]) -> model.Tensor:
        found = self.fields(record, _TENSOR)
        found["kind"] = self.choice("kind", found["kind"], _KINDS)
        return model.Tensor(*_TENSOR_FIELDS(found))

    def _kernel(self, record: dict[str, Any]) -> model.Kernel:
        found = self.fields(record, _KERNEL)
        for key in ("inputs", "outputs"):
            found[key] = self._shared(self.integers(key, found[key]))
        found["duration"] = self._shared(found["duration"])
        for key, words in _WORDS.items():
            found[key] = self.choice(key, found[key], words)
        if found["reads"] != ():
            found["reads"] = self.integers("reads", found["reads"])
        if found["fault_profile"] is not None:
            found["fault_profile"] = self._profile(found["fault_profile"])
        if found["number_format"]:
            self.choice("number_format", found["number_format"], _FORMATS)
        found["sizes"] = self._shared(self._sizes(found["sizes"])) if found["sizes"] else ()
        for key in _REPEATING_TEXTS:
            found[key] = intern(found[key])
        kernel = model.Kernel(*_KERNEL_FIELDS(found))
        object.__setattr__(kernel, "tensors", self._shared(kernel.tensors))
        return kernel

    def _sizes(self, values: dict[str, Any]) -> model.Sizes:
        for name, value in values.items():
            if name not in SIZES:
                self.fail(f"sizes: found {shown(name)}; allowed: {', '.join(SIZES)}")
            if type(value) is not int or not 1 <= value <= _MOST_SIZE:
                self.fail(f"sizes.{name}: found {shown(value)}; allowed: a whole number from 1 to 2^63-1")
        return tuple((name, values[name]) for name in SIZES if name in values)

    def _shared(self, value: Value) -> Value:
        """Return what equals a value and was read before, if that was among the first: kernels are alike."""
        known: dict[Value, Value] = self._known
        return known.setdefault(value, value) if len(known) < _MOST_SHARED else known.get(value, value)

    def _profile(self, values: list[Any]) -> model.FaultProfile:
        numbers = self.integers("fault_profile", values)
        if len(numbers) != 2:
            self.fail(f"fault_profile: found {shown(values)}; allowed: [outputs_faulting, all_faulting]")
        return model.FaultProfile(*numbers)
