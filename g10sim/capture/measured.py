"""Measures kernel times on the CUDA device of this computer: whole steps, or operator by operator."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from g10sim.capture.attention import NAMESPACE
from g10sim.capture.operators import launches_nothing
from g10sim.capture.options import StepOptions
from g10sim.capture.profiled import CALL, STEP, Call, profiled_calls
from g10sim.errors import ConfigError
from g10sim.importers.kineto_events import read_profile

WARM_UP_STEPS = 3
MEASURED_STEPS = 10
_CUDA = "cuda"


class TensorSpec(NamedTuple):
    """What it takes to make a tensor like one that was recorded."""

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


def require_cuda() -> str:
    """Return the name of the CUDA device. Raises ConfigError where there is none."""
    if not torch.cuda.is_available():
        raise ConfigError("--measure: found no CUDA device; allowed: a computer with one, or no --measure")
    return str(torch.cuda.get_device_name())


@contextmanager
def on_device(options: StepOptions, device: str = _CUDA) -> Iterator[None]:
    """Make tensors on a device, in the format of the options, and run attention as they say."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, options.dtype))
    try:
        with (
            torch.device(device),
            nullcontext() if options.attention == "fused" else sdpa_kernel(SDPBackend.MATH),
        ):
            yield
    finally:
        torch.set_default_dtype(previous)


class _Marker(TorchDispatchMode):  # type: ignore[misc]
    """Annotates every operator that the recorder would record, with its number and name."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if launches_nothing(func):
            return func(*args, **(kwargs or {}))
        self._count += 1
        with record_function(f"{CALL}{self._count} {func._schema.name}"):
            return func(*args, **(kwargs or {}))


def profile_steps(run: Callable[[], None], path: Path, *, device: str = _CUDA) -> None:
    """Run a step until it is warm, then profile it ``MEASURED_STEPS`` times and write the profile."""
    for _ in range(WARM_UP_STEPS):
        run()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == _CUDA else [])]
    with profile(activities=activities) as recorded:
        for number in range(MEASURED_STEPS):
            with record_function(f"{STEP}{number}"), _Marker():
                run()
            _finish(device)
    recorded.export_chrome_trace(str(path))


def measured_calls(run: Callable[[], None]) -> list[Call] | None:
    """Return the operators of a step with their times; None where the device's memory is too small.

    Raises TraceError as ``profiled_calls``.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "profile.json"
        try:
            profile_steps(run, path)
        except torch.OutOfMemoryError:
            return None
        return profiled_calls(read_profile(path))


def benchmarked(calls: Sequence[RecordedCall], *, device: str = _CUDA) -> dict[int, int]:
    """Time recorded operators one by one, in nanoseconds by position.

    Operators with equal arguments are run once. One whose tensors the device's memory is too small for, or
    that cannot run on made-up values, is left out.
    """
    times: dict[str, int | None] = {}
    found = {}
    for position, call in enumerate(calls):
        key = repr(call)
        if key not in times:
            times[key] = _benchmark(call, device)
        spent = times[key]
        if spent is not None:
            found[position] = spent
    return found


def _benchmark(call: RecordedCall, device: str) -> int | None:
    try:
        run = _runnable(call, device)
        for _ in range(WARM_UP_STEPS):
            run()
        return median_low([_timed(run, device) for _ in range(MEASURED_STEPS)])
    except (RuntimeError, NotImplementedError, IndexError, ValueError):  # out of memory is a RuntimeError
        return None
    finally:
        if device == _CUDA:
            torch.cuda.empty_cache()


def _runnable(call: RecordedCall, device: str) -> Callable[[], Any]:
    make = _maker(device)
    args, kwargs = tree_map_specs(make, call.args), tree_map_specs(make, call.kwargs)
    if call.func.namespace != NAMESPACE:
        return lambda: call.func(*args, **kwargs)
    backward = call.name.endswith("_backward")
    gradient, rest = (args[0], args[1:]) if backward else (None, args)
    query, key, value, mask = rest[:4]
    dropout, causal, scale = rest[-3:]
    options = {"attn_mask": mask, "dropout_p": dropout, "is_causal": causal, "scale": scale}
    attention = torch.nn.functional.scaled_dot_product_attention
    if not backward:
        return lambda: attention(query, key, value, **options)
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    output = attention(*leaves, **options)
    return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)


def _maker(device: str) -> Callable[[TensorSpec], Any]:
    return lambda spec: spec.make(device)


def tree_map_specs(make: Callable[[TensorSpec], Any], tree: Any) -> Any:
    """Replace the descriptions of tensors in nested arguments by what ``make`` gives."""
    if isinstance(tree, TensorSpec):
        return make(tree)
    if isinstance(tree, dict):
        return {key: tree_map_specs(make, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map_specs(make, value) for value in tree)
    return tree


def _timed(run: Callable[[], Any], device: str) -> int:
    """Time one run: on a CUDA device by its events, which leave out the time of launching."""
    if device != _CUDA:
        start = time.perf_counter_ns()
        run()
        return time.perf_counter_ns() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    _finish(device)
    milliseconds: float = begin.elapsed_time(end)
    return round(milliseconds * 1e6)


def _finish(device: str) -> None:
    if device == _CUDA:
        torch.cuda.synchronize()
