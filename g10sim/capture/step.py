"""Runs a step on tensors without values and makes a trace of what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.analysis.gpus import NANOSECONDS_PER_SECOND, GpuTimingSpec, load_gpu, timed
from g10sim.analysis.throughput import FLOPS_BY_FORMAT, unusual_formats
from g10sim.capture.devices import ONE_BY_ONE, fake_device, known_values, require_cuda, uncompiled
from g10sim.capture.fused import one_sequence_a_sample
from g10sim.capture.generation import Generation
from g10sim.capture.lifetimes import hold_what_nodes_keep, hold_what_outlives, keep_what_grows
from g10sim.capture.measured import RecordedCall, Times, keep_in, measured_times
from g10sim.capture.options import StepOptions, step_options
from g10sim.capture.own import OwnStep, Steps, is_step
from g10sim.capture.recorder import KernelDraft, Recorder, StorageRecord
from g10sim.capture.recording import record_step, settle_kinds
from g10sim.capture.refusal import refusal
from g10sim.capture.repeated_layers import generated_trace
from g10sim.capture.workload import Model, Step
from g10sim.errors import ConfigError
from g10sim.trace.model import Kernel, Phase, Tensor, TensorKind, TimeSource, Trace

_POOLING, _POOLING_BACKWARD = "max_pool2d_with_indices", "max_pool2d_with_indices_backward"

Build = Callable[[], Any]
"""Returns a model and its inputs, a ``Model``, or a step that can be called, or a generator of steps."""


def capture_step(
    build: Build,
    *,
    gpu: str | Path | GpuTimingSpec = "a100-40g",
    model: str = "model",
    batch_size: int | None = None,
    origin: Mapping[str, str] | None = None,
    measure: bool = False,
    **options: Any,
) -> Trace:
    """Capture a step in its steady state, without a GPU and without weights.

    ``build`` is called on fake tensors (shapes without values) and returns a model and its inputs: a mapping
    for ``model(**inputs)``, a sequence for ``model(*inputs)`` or one tensor. A training step takes the
    output's ``loss``, or the sum of its tensors that have a gradient, then backward, the optimizer's step and
    ``zero_grad``. ``build`` may also return its own step: a callable without arguments, or a generator
    that yields after every step. A step is run once before the recording, so that the optimizer's states
    exist. Durations come from the roofline of ``gpu`` (a bundled name, a YAML file or a description), with
    ``measure`` from the CUDA device of this computer, where it can tell. ``batch_size`` defaults to the first
    dimension of the first input; ``origin`` is added to what the trace says about its making; ``options`` are
    the fields of ``StepOptions``.

    Raises ConfigError for a wrong option, TraceError for a model whose step cannot be captured.
    """
    timing = load_gpu(gpu)
    how = step_options(options)
    how.check_gpu(timing.name, timing.peak)
    kept: list[RecordedCall] = []
    if measure:
        require_cuda()
        if how.generate is not None:
            raise ConfigError("--measure: found with --generate; allowed: one of the two")
    activity = "building the model"
    with fake_device(how) as routing, uncompiled() as compiled:
        try:
            with known_values():
                made = build()
            activity = "inference" if how.inference else "the training step"
            with one_sequence_a_sample():
                step = make_step(made, how)
                if how.generate is not None:
                    return _generate(step, how, timing, model, batch_size, origin or {})
                step.warm_up()
                recorder = record_step(step, how.steps, keep_in(kept) if measure else None)
            settle_lives(recorder, step, how)
        except Exception as error:
            raise refusal(error, model, activity) from error
        said, size = step.said(), step.batch_size if batch_size is None else batch_size
    said |= routing.facts()
    if compiled or step.is_compiled:
        said["torch_compile"] = ONE_BY_ONE
    said["torch"] = str(torch.__version__)
    times: Times = {}
    if measure:
        times, said["device"] = measured_times(lambda: make_step(build(), how), how, recorder, kept, timing)
    about = {**(origin or {}), **said}
    return assemble(recorder, timing, model=model, batch_size=size, origin=about, times=times)


def make_step(made: Any, how: StepOptions) -> Step | OwnStep:
    """Make a step of what ``build`` returned. Raises ConfigError for options that the step says itself."""
    if is_step(made):
        made = Steps(made)
    if isinstance(made, Steps):
        return OwnStep(made, how)
    return Step(made if isinstance(made, Model) else Model(*made), how)


def settle_lives(recorder: Recorder, step: Step | OwnStep, how: StepOptions) -> None:
    """Add to a recorded step the scratch space and the longer lives that its operators do not show."""
    recorder.add_workspaces(how.workspace_bytes)
    if how.cudnn_pooling:
        _forget_indices(recorder.kernels)
    keep_what_grows(recorder)
    if not (isinstance(step, Step) and step.model.after_last_use):
        hold_what_nodes_keep(recorder)


def _generate(
    step: Any, how: StepOptions, gpu: GpuTimingSpec, model: str, size: int | None, origin: Mapping[str, str]
) -> Trace:
    if isinstance(step, OwnStep):
        raise ConfigError("--generate: found a step of its own; allowed: a model and its inputs")
    templates = list(Generation(step.model, how).templates())
    untimed = generated_trace(templates, model, step.batch_size if size is None else size)
    about = {**origin, **step.said(), "torch": str(torch.__version__)}
    trace = timed(replace(untimed, origin=about), gpu)
    drafts = [kernel.cost for template in templates for kernel in template.kernels]
    return replace(trace, origin={**trace.origin, **_found(trace, drafts)})


def assemble(
    recorder: Recorder,
    gpu: GpuTimingSpec,
    *,
    model: str,
    batch_size: int,
    origin: Mapping[str, str],
    times: Times = MappingProxyType({}),
) -> Trace:
    """Make the trace of a recorded step, timed for a GPU. Raises ConfigError as the GPU does.

    ``times`` has the kernels, by position, whose time in nanoseconds is known from elsewhere.
    """
    settle_kinds(recorder)
    hold_what_outlives(recorder)
    numbers = tensor_numbers(recorder)
    tensors = tuple(
        Tensor(number, name, record.size_bytes, record.kind or TensorKind.OTHER, record.persistent)
        for (record, number), name in zip(numbers.items(), _unique_names(numbers), strict=True)
    )
    kernels: list[Kernel] = []
    for draft, micro_batch in zip(recorder.kernels, micro_batches(recorder.kernels), strict=True):
        inputs, outputs = (tuple(map(numbers.__getitem__, side)) for side in (draft.reads, draft.writes))
        kernels.append(draft.kernel(len(kernels), inputs, outputs, draft.layer.path, micro_batch))
    untimed = Trace(model, batch_size, NANOSECONDS_PER_SECOND, tensors, tuple(kernels), origin)
    trace = timed(untimed, gpu, times)
    found = _found(trace, recorder.kernels)
    found["allocated_peak_bytes"] = str(recorder.allocated_peak_bytes)
    if times:
        counts = Counter(kernel.time_source.value for kernel in trace.kernels)
        found["time_source"] = ", ".join(f"{source} x{count}" for source, count in counts.most_common())
    return replace(trace, origin={**trace.origin, **found})


def micro_batches(kernels: Sequence[KernelDraft]) -> list[int]:
    """Return the micro-batch of each kernel, from 1 in each update of the weights; 0 without accumulation.

    A micro-batch is a forward pass after another ``backward`` without an update between the two, and what
    follows until the next. The kernels of the optimizer belong to none.
    """
    found: list[int] = []
    since = number = passes = 0
    before = Phase.OPTIMIZER
    for position, kernel in enumerate(kernels):
        if kernel.phase is Phase.FORWARD and before is Phase.OPTIMIZER:
            found[since:] = _if_several(found[since:])
            since, number, passes = position, 1, kernel.passes
        elif kernel.phase is Phase.FORWARD and kernel.passes != passes:
            number, passes = number + 1, kernel.passes
        found.append(0 if kernel.phase is Phase.OPTIMIZER else number)
        before = kernel.phase
    found[since:] = _if_several(found[since:])
    return found


def _if_several(numbers: list[int]) -> list[int]:
    return numbers if max(numbers, default=0) > 1 else [0] * len(numbers)


def tensor_numbers(recorder: Recorder) -> dict[StorageRecord, int]:
    """Return the numbers that storages have as tensors of the trace, once their kinds are settled."""
    used = recorder.used()
    # What the step before has left and this one drops without a look is no part of it.
    kept = (record for record in recorder.storages if record.alive or record in used)
    resident = [record for record in kept if record.persistent and not record.on_host]
    return {record: number for number, record in enumerate(dict.fromkeys([*resident, *used]))}


def _found(trace: Trace, drafts: Sequence[KernelDraft]) -> dict[str, str]:
    """Return what a trace that has its times says about itself."""
    peak = str(peak_live_bytes(trace))
    found = {"time_source": TimeSource.ROOFLINE.value, "peak_live_bytes": peak}
    if formats := unusual_formats(drafts, trace.origin):
        found[FLOPS_BY_FORMAT] = formats
    if unpriced := Counter(draft.operator for draft in drafts if not draft.known_cost):
        found["operators_priced_by_bytes"] = ", ".join(f"{n} x{k}" for n, k in sorted(unpriced.items()))
    return found


def _unique_names(records: Collection[StorageRecord]) -> Iterator[str]:
    """Yield names with a number behind each that several storages share."""
    shared = Counter(record.name for record in records)
    seen: Counter[str] = Counter()
    for name in (record.name for record in records):
        seen[name] += 1
        yield f"{name}#{seen[name]}" if shared[name] > 1 else name


def _forget_indices(kernels: Sequence[KernelDraft]) -> None:
    """Let max pooling keep no indices: its backward kernel reads the pooling's output instead of them.

    PyTorch's kernels keep the position of every maximum in 8 bytes, twice the output in 32 bits; the backward
    pooling of cuDNN takes input and output (cuDNN API reference, ``cudnnPoolingBackward``).
    """
    outputs: dict[StorageRecord, StorageRecord] = {}
    for kernel in kernels:
        if kernel.operator == _POOLING:
            output, indices = sorted(kernel.writes, key=lambda record: record.size_bytes)
            del kernel.writes[indices]
            outputs[indices] = output
        elif kernel.operator == _POOLING_BACKWARD:
            for indices in [record for record in kernel.reads if record in outputs]:
                del kernel.reads[indices]
                kernel.reads[outputs[indices]] = outputs[indices].size_bytes
        kernel.count_bytes()
