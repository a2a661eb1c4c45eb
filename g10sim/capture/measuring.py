"""Gives recorded kernels the times that a CUDA device takes for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from g10sim.capture.gpu import GpuTimingSpec
from g10sim.capture.measured import RecordedCall, benchmarked, measured_calls, on_device, require_cuda
from g10sim.capture.options import StepOptions
from g10sim.capture.profiled import Call, joined, split
from g10sim.capture.recorder import KernelDraft, Recorder
from g10sim.capture.workload import Model, Step
from g10sim.trace.model import TimeSource

Times = Mapping[int, tuple[int, TimeSource]]
"""Nanoseconds, and where they come from, by position of the kernel."""


def measured_times(
    build: Callable[[], Model],
    options: StepOptions,
    recorder: Recorder,
    kept: Sequence[RecordedCall],
    gpu: GpuTimingSpec,
) -> tuple[Times, str]:
    """Return times of recorded kernels, and the name of the device that took them.

    Whole steps are profiled; where the device's memory is too small for them, each recorded operator is run
    by itself. Raises ConfigError without a CUDA device, TraceError for steps that differ from each other.
    """
    name = require_cuda()
    calls = _whole_steps(build, options)
    if calls is not None:
        return kernel_times(recorder.kernels, joined(recorder.calls, calls), TimeSource.MEASURED, gpu), name
    with on_device(options):
        by_call = benchmarked(kept)
    return kernel_times(recorder.kernels, by_call, TimeSource.BENCHMARKED, gpu), name


def _whole_steps(build: Callable[[], Model], options: StepOptions) -> list[Call] | None:
    with on_device(options):
        try:
            step = Step(build(), options)
        except torch.OutOfMemoryError:
            return None

        def run() -> None:
            for _ in range(options.steps):
                step.run()

        return measured_calls(run)


def kernel_times(
    drafts: Sequence[KernelDraft], by_call: Mapping[int, int], source: TimeSource, gpu: GpuTimingSpec
) -> dict[int, tuple[int, TimeSource]]:
    """Give kernels the times of the operators that launch them.

    The time of an operator that launches several is split as the roofline of ``gpu`` would. Kernels of an
    operator without a time are left out.
    """
    launched: defaultdict[int, list[int]] = defaultdict(list)
    for position, draft in enumerate(drafts):
        launched[draft.call].append(position)
    found: dict[int, tuple[int, TimeSource]] = {}
    for call, total_ns in by_call.items():
        positions = launched.get(call, [])
        weights = [gpu.duration_ns(drafts[position].cost) for position in positions]
        for position, share in zip(positions, split(total_ns, weights), strict=True):
            found[position] = share, source
    return found


def keep_in(calls: list[RecordedCall]) -> Callable[[Any, Any, Any], None]:
    """Return what a recorder calls to keep its operators for running them again."""
    return lambda func, args, kwargs: calls.append(RecordedCall.of(func, args, kwargs))
