"""The trace of one iteration of a model: kernels that read and write tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain, compress, count
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from g10sim.display import Displayed, rounded_bytes, rounded_seconds
from g10sim.trace.repetition import MadeOnDemand, Repeated, Value, chosen, each, is_identity, named, shifted

Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""Sizes of a kernel by name (``g10sim.trace.work.SIZES``, in that order), those that are not 0."""


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


class Device(StrEnum):
    """Processor that a kernel runs on; LINKS: collectives and transfers between GPUs."""

    GPU = "gpu"
    CPU = "cpu"
    LINKS = "links"


class TimeSource(StrEnum):
    """Sources of a kernel's duration.

    ``BYTES``: an operator of unknown cost, priced by its bytes. ``NONE``: no time is known, and the duration
    only puts the kernel in order.
    """

    MEASURED = "measured"
    BENCHMARKED = "benchmarked"
    ROOFLINE = "roofline"
    BYTES = "bytes"
    SYNTHETIC = "synthetic"
    NONE = "none"


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

    def again(self, number: int, since: int, shift: int) -> Tensor:
        """Return a tensor that is like this one except for its id."""
        return Tensor(number, self.name, self.size_bytes, self.kind, self.persistent)


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
    bytes of each input from memory, in the order of ``inputs``; empty: once each. A kernel on the CPU has a
    duration, or it is an optimizer step and has the number of ``parameters`` that it updates. One on LINKS
    uses tensors on the GPU: a collective, in which each replica sends ``moved_bytes`` to the next, or what a
    stage of a pipeline sends (its inputs) or receives (its outputs). Where an update of the weights
    accumulates the gradients of several micro-batches, ``micro_batch`` counts them from 1; it is 0 for
    kernels that belong to none. ``number_format`` is what it multiplies in and ``sizes`` the rest of what its
    time on another GPU follows from (:class:`g10sim.trace.work.KernelCost`); empty where unknown.
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
    device: Device = Device.GPU
    parameters: int = 0
    micro_batch: int = 0
    number_format: str = ""
    sizes: Sizes = ()
    tensors: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Ids of all tensors it needs on the GPU, inputs first, each once; none if it runs on the CPU."""

    def __post_init__(self) -> None:
        """Note the tensors once: they are asked for again and again."""
        object.__setattr__(self, "tensors", () if self.device is Device.CPU else self.touched)

    @property
    def touched(self) -> tuple[int, ...]:
        """Ids of all tensors it reads or writes, inputs first, each once."""
        return tuple(dict.fromkeys(self.inputs + self.outputs))

    @property
    def block(self) -> str:
        """Block of the model that it belongs to: the path of its layer up to the first number."""
        parts = self.layer.split(".")
        number = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts))
        return ".".join(parts[: number + 1])

    def again(self, number: int, since: int, shift: int) -> Kernel:
        """Return the kernel with another id; ids of tensors from ``since`` on are larger by ``shift``."""
        inputs, outputs = (shifted(ids, since, shift) for ids in (self.inputs, self.outputs))
        return self.with_tensors(inputs, outputs, number)

    def renumbered(self, new: Sequence[int] | Mapping[int, int]) -> Kernel:
        """Return the kernel with other ids of its tensors."""
        inputs, outputs = (tuple([new[old] for old in ids]) for ids in (self.inputs, self.outputs))
        return self.with_tensors(inputs, outputs, self.id)

    def with_tensors(self, inputs: tuple[int, ...], outputs: tuple[int, ...], number: int) -> Kernel:
        """Return the kernel with other tensors and another id."""
        return Kernel(number, self.name, self.duration, inputs, outputs, *_FACTS(self))

    def reads_of(self, tensor: int) -> int:
        """Return how many times the kernel reads a tensor's bytes; 0 for one that it does not read."""
        if tensor not in self.inputs:
            return 0
        return self.reads[self.inputs.index(tensor)] if self.reads else 1


_FACTS = attrgetter(*(one.name for one in fields(Kernel) if one.init and one.default is not MISSING))
"""Facts about a kernel in addition to its id, name, duration and tensors, in order."""


@dataclass(frozen=True, repr=False)
class Trace(Displayed):
    """One iteration of a model: kernels in launch order and the tensors they touch.

    ``ticks_per_second`` is the time base of all durations. ``origin`` says how the trace was made
    (strings only: command, library versions, GPU name). ``given_ids`` are the ids that tensors have in the
    file, where tensors are numbered otherwise. Tensors and kernels of repeated blocks are made on demand
    (:class:`g10sim.trace.repetition.Repeated`).
    """

    model: str
    batch_size: int
    ticks_per_second: int
    tensors: Sequence[Tensor]
    kernels: Sequence[Kernel]
    origin: Mapping[str, str] = field(default_factory=dict)
    given_ids: tuple[int, ...] = ()

    def display(self) -> Mapping[str, str]:
        """Return what the trace is of, and how large it is."""
        seconds = sum(each(self.kernels, attrgetter("duration"))) / self.ticks_per_second
        return {
            "model": self.model,
            "batch size": str(self.batch_size),
            "kernels": f"{len(self.kernels):,}",
            "computing": rounded_seconds(seconds),
            "tensors": f"{len(self.tensors):,}",
            "footprint": rounded_bytes(sum(each(self.tensors, attrgetter("size_bytes")))),
        }

    def duration_cycles(self, kernel: Kernel, clock_hz: int) -> int:
        """Return the cycles that a kernel takes the GPU, truncated as in the published simulator."""
        return kernel.duration * clock_hz // self.ticks_per_second if kernel.device is Device.GPU else 0

    def durations_cycles(self, clock_hz: int) -> list[int]:
        """Return the duration of every kernel in cycles of a GPU clock."""
        return each(self.kernels, lambda kernel: self.duration_cycles(kernel, clock_hz))

    def cpu_cycles(self, kernel: Kernel, clock_hz: int, parameters_per_second: int) -> int:
        """Return the cycles of a GPU clock for which a kernel computes on a CPU; steps are rounded up."""
        if kernel.parameters:
            return -(-kernel.parameters * clock_hz // parameters_per_second)
        return kernel.duration * clock_hz // self.ticks_per_second

    def page_sizes(self, page_bytes: int) -> list[int]:
        """Return the size of every tensor in pages."""
        return each(self.tensors, lambda tensor: -(-tensor.size_bytes // page_bytes))

    @cached_property
    def lasting(self) -> list[bool]:
        """For each tensor whether it is persistent."""
        return each(self.tensors, attrgetter("persistent"))

    @cached_property
    def is_timed(self) -> bool:
        """Return whether durations are times: with source NONE they only put kernels in order."""
        return not any(each(self.kernels, lambda kernel: kernel.time_source is TimeSource.NONE))

    @cached_property
    def cpu_kernels(self) -> tuple[Kernel, ...]:
        """The kernels that run on the CPU."""
        return self._kernels_on(Device.CPU)

    @cached_property
    def link_kernels(self) -> tuple[Kernel, ...]:
        """The kernels on LINKS: collectives, and what stages of a pipeline send and receive."""
        return self._kernels_on(Device.LINKS)

    @cached_property
    def collectives(self) -> tuple[Kernel, ...]:
        """The collectives with other replicas; only designs that partition a training add any."""
        return tuple(kernel for kernel in self.link_kernels if kernel.inputs and kernel.outputs)

    def _kernels_on(self, device: Device) -> tuple[Kernel, ...]:
        found = each(self.kernels, lambda kernel: kernel.device is device)
        return tuple(map(self.kernels.__getitem__, compress(count(), found)))

    @cached_property
    def used_on_cpu(self) -> frozenset[int]:
        """Tensors that kernels on the CPU use."""
        return frozenset(tensor for kernel in self.cpu_kernels for tensor in kernel.touched)

    @cached_property
    def only_on_cpu(self) -> frozenset[int]:
        """Tensors that kernels on the CPU use and none on the GPU: they need no GPU memory."""
        return frozenset(tensor for tensor in self.used_on_cpu if not self.uses[tensor])

    @cached_property
    def written(self) -> frozenset[int]:
        """Tensors that kernels write."""
        return frozenset(chain.from_iterable(named(self.kernels, attrgetter("outputs"))))

    @cached_property
    def written_on_gpu(self) -> frozenset[int]:
        """Tensors that kernels write which need them on the GPU."""
        outputs = named(self.kernels, lambda kernel: tuple(set(kernel.outputs).intersection(kernel.tensors)))
        return frozenset(chain.from_iterable(outputs))

    @cached_property
    def rewritten(self) -> frozenset[int]:
        """Tensors that kernels write which have contents already: any, except for the one that makes them."""
        births, lasts = self.births, self.lasting
        outputs = named(self.kernels, attrgetter("outputs"))
        return frozenset(
            tensor
            for kernel, tensors in enumerate(outputs)
            for tensor in tensors
            if lasts[tensor] or births[tensor] != kernel
        )

    @cached_property
    def frozen(self) -> frozenset[int]:
        """Weights that no kernel writes, in a forward pass (inference) or a step with its optimizer (LoRA).

        Where phases are not told, or the optimizer was left out, weights may be written elsewhere.
        """
        phases = set(each(self.kernels, attrgetter("phase")))
        if Phase.OPTIMIZER not in phases and phases != {Phase.FORWARD}:
            return frozenset()
        kinds = each(self.tensors, lambda tensor: tensor.persistent and tensor.kind is TensorKind.WEIGHT)
        return frozenset(tensor for tensor in compress(count(), kinds) if tensor not in self.written)

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
        used = dict.fromkeys(chain.from_iterable(named(self.kernels, attrgetter("touched"))))
        unused = (self.tensors[number] for number in range(len(self.tensors)) if number not in used)
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
        return _inverse(self.given_ids) or tuple(range(len(self.tensors)))

    def _numbered(self, order: Sequence[int]) -> Trace:
        """Return the trace with its tensors in an order of their ids; items are made on demand."""
        new, kernels = _inverse(order), self.kernels
        if isinstance(kernels, _Renumbered):
            new, kernels = tuple([new[number] for number in kernels.new]), kernels.kernels
        if not is_identity(new):
            kernels = _Renumbered(kernels, new)
        return replace(self, tensors=chosen(self.tensors, order), kernels=kernels, given_ids=tuple(order))

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the ids of the kernels that need it on the GPU, ascending."""
        found: list[list[int]] = [[] for _ in range(len(self.tensors))]
        for kernel, tensors in enumerate(named(self.kernels, attrgetter("tensors"))):
            for tensor in tensors:
                found[tensor].append(kernel)
        return tuple(tuple(kernels) for kernels in found)

    @cached_property
    def births(self) -> tuple[int, ...]:
        """For each tensor the first kernel that touches it (0 for a tensor that none touches)."""
        found = {tensor: uses[0] for tensor, uses in enumerate(self.uses) if uses}
        for kernel in self.cpu_kernels:
            for tensor in kernel.touched:
                found[tensor] = min(found.get(tensor, kernel.id), kernel.id)
        return tuple(found.get(tensor, 0) for tensor in range(len(self.tensors)))

    @cached_property
    def deaths(self) -> tuple[int, ...]:
        """For each tensor one more than the last kernel that needs its contents.

        That is the last kernel with the tensor among its inputs; a tensor that is never read dies after
        its birth kernel (the live range of the G10 paper, section 4.1). A persistent tensor never dies:
        its death is the number of kernels.
        """
        last_read = [-1] * len(self.tensors)
        for kernel, inputs in enumerate(named(self.kernels, attrgetter("inputs"))):
            for tensor in inputs:
                last_read[tensor] = kernel
        return tuple(
            len(self.kernels) if lasts else max(read, birth) + 1
            for lasts, read, birth in zip(self.lasting, last_read, self.births, strict=True)
        )


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the place of each number in an order of all."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


class _Renumbered(MadeOnDemand[Kernel]):
    """Kernels with other ids of their tensors."""

    def __init__(self, kernels: Sequence[Kernel], new: Sequence[int]) -> None:
        super().__init__(kernels)
        self.kernels, self.new = kernels, new

    def _make(self, number: int) -> Kernel:
        return self.kernels[number].renumbered(self.new)

    def each(self, value: Callable[[Kernel], Value]) -> list[Value]:
        """Return a value of every kernel: see :func:`g10sim.trace.repetition.each`."""
        return each(self.kernels, value)

    def named(self, names: Callable[[Kernel], tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        """Yield ids of tensors of every kernel: see :func:`g10sim.trace.repetition.named`."""
        if isinstance(self.kernels, Repeated):
            return self.kernels.named(names, np.array(self.new, dtype=object))  # many name the same number
        new = self.new
        return (tuple([new[old] for old in ids]) for ids in named(self.kernels, names))
