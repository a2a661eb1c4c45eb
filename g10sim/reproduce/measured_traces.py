"""Traces of measured rows: captured, built, or as they ship."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field

from g10sim.capture.manifest import MANIFEST, read_manifest
from g10sim.config.data import data_path
from g10sim.config.quantities import PositiveBytes, PositiveDuration, Spec
from g10sim.experiment.program import code_hash
from g10sim.files import data_hash, write_json
from g10sim.trace.format import save_trace
from g10sim.trace.model import TensorKind, Trace
from g10sim.trace.synthetic import TraceBuilder
from g10sim.units import PICOSECONDS_PER_SECOND

SHIPPED = Path("traces", "measured")
"""Directory of the captures that come with g10sim."""
_MADE_BY = "made_by.json"

Capture: TypeAlias = Callable[[Sequence[str], Path], None]
"""Captures a step by the words of ``g10sim trace capture`` and writes its trace."""


class ScanSpec(Spec):
    """Kernels that use tensors one after the other, each once an iteration: a stream over a link."""

    tensors: int = Field(ge=1, le=100_000)
    """number of tensors, and of kernels"""
    size: PositiveBytes
    """size of each tensor"""
    kernel: PositiveDuration
    """time of each kernel with its tensor on the GPU"""
    use: Literal["read", "first_touch"] = "read"
    """read: tensors lie below the GPU; first_touch: new ones are written"""

    def trace(self, name: str) -> Trace:
        """Return the trace; its time base is picoseconds."""
        builder = TraceBuilder(name, ticks_per_second=PICOSECONDS_PER_SECOND)
        reads = self.use == "read"
        kind = TensorKind.WEIGHT if reads else TensorKind.ACTIVATION
        for number in range(self.tensors):
            tensor = [builder.tensor(f"tensor{number}", self.size, kind, persistent=reads)]
            builder.kernel("Scan", self.kernel, tensor if reads else [], [] if reads else tensor)
        return builder.build()


class RowTraces:
    """The traces of rows: as they ship, else below a directory, captured once for all runs of the same code.

    Without a ``capture`` only those that ship are there; with ``force`` all are captured now.
    """

    def __init__(self, directory: Path, capture: Capture | None, *, force: bool = False) -> None:
        self._directory = directory
        self._capture = capture
        self._made_by: dict[str, str] = {} if force else _read(directory / _MADE_BY)
        self._made: dict[tuple[str, ...], Path] = {}
        self._shipped = {} if capture and force else shipped()

    def captured(self, name: str, command: str, gpu: str) -> Path | None:
        """Return the trace of a command, ``NAME.g10t`` if it is made; None if it neither ships nor is made.

        Rows whose commands differ in the GPU alone have one trace. Raises ConfigError and TraceError as
        capturing does.
        """
        words = tuple(shlex.split(command))
        if words in self._shipped or self._capture is None:
            return self._shipped.get(words)
        if words not in self._made:
            path, key = self._directory / f"{name}.g10t", data_hash([words, code_hash("capture")])
            if self._made_by.get(path.name) != key or not path.is_file():
                self._directory.mkdir(parents=True, exist_ok=True)
                self._capture([*words, "--gpu", gpu], path)
                self._made_by[path.name] = key
                write_json(self._directory / _MADE_BY, self._made_by)
            self._made[words] = path
        return self._made[words]

    def written(self, name: str, trace: Trace) -> Path:
        """Write a trace as ``NAME.g10t`` and return its path."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{name}.g10t"
        save_trace(trace, path)
        return path


def shipped() -> Mapping[tuple[str, ...], Path]:
    """Return the traces that ship, by the words of the command that made each, without those of its GPU."""
    directory = data_path(*SHIPPED.parts)
    entries = read_manifest(directory / MANIFEST).traces
    found = {}
    for entry in entries:
        gpu = entry.arguments.index("--gpu")
        found[(*entry.arguments[:gpu], *entry.arguments[gpu + 2 :])] = directory / entry.file
    return found


def kernel_shares(trace: Trace, most: int = 4) -> str:
    """Say what share of a trace's kernel time classes of operators have, in percent, the largest first.

    Empty for a trace whose kernels have no class.
    """
    total = Counter[str]()
    for kernel in trace.kernels:
        total[kernel.operator_class or "not told"] += kernel.duration
    if list(total) == ["not told"]:
        return ""
    whole = max(total.total(), 1)
    said = ", ".join(f"{name} {ticks / whole:.0%}" for name, ticks in total.most_common(most))
    return f"kernel time: {said}"


def _read(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
