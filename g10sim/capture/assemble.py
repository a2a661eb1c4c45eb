"""Makes a trace of what was recorded: numbers tensors, names their kinds and gives kernels their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture.gpu import NANOSECONDS_PER_SECOND, GpuTimingSpec
from g10sim.capture.recorder import KernelDraft, Recorder, StorageRecord
from g10sim.trace.model import Kernel, Phase, Tensor, TensorKind, TimeSource, Trace


def assemble(
    recorder: Recorder,
    gpu: GpuTimingSpec,
    *,
    model: str,
    batch_size: int,
    origin: Mapping[str, str],
    times: Mapping[int, tuple[int, TimeSource]] = MappingProxyType({}),
) -> Trace:
    """Make the trace of a recorded step, timed for a GPU. Raises ConfigError as the GPU does.

    ``times`` has the kernels, by position, whose time in nanoseconds is known from elsewhere.
    """
    used = {record: None for draft in recorder.kernels for record in (*draft.reads, *draft.writes)}
    _settle_kinds(recorder, used)
    resident = [record for record in recorder.storages if record.persistent and not record.on_host]
    order = list(dict.fromkeys([*resident, *used]))
    numbers = {record: number for number, record in enumerate(order)}
    names = _unique_names(order)
    tensors = tuple(
        Tensor(number, names[number], record.size_bytes, record.kind or TensorKind.OTHER, record.persistent)
        for record, number in numbers.items()
    )
    kernels = tuple(
        _kernel(number, draft, numbers, gpu, times) for number, draft in enumerate(recorder.kernels)
    )
    trace = Trace(model, batch_size, NANOSECONDS_PER_SECOND, tensors, kernels)
    found = {
        "gpu": gpu.name,
        "time_source": _time_sources(kernels) if times else TimeSource.ROOFLINE.value,
        "peak_live_bytes": str(peak_live_bytes(trace)),
        "allocated_peak_bytes": str(recorder.allocated_peak_bytes),
    }
    if recorder.unpriced:
        found["operators_priced_by_bytes"] = ", ".join(
            f"{n} x{k}" for n, k in sorted(recorder.unpriced.items())
        )
    return Trace(model, batch_size, NANOSECONDS_PER_SECOND, tensors, kernels, {**origin, **found})


def _time_sources(kernels: Sequence[Kernel]) -> str:
    counts = Counter(kernel.time_source.value for kernel in kernels)
    return ", ".join(f"{source} x{count}" for source, count in counts.most_common())


def _settle_kinds(recorder: Recorder, used: Mapping[StorageRecord, None]) -> None:
    """Give a kind and a name to every storage that nobody described.

    Born in the forward pass and used in the backward pass: an activation. From before the step and still
    there: persistent (constants of the model). From before the step and gone since: an input. All else:
    temporary.
    """
    kept = {
        record
        for draft in recorder.kernels
        if draft.phase is Phase.BACKWARD
        for record in (*draft.reads, *draft.writes)
    }
    for draft in recorder.kernels:
        for record in draft.writes:
            record.name = record.name or _produced_name(draft)
    for record in used:
        if record.kind is not None:
            continue
        if record.born_in is None:
            record.persistent = record.alive
            record.kind = TensorKind.OTHER if record.alive else TensorKind.INPUT
        elif not record.written:
            record.kind = TensorKind.INPUT
        else:
            kept_for_backward = record.born_in is Phase.FORWARD and record in kept
            record.kind = TensorKind.ACTIVATION if kept_for_backward else TensorKind.TEMPORARY
        record.name = record.name or record.kind.value


def _produced_name(draft: KernelDraft) -> str:
    suffix = "" if draft.phase is Phase.FORWARD else f".{draft.phase.value}"
    return f"{draft.layer.path or draft.layer.kind}{suffix}:{draft.operator}"


def _unique_names(records: list[StorageRecord]) -> list[str]:
    """Names with a number behind each that several storages share."""
    shared = Counter(record.name for record in records)
    seen: Counter[str] = Counter()
    names = []
    for record in records:
        name = record.name
        if shared[name] > 1:
            seen[name] += 1
            name = f"{name}#{seen[name]}"
        names.append(name)
    return names


def _kernel(
    number: int,
    draft: KernelDraft,
    numbers: Mapping[StorageRecord, int],
    gpu: GpuTimingSpec,
    times: Mapping[int, tuple[int, TimeSource]],
) -> Kernel:
    roofline = TimeSource.ROOFLINE if draft.known_cost else TimeSource.BYTES
    duration, source = times[number] if number in times else (gpu.duration_ns(draft.cost), roofline)
    return Kernel(
        id=number,
        name=draft.operator,
        duration=duration,
        inputs=tuple(numbers[record] for record in draft.reads),
        outputs=tuple(numbers[record] for record in draft.writes),
        phase=draft.phase,
        layer=draft.layer.path,
        layer_type=draft.layer.kind,
        flops=draft.flops,
        moved_bytes=draft.moved_bytes,
        time_source=source,
        operator_class=draft.operator_class.value,
    )
