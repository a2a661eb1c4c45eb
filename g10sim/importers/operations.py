"""Operators of PyTorch by name, and traces of operators that another tool recorded.

Operators have the storages that they read and write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from g10sim.errors import TraceError
from g10sim.trace.check import check_trace
from g10sim.trace.model import Device, Kernel, Phase, Tensor, TensorKind, TimeSource, Trace
from g10sim.trace.work import COMPUTING, KernelCost


def aten(names: str) -> frozenset[str]:
    """Return names, separated by spaces, with the namespace of PyTorch's own operators."""
    return frozenset(f"aten::{name}" for name in names.split())


def short_name(name: str) -> str:
    """Return the name of an operator without its namespace (``add_`` for ``aten::add_``)."""
    return name.rpartition("::")[2]


ALLOCATIONS = aten("empty empty_like empty_strided empty_permuted new_empty new_empty_strided")
"""Operators that return a new storage without writing to it."""

OVERWRITING = aten("copy_ fill_ zero_ _foreach_zero_")
"""In-place operators that do not read what they replace."""

TICKS_PER_SECOND = 1_000_000_000
NO_KERNELS = ALLOCATIONS | aten("detach_ set_ resize_ record_stream requires_grad_ _local_scalar_dense item")
"""Operators that allocate, or change what a tensor refers to, and move nothing."""
_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer."


@dataclass(eq=False, slots=True)
class Storage:
    """An allocation; an ``external`` one is from before the recording.

    ``role`` is its kind where the optimizer does not tell it; None leaves it to :func:`build_trace`.
    ``is_freed``: it is released in the recording, as a profile tells. ``item_bytes`` are those of an element,
    where they are known.
    """

    size_bytes: int
    external: bool = False
    role: TensorKind | None = None
    is_freed: bool = False
    item_bytes: int = 1


@dataclass(frozen=True, slots=True)
class ByHand:
    """Tensors from before the recording, by number, that a user says are weights, or inputs."""

    weights: frozenset[int] = frozenset()
    inputs: frozenset[int] = frozenset()


BY_ITSELF = ByHand()
"""Nothing said by hand."""


@dataclass(slots=True)
class Operation:
    """One kernel of the trace: an operator that did work.

    ``holds`` are storages that it does not touch and that are released after it: inputs of the kernel, of
    which it moves nothing. ``cost`` is its work, where its time was not measured.
    """

    name: str
    phase: Phase
    reads: dict[Storage, None] = field(default_factory=dict)
    writes: dict[Storage, None] = field(default_factory=dict)
    holds: dict[Storage, None] = field(default_factory=dict)
    duration_ns: int = 0
    device: Device = Device.GPU
    parameters: int = 0
    cost: KernelCost | None = None

    @property
    def touched(self) -> dict[Storage, None]:
        """Storages that must be there while it runs."""
        return self.reads | self.writes | self.holds

    @property
    def moved_bytes(self) -> int:
        """Bytes of the storages it reads and of those it writes."""
        return sum(storage.size_bytes for storage in (*self.reads, *self.writes))


def phase_of(names: Sequence[str]) -> Phase:
    """Tell the phase from the names of the annotations and operators around an operator."""
    if any(name.startswith(_OPTIMIZER) for name in names):
        return Phase.OPTIMIZER
    if any(name.startswith(_BACKWARD) for name in names):
        return Phase.BACKWARD
    return Phase.FORWARD


def forget_reads_of_nothing(operations: Sequence[Operation]) -> set[Storage]:
    """Remove reads of storages that have not been written yet; return the storages that are written."""
    written: set[Storage] = set()
    for operation in operations:
        operation.reads, operation.holds = (
            {storage: None for storage in found if storage.external or storage in written}
            for found in (operation.reads, operation.holds)
        )
        written.update(operation.writes)
    return written


def build_trace(
    operations: Sequence[Operation],
    path: Path,
    model: str | None,
    batch_size: int,
    origin: Mapping[str, str],
    *,
    time_source: TimeSource = TimeSource.MEASURED,
    unused: Sequence[Storage] = (),
    by_hand: ByHand = BY_ITSELF,
) -> Trace:
    """Make and check the trace of a file: number the storages that are used and tell their kinds.

    A storage from before the recording is a weight where the optimizer and another phase use it, an optimizer
    state where only the optimizer does, a buffer where it is updated otherwise, else what its role says, or
    an input; ``by_hand`` overrules that. One from the recording: a gradient (made in the backward pass for
    the optimizer), an activation (made in the forward pass, used in the backward pass), else temporary. Reads
    of contents that were never written are dropped. ``unused`` storages are persistent and used by no kernel.
    ``time_source`` is that of kernels whose work is not known; the trace's origin tells all.
    Raises TraceError for numbers by hand of other tensors.
    """
    written = forget_reads_of_nothing(operations)
    phases: dict[Storage, dict[Phase, None]] = {}
    for operation in operations:
        for storage in operation.touched:
            phases.setdefault(storage, {})[operation.phase] = None
    tensors, numbers = [], {}
    phases.update((storage, {}) for storage in unused)
    _check_by_hand(by_hand, [storage.external for storage in phases], path)
    for number, (storage, found) in enumerate(phases.items()):
        kind = _kind(storage, list(found), storage in written)
        if number in by_hand.weights | by_hand.inputs:
            kind = TensorKind.WEIGHT if number in by_hand.weights else TensorKind.INPUT
        persistent = storage.external and kind is not TensorKind.INPUT
        tensors.append(Tensor(number, f"{kind.value}{number}", storage.size_bytes, kind, persistent))
        numbers[storage] = number
    kernels = tuple(_kernel(number, one, numbers, time_source) for number, one in enumerate(operations))
    sources = dict.fromkeys([time_source, *sorted({kernel.time_source for kernel in kernels})])
    origin = {**origin, "time_source": ", ".join(sources)}
    trace = Trace(model or path.stem, batch_size, TICKS_PER_SECOND, tuple(tensors), kernels, origin)
    check_trace(trace, str(path))
    return trace


def _check_by_hand(by_hand: ByHand, external: Sequence[bool], path: Path) -> None:
    for option, numbers in (("--weights", by_hand.weights), ("--inputs", by_hand.inputs)):
        for number in sorted(numbers):
            if number in by_hand.weights & by_hand.inputs:
                raise TraceError.at(f"{path}: --weights, --inputs", f"{number} in both", "in one of them")
            if number >= len(external) or not external[number]:
                raise TraceError(
                    f"{path}: {option}: found {number}; allowed: numbers of tensors from before the step, "
                    f"{ranges(one for one, is_external in enumerate(external) if is_external) or 'none'}"
                )


def ranges(numbers: Iterable[int]) -> str:
    """Write ascending numbers in short (``1-3, 7``)."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _kind(storage: Storage, phases: Sequence[Phase], written: bool) -> TensorKind:
    if storage.external:
        if Phase.OPTIMIZER in phases:
            return TensorKind.OPTIMIZER_STATE if phases == [Phase.OPTIMIZER] else TensorKind.WEIGHT
        if written and not storage.is_freed:
            return TensorKind.BUFFER
        return TensorKind.INPUT if storage.is_freed else storage.role or TensorKind.INPUT
    if storage.role is not None:
        return storage.role
    if phases[0] is Phase.BACKWARD and Phase.OPTIMIZER in phases:
        return TensorKind.GRADIENT
    if phases[0] is Phase.FORWARD and Phase.BACKWARD in phases:
        return TensorKind.ACTIVATION
    return TensorKind.TEMPORARY


def _kernel(number: int, operation: Operation, numbers: Mapping[Storage, int], source: TimeSource) -> Kernel:
    kernel = Kernel(
        id=number,
        name=operation.name,
        duration=operation.duration_ns,
        inputs=tuple(numbers[storage] for storage in operation.reads | operation.holds),
        outputs=tuple(numbers[storage] for storage in operation.writes),
        phase=operation.phase,
        moved_bytes=operation.moved_bytes,
        time_source=source,
        device=operation.device,
        parameters=operation.parameters,
    )
    cost = operation.cost
    if cost is None:
        return kernel
    return replace(
        kernel,
        flops=cost.flops,
        time_source=TimeSource.ROOFLINE if cost.operator_class in COMPUTING else source,
        operator_class=cost.operator_class.value,
        number_format=cost.number_format.value,
        sizes=cost.sizes,
    )
