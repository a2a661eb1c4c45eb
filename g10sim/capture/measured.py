"""Measures kernel times on the CUDA device of this computer: whole steps, or operator by operator."""

from __future__ import annotations

import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from g10sim.analysis.gpus import GpuTimingSpec
from g10sim.capture.devices import CUDA, on_device, require_cuda, synchronize
from g10sim.capture.fused import NAMESPACE
from g10sim.capture.operators import launches_nothing
from g10sim.capture.options import StepOptions
from g10sim.capture.recorder import Keep, KernelDraft, Recorder
from g10sim.capture.recording import Runnable
from g10sim.errors import TraceError
from g10sim.grouping import grouped
from g10sim.importers.kineto_events import Profile, Span, read_profile
from g10sim.importers.operations import short_name
from g10sim.trace.model import TimeSource

STEP = "g10sim step "
CALL = "g10sim call "
"""Prefixes of the annotations of steps and of operators; the latter end with the operator's name."""


class Call(NamedTuple):
    """One operator of a step, and the time its kernels take on the device.

    That is the median over the profiled steps, of two middle ones the lower.
    """

    name: str
    time_ns: int


def profiled_calls(profile: Profile) -> list[Call]:
    """Return the operators of the profiled steps in order, with their times.

    A device event belongs to the operator whose annotation its launch lies in. Raises TraceError when there
    are no steps or no device events, and when steps run different operators.
    """
    steps = [span for span in profile.annotations if span.name.startswith(STEP)]
    calls = [span for span in profile.annotations if span.name.startswith(CALL)]
    if not steps or not profile.device:
        what = "step" if not steps else "device event"
        raise TraceError(f"{profile.path}: found no {what}; allowed: a profile of steps on a CUDA device")
    groups = _by_step(steps, calls)
    operators = [call.name.removeprefix(CALL).partition(" ")[2] for call in calls]
    names = [[operators[position] for position in group] for group in groups]
    for number, called in enumerate(names):
        if called != names[0]:
            found = f"other operators in step {number} than in the first"
            raise TraceError.at(profile.path, found, "steps that run the same operators")
    times = [sum(event.duration_ns for event in events) for events in profile.device_times(calls)]
    rows = zip(*([times[position] for position in group] for group in groups), strict=True)
    return [Call(name, median_low(row)) for name, row in zip(names[0], rows, strict=True)]


def _by_step(steps: Sequence[Span], calls: Sequence[Span]) -> list[list[int]]:
    """Positions of the calls in each step; the backward pass may run on a separate thread."""
    starts = [step.start_ns for step in steps]
    found = grouped((bisect_right(starts, call.start_ns), position) for position, call in enumerate(calls))
    return [found.get(step, []) for step in range(1, len(steps) + 1)]


def joined(recorded: Sequence[str], calls: Sequence[Call]) -> dict[int, int]:
    """Return times in nanoseconds by position among the recorded operators.

    Both are matched in order by name, so an operator that only one of them has takes no other's time; names
    that differ between devices count as one (fused attention, batch normalization).
    """
    measured = [call.name for call in calls]
    matcher = SequenceMatcher(None, [*map(_common, recorded)], [*map(_common, measured)], autojunk=False)
    return {
        block.a + offset: calls[block.b + offset].time_ns
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def _common(name: str) -> str:
    """Return a name that operators for CPU and for CUDA share."""
    short = short_name(name)
    backward = "_backward" if "backward" in short else ""
    for family in ("attention", "batch_norm", "rms_norm"):
        if family in short:
            return family + backward
    return short


def split(total_ns: int, weights: Sequence[int]) -> list[int]:
    """Split a time in proportion to weights, to whole nanoseconds that add up to it."""
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    ends = [total_ns * before // whole for before in accumulate(weights)]
    return [end - start for start, end in pairwise([0, *ends])]


WARM_UP_STEPS = 3
MEASURED_STEPS = 10


Times = Mapping[int, tuple[int, TimeSource]]
"""Nanoseconds, and where they come from, by position of the kernel."""


def measured_times(
    make: Callable[[], Runnable],
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
    calls = _whole_steps(make, options)
    if calls is not None:
        return kernel_times(recorder.kernels, joined(recorder.calls, calls), TimeSource.MEASURED, gpu), name
    with on_device(options):
        by_call = benchmarked(kept)
    return kernel_times(recorder.kernels, by_call, TimeSource.BENCHMARKED, gpu), name


def _whole_steps(make: Callable[[], Runnable], options: StepOptions) -> list[Call] | None:
    """Return the operators of a step with their times; None where the device's memory is too small.

    Raises TraceError as ``profiled_calls``.
    """
    with on_device(options), tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "profile.json"
        try:
            step = make()

            def run() -> None:
                for _ in range(options.steps):
                    step.run()

            profile_steps(run, path)
        except torch.OutOfMemoryError:
            return None
        return profiled_calls(read_profile(path))


def kernel_times(
    drafts: Sequence[KernelDraft], by_call: Mapping[int, int], source: TimeSource, gpu: GpuTimingSpec
) -> dict[int, tuple[int, TimeSource]]:
    """Give kernels the times of the operators that launch them.

    The time of an operator that launches several is split as the roofline of ``gpu`` would. Kernels of an
    operator without a time are left out.
    """
    launched = grouped((draft.call, position) for position, draft in enumerate(drafts))
    found: dict[int, tuple[int, TimeSource]] = {}
    for call, total_ns in by_call.items():
        positions = launched.get(call, [])
        weights = [gpu.duration_ns(drafts[position]) for position in positions]
        for position, share in zip(positions, split(total_ns, weights), strict=True):
            found[position] = share, source
    return found


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, strides and type of a recorded tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, tensor: Any) -> TensorSpec:
        """Describe a tensor."""
        return cls(tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), tensor.dtype)

    def make(self, device: str) -> Any:
        """Make a tensor of random numbers, or of zeros where they are whole (indices that always exist)."""
        steps = zip(self.shape, self.stride, strict=True)
        reach = 0 if 0 in self.shape else sum((size - 1) * step for size, step in steps) + 1
        # Filled before it is expanded: a tensor whose elements share memory cannot be.
        made = torch.empty(reach, dtype=self.dtype, device=device)
        filled = made.normal_() if self.dtype.is_floating_point else made.zero_()
        return filled.as_strided(self.shape, self.stride)


class RecordedCall(NamedTuple):
    """An operator with its arguments, tensors described."""

    func: Any
    args: Any
    kwargs: Any

    @classmethod
    def of(cls, func: Any, args: Any, kwargs: Any) -> RecordedCall:
        """Describe a call."""
        described = tree_map_only(torch.Tensor, TensorSpec.of, (tuple(args), dict(kwargs)))
        return cls(func, *described)

    @property
    def name(self) -> str:
        """Name of the operator with its library."""
        return str(self.func._schema.name)


class _Marker(TorchDispatchMode):  # type: ignore[misc]
    """Annotates every operator that the recorder would record, with its number and name."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if launches_nothing(func):
            return func(*args, **(kwargs or {}))
        self._count += 1
        with record_function(f"{CALL}{self._count} {func._schema.name}"):
            return func(*args, **(kwargs or {}))


def profile_steps(run: Callable[[], None], path: Path, *, device: str = CUDA) -> None:
    """Run a step until it is warm, then profile it ``MEASURED_STEPS`` times and write the profile."""
    for _ in range(WARM_UP_STEPS):
        run()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == CUDA else [])]
    with profile(activities=activities) as recorded:
        for number in range(MEASURED_STEPS):
            with record_function(f"{STEP}{number}"), _Marker():
                run()
            synchronize(device)
    recorded.export_chrome_trace(str(path))


def benchmarked(calls: Sequence[RecordedCall], *, device: str = CUDA) -> dict[int, int]:
    """Time recorded operators one by one, in nanoseconds by position.

    Operators with equal arguments are run once. One whose tensors the device's memory is too small for, or
    that cannot run on made-up values, is left out.
    """
    keys = list(map(repr, calls))
    different = dict(zip(keys, calls, strict=True))
    times = {key: _benchmark(call, device) for key, call in different.items()}
    return {position: spent for position, key in enumerate(keys) if (spent := times[key]) is not None}


def _benchmark(call: RecordedCall, device: str) -> int | None:
    try:
        run = _runnable(call, device)
        for _ in range(WARM_UP_STEPS):
            run()
        return median_low([_timed(run, device) for _ in range(MEASURED_STEPS)])
    except (RuntimeError, NotImplementedError, IndexError, ValueError):  # out of memory is a RuntimeError
        return None
    finally:
        if device == CUDA:
            torch.cuda.empty_cache()


def _runnable(call: RecordedCall, device: str) -> Callable[[], Any]:
    args, kwargs = tree_map_only(TensorSpec, lambda spec: spec.make(device), (call.args, call.kwargs))
    if call.func.namespace != NAMESPACE:
        return lambda: call.func(*args, **kwargs)
    backward = call.name.endswith("_backward")
    gradient, rest = (args[0], args[1:]) if backward else (None, args)
    query, key, value, mask, *_, dropout, causal, scale = rest
    options = {"attn_mask": mask, "dropout_p": dropout, "is_causal": causal, "scale": scale}
    attention = torch.nn.functional.scaled_dot_product_attention
    if not backward:
        return lambda: attention(query, key, value, **options)
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    output = attention(*leaves, **options)
    return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)


def _timed(run: Callable[[], Any], device: str) -> int:
    """Time one run: on a CUDA device by its events, which leave out the time of launching."""
    if device != CUDA:
        start = time.perf_counter_ns()
        run()
        return time.perf_counter_ns() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    synchronize(device)
    milliseconds: float = begin.elapsed_time(end)
    return round(milliseconds * 1e6)


def keep_in(calls: list[RecordedCall]) -> Keep:
    """Return what a recorder calls to keep its operators for running them again."""
    return lambda func, args, kwargs: calls.append(RecordedCall.of(func, args, kwargs))
