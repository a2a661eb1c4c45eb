"""Traces of the published G10 simulator.

A directory holds ``kernels.config`` and ``tensors.config``, which that simulator writes about its
workload, and often the profiled kernel times ``cudnnBATCH.txt`` (data resident), ``cudnnBATCHInputPF.txt``
(outputs faulting) and ``cudnnBATCHPF.txt`` (everything faulting); each plain or gzip-compressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from g10sim.errors import TraceError, shown
from g10sim.grouping import grouped
from g10sim.trace.check import check_trace
from g10sim.trace.jsonlines import decode_text, read_lines
from g10sim.trace.model import FaultProfile, Kernel, Phase, Tensor, TensorKind, Trace

TICKS_PER_SECOND = 1_200_000_000
"""Clock of the published simulator (its ``GPU_frequency_GHz`` is 1.2): durations count these cycles."""

_LOAD_DATA = "LoadData"
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
    (``MODEL/BATCH``). With both page-fault kernel-time files next to it every kernel gets its fault
    profile, in cycles truncated from ms, at least the duration. Orders of kernels, inputs and outputs
    are kept. Raises TraceError naming file, line, what was found and what is allowed.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise TraceError.at(directory, "no such directory", "one with kernels.config and tensors.config")
    place = directory.resolve()
    if batch_size is None:
        if not re.fullmatch(r"[1-9]\d{0,17}", place.name, re.ASCII):
            allowed = "a directory MODEL/BATCH, or the batch size as an option"
            raise TraceError.at(directory, "no batch size in the directory's name", allowed)
        batch_size = int(place.name)
    entries, known = _read_tensors(_find(directory, "tensors.config"))
    kernels = _read_kernels(_find(directory, "kernels.config"), known)
    kernels = _with_fault_profiles(kernels, directory, batch_size)
    kinds = _tensor_kinds([is_global for is_global, _ in entries], kernels)
    tensors = tuple(
        Tensor(index, f"tensor{index}", size_bytes, kinds[index], is_global)
        for index, (is_global, size_bytes) in enumerate(entries)
    )
    origin = {"source": "published G10 simulator (platformxlab/G10), kernels.config and tensors.config"}
    name = model or place.parent.name
    trace = Trace(name, batch_size, TICKS_PER_SECOND, tensors, tuple(kernels), origin)
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


class _Lines:
    """The lines of a text file, read one by one; knows the line for messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self.texts = self._read()

    def _read(self) -> Iterator[str]:
        for number, line in enumerate(read_lines(self._path, TraceError), 1):
            self._number = number
            yield decode_text(self._path, number, line, TraceError)

    def next_of(self, kernel: int) -> str:
        """Return the next line, which has to be about a kernel."""
        text = next(self.texts, None)
        if text is None:
            self.fail_at_end(f"the rest of kernel {kernel}")
        return text

    def fail(self, found: str, allowed: str) -> NoReturn:
        """Raise TraceError for the line read last."""
        raise TraceError(f"{self._path}: line {self._number}: found {found}; allowed: {allowed}")

    def fail_at_end(self, allowed: str) -> NoReturn:
        """Raise TraceError for a file that ends too early."""
        self._number += 1
        self.fail("the end of the file", allowed)


def _read_tensors(path: Path) -> tuple[list[tuple[bool, int]], dict[str, int]]:
    """Read (global, bytes) of every tensor, and its number by its line, which kernels repeat."""
    lines = _Lines(path)
    entries: list[tuple[bool, int]] = []
    known: dict[str, int] = {}
    for text in lines.texts:
        match = _TENSOR.fullmatch(text)
        if match is None:
            allowed = "'tensorN Is weight (global)?: 0|1, Size in byte: BYTES, Range:FROM--TO'"
            lines.fail(shown(text), allowed)
        if int(match[1]) != len(entries):
            lines.fail(f"tensor{match[1]}", f"tensor{len(entries)}")
        known[text] = len(entries)
        entries.append((match[2] == "1", int(match[3])))
    return entries, known


def _read_kernels(path: Path, known: Mapping[str, int]) -> list[Kernel]:
    """Read ``kernels.config``: for every kernel its name, parent, time, shape (CNNs only) and tensors."""
    lines = _Lines(path)
    kernels: list[Kernel] = []
    for text in lines.texts:
        match = _KERNEL.fullmatch(text)
        if match is None or int(match[1]) != len(kernels):
            lines.fail(shown(text), f"'Kernel ID: {len(kernels)}, Name: NAME'")
        kernels.append(_read_kernel(lines, len(kernels), match[2], known))
    return kernels


def _read_kernel(lines: _Lines, number: int, name: str, known: Mapping[str, int]) -> Kernel:
    layer = layer_type = ""
    duration: int | None = None
    while (text := lines.next_of(number)) != "Input Tensors:" or duration is None:
        if match := _PARENT.fullmatch(text):
            layer, layer_type = f"{match[1].lower()}{match[2]}", match[3]
        elif match := _DURATION.fullmatch(text):
            duration = int(match[1])
        elif not _SHAPE.fullmatch(text):
            allowed = (
                "'Parent Layer|OP ID:N; Name:NAME', 'Execution Time: CYCLES', a shape or, "
                "after the time, 'Input Tensors:'"
            )
            lines.fail(shown(text), allowed)
    inputs, outputs = _read_references(lines, number, known)
    return Kernel(number, name, duration, inputs, outputs, _phase(name), layer, layer_type)


def _read_references(
    lines: _Lines, number: int, known: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    inputs: list[int] = []
    outputs: list[int] = []
    found = inputs
    while True:
        text = lines.next_of(number)
        if text in known:
            found.append(known[text])
        elif text == "Output Tensors:" and found is inputs:
            found = outputs
        elif text.startswith("tensor"):
            found.append(_reference(lines, text, len(known)))
        elif found is outputs and _RULE.fullmatch(text):
            return tuple(inputs), tuple(outputs)
        else:
            allowed = "a tensor, 'Output Tensors:' or the line of underscores after the outputs"
            lines.fail(shown(text), allowed)


def _reference(lines: _Lines, text: str, num_tensors: int) -> int:
    match = _TENSOR.fullmatch(text)
    if match is None:
        lines.fail(shown(text), "a line as in tensors.config")
    if int(match[1]) >= num_tensors:
        lines.fail(f"tensor{match[1]}", f"tensor0 to tensor{num_tensors - 1} of tensors.config")
    return int(match[1])


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
    """Return the kernels with their fault profiles where both files of times are there."""
    names = (f"cudnn{batch_size}InputPF.txt", f"cudnn{batch_size}PF.txt")
    paths = [_find_optional(directory, name) for name in names]
    if paths == [None, None]:
        return kernels
    for path, name in zip(paths, names, strict=True):
        if path is None:
            raise TraceError.at(directory, "only one page-fault time file", f"{name} as well, or neither")
    outputs, everything = (_read_times(path, len(kernels)) for path in paths if path is not None)
    return list(map(_with_fault_profile, kernels, outputs, everything))


def _with_fault_profile(kernel: Kernel, outputs_faulting: int, all_faulting: int) -> Kernel:
    outputs_faulting = max(outputs_faulting, kernel.duration)
    profile = FaultProfile(outputs_faulting, max(all_faulting, outputs_faulting))
    return replace(kernel, fault_profile=profile)


def _read_times(path: Path, num_kernels: int) -> list[int]:
    """Read profiled times, in cycles, truncated."""
    lines = _Lines(path)
    times: list[int] = []
    for text in lines.texts:
        match = _TIME.fullmatch(text)
        if match is None or int(match[1]) != len(times) or len(times) == num_kernels:
            another = f"'{len(times):04d} MILLISECONDS ms'"
            lines.fail(shown(text), another if len(times) < num_kernels else "the end of the file")
        times.append(_cycles(match[2]))
    if len(times) != num_kernels:
        lines.fail_at_end(f"a time for each of the {num_kernels} kernels")
    return times


def _cycles(milliseconds: str) -> int:
    # In double precision and in this order, as the published simulator does: a time of a whole number of
    # cycles can come out one cycle shorter. All its own durations follow from its times this way.
    return int(float(milliseconds) * TICKS_PER_SECOND / 1000)


def _tensor_kinds(is_global: Sequence[bool], kernels: Sequence[Kernel]) -> list[TensorKind]:
    """Tell the kind of every tensor from how the kernels use it.

    - weight: global;
    - workspace: see ``_num_workspaces``;
    - input: read before any kernel wrote it (token ids, masks, constants: the published simulator lets
      them appear at their first use), or written by a ``LoadData`` kernel;
    - gradient: written first in the backward pass and read by an ``Apply_Grad`` kernel;
    - activation: written first in the forward pass and read by some kernel;
    - temporary: everything else (gradients of activations, statistics that nothing reads).
    """
    writers = grouped((tensor, kernel) for kernel in kernels for tensor in kernel.outputs)
    readers = grouped((tensor, kernel) for kernel in kernels for tensor in kernel.inputs)
    uses = [_Use(writers.get(tensor, []), readers.get(tensor, [])) for tensor in range(len(is_global))]
    kinds = [TensorKind.WEIGHT if weight else _kind(use) for weight, use in zip(is_global, uses, strict=True)]
    workspaces = _num_workspaces(is_global, uses)
    return kinds[: len(kinds) - workspaces] + [TensorKind.WORKSPACE] * workspaces


class _Use(NamedTuple):
    """Kernels that write and read a tensor, in launch order."""

    writers: list[Kernel]
    readers: list[Kernel]


def _kind(use: _Use) -> TensorKind:
    """Kind of a tensor that is neither weight nor workspace."""
    writers, readers = use
    if readers and (not writers or readers[0].id <= writers[0].id):
        return TensorKind.INPUT
    if writers and writers[0].name.startswith(_LOAD_DATA):
        return TensorKind.INPUT
    if writers and readers and writers[0].phase is Phase.FORWARD:
        return TensorKind.ACTIVATION
    if any(reader.phase is Phase.OPTIMIZER for reader in readers):
        return TensorKind.GRADIENT
    return TensorKind.TEMPORARY


def _num_workspaces(is_global: Sequence[bool], uses: Sequence[_Use]) -> int:
    """Count the tensors at the end that are cuDNN workspaces.

    The published simulator numbers them after all others, in launch order, and lists them as first output
    of their only kernel: they are the longest run of last ids that nothing reads, each the first output of
    exactly one kernel, these kernels ascending.
    """
    count = 0
    following = None
    for tensor in reversed(range(len(is_global))):
        writers, readers = uses[tensor]
        if is_global[tensor] or readers or len(writers) != 1:
            break
        writer = writers[0]
        if writer.outputs[0] != tensor or (following is not None and writer.id >= following):
            break
        following = writer.id
        count += 1
    return count
