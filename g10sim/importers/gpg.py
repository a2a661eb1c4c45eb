"""Traces of the published G10 simulator.

A directory holds ``kernels.config`` and ``tensors.config``, which that simulator writes about its
workload, and often the profiled kernel times ``cudnnBATCH.txt`` (data resident), ``cudnnBATCHInputPF.txt``
(outputs faulting) and ``cudnnBATCHPF.txt`` (everything faulting); each plain or gzip-compressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from g10sim.errors import TraceError
from g10sim.importers.gpg_kinds import tensor_kinds
from g10sim.trace.check import check_trace
from g10sim.trace.jsonlines import decode_text, read_lines, shown
from g10sim.trace.model import FaultProfile, Kernel, Phase, Tensor, Trace

TICKS_PER_SECOND = 1_200_000_000
"""Clock of the published simulator (its ``GPU_frequency_GHz`` is 1.2): durations count these cycles."""

_TENSOR = re.compile(
    r"tensor(\d{1,18}) Is weight \(global\)\?: ([01]), Size in byte: (\d{1,18}), Range:\d+--\d+", re.ASCII
)
_KERNEL = re.compile(r"Kernel ID: (\d{1,18}), Name: (\w+)", re.ASCII)
_PARENT = re.compile(r"Parent (Layer|OP) ID:(\d{1,18}); Name: ?(\w+)", re.ASCII)
_DURATION = re.compile(r"Execution Time: (\d{1,18})", re.ASCII)
_SHAPE = re.compile(r"\(\d+(,\d+)*\)", re.ASCII)
_TIME = re.compile(r"(\d{1,18}) (\d{1,12}(?:\.\d{1,12})?) ms", re.ASCII)
_RULE = re.compile(r"_+", re.ASCII)


def import_gpg(directory: str | Path, model: str | None = None, batch_size: int | None = None) -> Trace:
    """Read one trace of the published simulator.

    ``model`` and ``batch_size`` default to the names of the directory and of the one above
    (``MODEL/BATCH``). With both page-fault kernel-time files beside it every kernel gets its fault
    profile, in cycles truncated from ms, at least the duration. Orders of kernels, inputs and outputs
    are kept. Raises TraceError naming file, line, what was found and what is allowed.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise TraceError(
            f"{directory}: found no such directory; allowed: one with kernels.config and tensors.config"
        )
    place = directory.resolve()
    if batch_size is None:
        if not re.fullmatch(r"[1-9]\d{0,17}", place.name, re.ASCII):
            raise TraceError(
                f"{directory}: found no batch size in the directory's name; "
                "allowed: a directory MODEL/BATCH, or the batch size as an option"
            )
        batch_size = int(place.name)
    entries = _read_tensors(_find(directory, "tensors.config"))
    kernels = _KernelsFile(_find(directory, "kernels.config"), len(entries)).read()
    kernels = _with_fault_profiles(kernels, directory, batch_size)
    kinds = tensor_kinds([is_global for is_global, _ in entries], kernels)
    tensors = tuple(
        Tensor(index, f"tensor{index}", size_bytes, kinds[index], is_global)
        for index, (is_global, size_bytes) in enumerate(entries)
    )
    trace = Trace(
        model=model or place.parent.name,
        batch_size=batch_size,
        ticks_per_second=TICKS_PER_SECOND,
        tensors=tensors,
        kernels=tuple(kernels),
        origin={"source": "published G10 simulator (platformxlab/G10), kernels.config and tensors.config"},
    )
    check_trace(trace, str(directory))
    return trace


def _find(directory: Path, name: str) -> Path:
    found = _find_optional(directory, name)
    if found is None:
        raise TraceError(f"{directory}: found no {name}; allowed: {name} or {name}.gz")
    return found


def _find_optional(directory: Path, name: str) -> Path | None:
    candidates = (directory / name, directory / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_lines(path, TraceError), 1):
        yield number, decode_text(path, number, line, TraceError)


def _fail(path: Path, number: int, found: str, allowed: str) -> NoReturn:
    raise TraceError(f"{path}: line {number}: found {found}; allowed: {allowed}")


def _read_tensors(path: Path) -> list[tuple[bool, int]]:
    """Read (global, bytes) of every tensor."""
    entries: list[tuple[bool, int]] = []
    for number, text in _texts(path):
        match = _TENSOR.fullmatch(text)
        if match is None:
            allowed = "'tensorN Is weight (global)?: 0|1, Size in byte: BYTES, Range:FROM--TO'"
            _fail(path, number, shown(text), allowed)
        if int(match[1]) != len(entries):
            _fail(path, number, f"tensor{match[1]}", f"tensor{len(entries)}")
        entries.append((match[2] == "1", int(match[3])))
    return entries


@dataclass
class _Draft:
    """A kernel while its lines are being read."""

    id: int
    name: str
    layer: str = ""
    layer_type: str = ""
    duration: int | None = None
    inputs: list[int] | None = None
    outputs: list[int] | None = None


class _KernelsFile:
    """Reads ``kernels.config``: for every kernel its name, parent, time, shape (CNNs only) and tensors."""

    def __init__(self, path: Path, num_tensors: int) -> None:
        self._path = path
        self._num_tensors = num_tensors
        self._number = 0
        self._kernels: list[Kernel] = []
        self._draft: _Draft | None = None

    def read(self) -> list[Kernel]:
        for number, text in _texts(self._path):
            self._number = number
            if self._draft is None:
                self._start(text)
            else:
                self._continue(self._draft, text)
        if self._draft is not None:
            self._number += 1
            self._fail("the end of the file", f"the rest of kernel {self._draft.id}")
        return self._kernels

    def _start(self, text: str) -> None:
        match = _KERNEL.fullmatch(text)
        if match is None or int(match[1]) != len(self._kernels):
            self._fail(shown(text), f"'Kernel ID: {len(self._kernels)}, Name: NAME'")
        self._draft = _Draft(len(self._kernels), match[2])

    def _continue(self, draft: _Draft, text: str) -> None:
        if draft.inputs is None:
            self._head(draft, text)
        elif text == "Output Tensors:" and draft.outputs is None:
            draft.outputs = []
        elif text.startswith("tensor"):
            (draft.inputs if draft.outputs is None else draft.outputs).append(self._tensor(text))
        elif draft.outputs is not None and _RULE.fullmatch(text):
            self._finish(draft, draft.inputs, draft.outputs)
        else:
            allowed = "a tensor, 'Output Tensors:' or the line of underscores after the outputs"
            self._fail(shown(text), allowed)

    def _head(self, draft: _Draft, text: str) -> None:
        if match := _PARENT.fullmatch(text):
            draft.layer, draft.layer_type = f"{match[1].lower()}{match[2]}", match[3]
        elif match := _DURATION.fullmatch(text):
            draft.duration = int(match[1])
        elif text == "Input Tensors:" and draft.duration is not None:
            draft.inputs = []
        elif not _SHAPE.fullmatch(text):
            allowed = (
                "'Parent Layer|OP ID:N; Name:NAME', 'Execution Time: CYCLES', a shape or, "
                "after the time, 'Input Tensors:'"
            )
            self._fail(shown(text), allowed)

    def _tensor(self, text: str) -> int:
        match = _TENSOR.fullmatch(text)
        if match is None:
            self._fail(shown(text), "a line as in tensors.config")
        if int(match[1]) >= self._num_tensors:
            self._fail(f"tensor{match[1]}", f"tensor0 to tensor{self._num_tensors - 1} of tensors.config")
        return int(match[1])

    def _finish(self, draft: _Draft, inputs: list[int], outputs: list[int]) -> None:
        kernel = Kernel(
            id=draft.id,
            name=draft.name,
            duration=draft.duration or 0,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            phase=_phase(draft.name),
            layer=draft.layer,
            layer_type=draft.layer_type,
        )
        self._kernels.append(kernel)
        self._draft = None

    def _fail(self, found: str, allowed: str) -> NoReturn:
        _fail(self._path, self._number, found, allowed)


def _phase(name: str) -> Phase:
    """Phase that a kernel's name tells: the loss and sums of gradients belong to the backward pass."""
    if "Apply_Grad" in name:
        return Phase.OPTIMIZER
    if name.endswith("_Forward"):
        return Phase.FORWARD
    if "_Backward" in name or name in ("makeLoss", "Add_MultiGredient"):
        return Phase.BACKWARD
    return Phase.OTHER


def _with_fault_profiles(kernels: list[Kernel], directory: Path, batch_size: int) -> list[Kernel]:
    names = (f"cudnn{batch_size}InputPF.txt", f"cudnn{batch_size}PF.txt")
    paths = [_find_optional(directory, name) for name in names]
    if paths == [None, None]:
        return kernels
    for path, name in zip(paths, names, strict=True):
        if path is None:
            raise TraceError(
                f"{directory}: found only one page-fault time file; allowed: {name} as well, or neither"
            )
    outputs, everything = (_read_times(path, len(kernels)) for path in paths if path is not None)
    return [
        _with_fault_profile(kernel, *profiled)
        for kernel, *profiled in zip(kernels, outputs, everything, strict=True)
    ]


def _with_fault_profile(kernel: Kernel, outputs_faulting: int, all_faulting: int) -> Kernel:
    outputs_faulting = max(outputs_faulting, kernel.duration)
    profile = FaultProfile(outputs_faulting, max(all_faulting, outputs_faulting))
    return replace(kernel, fault_profile=profile)


def _read_times(path: Path, num_kernels: int) -> list[int]:
    """Read profiled times, in cycles, truncated."""
    times: list[int] = []
    number = 0
    for number, text in _texts(path):
        match = _TIME.fullmatch(text)
        if match is None or int(match[1]) != len(times) or len(times) == num_kernels:
            wanted = (
                f"'{len(times):04d} MILLISECONDS ms'" if len(times) < num_kernels else "the end of the file"
            )
            _fail(path, number, shown(text), wanted)
        times.append(_cycles(match[2]))
    if len(times) != num_kernels:
        _fail(path, number + 1, "the end of the file", f"a time for each of the {num_kernels} kernels")
    return times


def _cycles(milliseconds: str) -> int:
    # In double precision and in this order, as the published simulator does: a time of a whole number of
    # cycles can come out one cycle shorter. All its own durations follow from its times this way.
    return int(float(milliseconds) * TICKS_PER_SECOND / 1000)
