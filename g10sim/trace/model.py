"""The trace of one iteration of a model: kernels that read and write tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple


class TensorKind(StrEnum):
    """Role of a tensor in training (categories of PyTorch's memory tracker, plus workspace)."""

    WEIGHT = "weight"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    OTHER = "other"


class Phase(StrEnum):
    """Part of an iteration that a kernel belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class TimeSource(StrEnum):
    """Sources of a kernel's duration; ``BYTES``: an operator of unknown cost, priced by its bytes."""

    MEASURED = "measured"
    BENCHMARKED = "benchmarked"
    ROOFLINE = "roofline"
    BYTES = "bytes"
    SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A contiguous allocation.

    ``id`` is its index in ``Trace.tensors``; ``size_bytes`` is at least 1. A ``persistent`` tensor
    (weight, optimizer state) keeps its contents from one iteration to the next; any other one is born
    at the first kernel that touches it and is dead after its last use.
    """

    id: int
    name: str
    size_bytes: int
    kind: TensorKind
    persistent: bool


class FaultProfile(NamedTuple):
    """Durations of a kernel measured while its data were faulting, in ticks of the trace's time base.

    ``outputs_faulting``: every input resident, outputs touched first; ``all_faulting``: nothing
    resident. duration <= outputs_faulting <= all_faulting.
    """

    outputs_faulting: int
    all_faulting: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel launch.

    ``id`` is its position in the iteration. ``duration`` (with all data resident) counts ticks of the
    trace's time base. ``inputs`` are read, ``outputs`` written (a tensor updated in place is in both);
    scratch space is an output of kind workspace. ``layer`` is the module path, ``layer_type`` its kind
    ("Conv2d"). ``flops`` and ``moved_bytes`` are 0 where unknown. ``operator_class`` is the class of
    operators whose efficiencies a roofline duration used. ``reads`` says how many times the kernel reads the
    bytes of each input from memory, in the order of ``inputs``; empty: once each.
    """

    id: int
    name: str
    duration: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    phase: Phase = Phase.OTHER
    layer: str = ""
    layer_type: str = ""
    flops: int = 0
    moved_bytes: int = 0
    time_source: TimeSource = TimeSource.MEASURED
    fault_profile: FaultProfile | None = None
    operator_class: str = ""
    reads: tuple[int, ...] = ()

    @property
    def tensors(self) -> tuple[int, ...]:
        """Ids of all tensors it needs resident, inputs first, each once."""
        return tuple(dict.fromkeys(self.inputs + self.outputs))

    def reads_of(self, tensor: int) -> int:
        """Return how many times the kernel reads a tensor's bytes; 0 for one that it does not read."""
        if tensor not in self.inputs:
            return 0
        return self.reads[self.inputs.index(tensor)] if self.reads else 1


@dataclass(frozen=True)
class Trace:
    """One iteration of a model: kernels in launch order and the tensors they touch.

    ``ticks_per_second`` is the time base of all durations. ``origin`` says how the trace was made
    (strings only: command, library versions, GPU name). ``given_ids`` are the ids that tensors have in the
    file, where tensors are numbered otherwise.
    """

    model: str
    batch_size: int
    ticks_per_second: int
    tensors: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    origin: Mapping[str, str] = field(default_factory=dict)
    given_ids: tuple[int, ...] = ()

    def duration_cycles(self, kernel: Kernel, clock_hz: int) -> int:
        """Return a kernel's duration in cycles of a GPU clock, truncated as in the published simulator."""
        return kernel.duration * clock_hz // self.ticks_per_second

    def workspace_bytes(self, kernel: Kernel) -> int:
        """Bytes of scratch space that a kernel uses."""
        outputs = (self.tensors[i] for i in kernel.outputs)
        return sum(tensor.size_bytes for tensor in outputs if tensor.kind is TensorKind.WORKSPACE)

    @cached_property
    def in_order_of_use(self) -> Trace:
        """The trace with tensors numbered by their first use, and unused ones after them, by size.

        Tensors that one kernel uses first come in the order of its inputs, then of its outputs. However a
        trace numbers its tensors, policies that see them in this order treat them alike.
        """
        used = dict.fromkeys(tensor for kernel in self.kernels for tensor in kernel.tensors)
        unused = (tensor for tensor in self.tensors if tensor.id not in used)
        rest = sorted(unused, key=lambda tensor: (tensor.size_bytes, tensor.name))
        order = (*used, *(tensor.id for tensor in rest))
        return self if order == tuple(range(len(order))) else self._numbered(order)

    @property
    def as_given(self) -> Trace:
        """The trace with the tensors numbered as in its file."""
        return replace(self._numbered(self.ids_of_given), given_ids=()) if self.given_ids else self

    @cached_property
    def ids_of_given(self) -> tuple[int, ...]:
        """For each id in the trace's file the id that the tensor has here."""
        found = list(range(len(self.tensors)))
        for number, given in enumerate(self.given_ids):
            found[given] = number
        return tuple(found)

    def _numbered(self, order: Sequence[int]) -> Trace:
        """Return the trace with its tensors in an order of their ids."""
        new = {old: number for number, old in enumerate(order)}
        return replace(
            self,
            tensors=tuple(replace(self.tensors[old], id=number) for old, number in new.items()),
            kernels=tuple(
                replace(
                    kernel,
                    inputs=tuple(map(new.__getitem__, kernel.inputs)),
                    outputs=tuple(map(new.__getitem__, kernel.outputs)),
                )
                for kernel in self.kernels
            ),
            given_ids=tuple(order),
        )

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the ids of the kernels that touch it, ascending."""
        found: list[list[int]] = [[] for _ in self.tensors]
        for kernel in self.kernels:
            for tensor in kernel.tensors:
                found[tensor].append(kernel.id)
        return tuple(tuple(kernels) for kernels in found)

    @cached_property
    def births(self) -> tuple[int, ...]:
        """For each tensor the first kernel that touches it (0 for a tensor that none touches)."""
        return tuple(kernels[0] if kernels else 0 for kernels in self.uses)

    @cached_property
    def deaths(self) -> tuple[int, ...]:
        """For each tensor one more than the last kernel that needs its contents.

        That is the last kernel with the tensor among its inputs; a tensor that is never read dies after
        its birth kernel (the live range of the G10 paper, section 4.1). A persistent tensor never dies:
        its death is the number of kernels.
        """
        last_read = [-1] * len(self.tensors)
        for kernel in self.kernels:
            for tensor in kernel.inputs:
                last_read[tensor] = kernel.id
        return tuple(
            len(self.kernels) if tensor.persistent else max(read, birth) + 1
            for tensor, read, birth in zip(self.tensors, last_read, self.births, strict=True)
        )
