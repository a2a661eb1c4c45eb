"""Tables of algorithms: other ways to compute a kernel, with their times and scratch space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from g10sim.config.document import load_document
from g10sim.config.presets import validated
from g10sim.config.quantities import Bytes, Duration, Spec
from g10sim.grouping import grouped
from g10sim.trace.model import Kernel, Phase, Tensor, TensorKind, Trace
from g10sim.units import PICOSECONDS_PER_SECOND, format_duration


class ChoiceSpec(Spec):
    """One way to compute a kernel, which takes a ``time``, or a multiple of the trace's as ``slowdown``."""

    name: str = Field(min_length=1)
    """name of the algorithm"""
    time: Duration | None = None
    """duration of the kernel with it"""
    slowdown: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    """in place of time: over that of the trace"""
    workspace: Bytes
    """scratch space of the kernel with it"""

    @model_validator(mode="after")
    def _has_one_time(self) -> Self:
        if (self.time is None) == (self.slowdown is None):
            found = "neither" if self.time is None else "both"
            raise ValueError(f"time: found {found} of time and slowdown; allowed: one of the two")
        return self


class KernelAlgorithmsSpec(Spec):
    """Ways to compute the kernels of one layer and phase (all of them, or those of one name)."""

    layer: str = Field(min_length=1)
    """module of the kernel"""
    phase: Phase = Phase.FORWARD
    """forward or backward"""
    kernel: str | None = None
    """name of the kernel; none: any of that layer and phase"""
    workspace: Bytes | None = None
    """scratch space of the trace's own algorithm; none: what the trace has"""
    choices: tuple[ChoiceSpec, ...] = Field(min_length=1)
    """algorithms besides the trace's own"""


class TableSpec(Spec):
    """A file of algorithms."""

    algorithms: tuple[KernelAlgorithmsSpec, ...]
    """by layer, phase and kernel"""


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a kernel: duration in ticks of the trace, scratch space in bytes."""

    name: str
    duration: int
    workspace_bytes: int


Table = Mapping[int, Sequence[Algorithm]]
"""For kernels that have a choice all their algorithms, the trace's own first, then by time."""


def load_table(path: Path, trace: Trace) -> Table:
    """Read a file of algorithms for a trace.

    Raises ConfigError naming file and line for a kernel that the trace does not have, and for an
    algorithm that is faster than the trace's own, which is by definition the fastest.
    """
    document = load_document(path)
    table = validated(TableSpec, document.data, document)
    by_place = grouped(((kernel.layer, kernel.phase), kernel) for kernel in trace.kernels)
    found: dict[int, Sequence[Algorithm]] = {}
    for number, entry in enumerate(table.algorithms):
        where = ("algorithms", number)
        kernels = by_place.get((entry.layer, entry.phase), ())
        kernels = [kernel for kernel in kernels if entry.kernel in (None, kernel.name)]
        if len(kernels) != 1:
            names = f" with name '{entry.kernel}'" if entry.kernel is not None else ""
            raise document.error(
                (*where, "layer"),
                f"found {len(kernels)} {entry.phase.value} kernels of layer '{entry.layer}'{names} in "
                f"'{trace.model}'; allowed: layer, phase and kernel that name one",
            )
        try:
            found[kernels[0].id] = _algorithms(trace, kernels[0], entry)
        except ValueError as error:
            raise document.error((*where, "choices"), str(error)) from None
    return found


def _algorithms(trace: Trace, kernel: Kernel, entry: KernelAlgorithmsSpec) -> Sequence[Algorithm]:
    workspace = trace.workspace_bytes(kernel) if entry.workspace is None else entry.workspace
    own = Algorithm("trace", kernel.duration, workspace)
    others = []
    for choice in entry.choices:
        ticks = ceil(kernel.duration * Fraction(choice.slowdown or 1))
        if choice.time is not None:
            ticks = int(Fraction(choice.time * trace.ticks_per_second, PICOSECONDS_PER_SECOND))
            if ticks < kernel.duration:
                own_time = -(-kernel.duration * PICOSECONDS_PER_SECOND // trace.ticks_per_second)
                raise ValueError(
                    f"algorithm '{choice.name}' takes {format_duration(choice.time)}; allowed: at least the "
                    f"trace's own time, {format_duration(own_time)}"
                )
        others.append(Algorithm(choice.name, ticks, choice.workspace))
    return (own, *sorted(others, key=lambda algorithm: (algorithm.duration, algorithm.workspace_bytes)))


def fastest_within(algorithms: Sequence[Algorithm], workspace_bytes: float) -> Algorithm:
    """Return the fastest algorithm with no more scratch space; where none is, the fastest with the least."""
    return min(algorithms, key=lambda one: (max(one.workspace_bytes, workspace_bytes), one.duration))


def with_algorithms(trace: Trace, table: Table, room: Callable[[int], float]) -> Trace:
    """Return the trace with the fastest algorithms that have room, in bytes, for their scratch space."""
    tensors, kernels = list(trace.tensors), list(trace.kernels)
    for number, algorithms in table.items():
        kernel, algorithm = kernels[number], fastest_within(algorithms, room(number))
        size = algorithm.workspace_bytes
        if (algorithm.duration, size) == (kernel.duration, trace.workspace_bytes(kernel)):
            continue
        outputs = [t for t in kernel.outputs if trace.tensors[t].kind is not TensorKind.WORKSPACE]
        if size:
            outputs.append(len(tensors))
            name = f"{kernel.layer or kernel.name}.{algorithm.name}.workspace"
            tensors.append(Tensor(len(tensors), name, size, TensorKind.WORKSPACE, persistent=False))
        kernels[number] = replace(
            kernel, duration=algorithm.duration, outputs=tuple(outputs), fault_profile=None
        )
    return replace(trace, tensors=tuple(tensors), kernels=tuple(kernels))
