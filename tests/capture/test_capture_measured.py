"""Measured times: steps profiled on the CPU, with the events of a CUDA device added by hand.

The events are as Kineto writes them; no CUDA device has been at hand to write them itself.
"""

import json
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.analysis.gpus import load_gpu
from g10sim.capture import capture_step
from g10sim.capture import measured as measured_module
from g10sim.capture.devices import fake_device
from g10sim.capture.measured import (
    CALL,
    STEP,
    Call,
    benchmarked,
    joined,
    keep_in,
    kernel_times,
    measured_times,
    profile_steps,
    profiled_calls,
    split,
)
from g10sim.capture.options import StepOptions
from g10sim.capture.recording import record_step
from g10sim.capture.step import assemble
from g10sim.capture.workload import Model, Step
from g10sim.errors import ConfigError, TraceError
from g10sim.importers.kineto_events import read_profile
from g10sim.trace.check import check_trace
from g10sim.trace.model import TimeSource

pytestmark = pytest.mark.slow

OPTIONS = StepOptions(optimizer="sgd")
A100 = load_gpu("a100-40g")
CONSTANT_US = 3


def recorded(build, options=OPTIONS):
    """Recorder of a step, and its operators with their arguments."""
    kept = []
    with fake_device(options):
        step = Step(Model(*build()), options)
        step.run()
        return record_step(step, keep=keep_in(kept)), kept


def microseconds(call, step):
    """Time of an operator in a step: the median over steps is 10 for each number, plus the constant."""
    return 10 * call + CONSTANT_US + (step - 4 if step < 9 else 1000)


def add_device_events(data):
    """Let every annotated operator launch a kernel of half its time and then another."""
    events = data["traceEvents"]
    notes = [event for event in events if event.get("cat") == "user_annotation"]
    steps = sorted(event["ts"] for event in notes if event["name"].startswith(STEP))
    correlation = 0
    for event in notes:
        if not event["name"].startswith(CALL):
            continue
        step = sum(start <= event["ts"] for start in steps) - 1
        spent = microseconds(int(event["name"].removeprefix(CALL).partition(" ")[0]) % 50, step)
        for part in (spent / 2, spent / 2):
            correlation += 1
            common = {"correlation": correlation, "External id": 1}
            events += [
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": event["pid"],
                 "tid": event["tid"], "ts": event["ts"], "dur": 1, "args": {"cbid": 211, **common}},
                {"ph": "X", "cat": "kernel", "name": "void kernel()", "pid": 0, "tid": 7,
                 "ts": event["ts"] + 50, "dur": part, "args": {"device": 0, "stream": 7, **common}},
            ]  # fmt: skip


@pytest.fixture
def profiled(models, tmp_path):
    """Profile of ten steps of a perceptron; returns its path after a change."""

    def write(change=lambda data: None):
        path = tmp_path / "profile.json"
        step = Step(Model(*models.perceptron()), OPTIONS)
        profile_steps(step.run, path, device="cpu")
        data = json.loads(path.read_text())
        add_device_events(data)
        change(data)
        path.write_text(json.dumps(data))
        return path

    return write


def test_an_operator_takes_the_median_of_its_kernels_over_the_steps(profiled):
    calls = profiled_calls(read_profile(profiled()))
    for number, call in enumerate(calls, 1):  # of ten steps' times the fifth: step 4's
        assert call.time_ns == microseconds(number, 4) * 1000


def test_recorded_operators_are_those_that_run(profiled, models):
    calls = profiled_calls(read_profile(profiled()))
    recorder, _ = recorded(models.perceptron)
    assert [call.name for call in calls] == recorder.calls
    assert joined(recorder.calls, calls) == {number: call.time_ns for number, call in enumerate(calls)}


def test_measured_times_become_those_of_the_trace(profiled, models):
    calls = profiled_calls(read_profile(profiled()))
    recorder, _ = recorded(models.perceptron)
    times = kernel_times(recorder.kernels, joined(recorder.calls, calls), TimeSource.MEASURED, A100)
    trace = assemble(recorder, A100, model="m", batch_size=1, origin={}, times=times)
    check_trace(trace, "trace")
    assert trace.origin["time_source"] == f"measured x{len(trace.kernels)}"
    launching = {draft.call for draft in recorder.kernels}
    assert sum(kernel.duration for kernel in trace.kernels) == sum(calls[call].time_ns for call in launching)


def test_kernels_without_a_measured_time_keep_the_modelled_one(models):
    recorder, _ = recorded(models.perceptron)
    only_first = kernel_times(recorder.kernels, {recorder.kernels[0].call: 5}, TimeSource.MEASURED, A100)
    trace = assemble(recorder, A100, model="m", batch_size=1, origin={}, times=only_first)
    by_launches = A100.model_copy(update={"graph_overhead": None})
    modelled = capture_step(models.perceptron, optimizer="sgd", cuda_graph=True, gpu=by_launches)
    assert trace.kernels[0].duration == 5
    assert [k.duration for k in trace.kernels[1:]] == [k.duration for k in modelled.kernels[1:]]
    assert {kernel.time_source for kernel in trace.kernels} == {TimeSource.MEASURED, TimeSource.ROOFLINE}


def _drop(data, start):
    data["traceEvents"] = [e for e in data["traceEvents"] if not str(e.get("name", "")).startswith(start)]


def _drop_devices(data):
    data["traceEvents"] = [e for e in data["traceEvents"] if e.get("cat") != "kernel"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop_devices, "found no device event; allowed: a profile of steps on a CUDA device"),
        (lambda data: _drop(data, STEP), "found no step; allowed: a profile of steps on a CUDA device"),
        (lambda data: _drop(data, f"{CALL}3 "), None),
        (lambda data: data["traceEvents"].remove(_last_call(data)), "found other operators in step 9"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(profiled, change, message):
    path = profiled(change)
    if message is None:  # the same everywhere: one operator less
        assert profiled_calls(read_profile(path))
        return
    with pytest.raises(TraceError, match=message):
        profiled_calls(read_profile(path))


def _last_call(data):
    calls = [event for event in data["traceEvents"] if str(event.get("name", "")).startswith(CALL)]
    return max(calls, key=lambda event: event["ts"])


def calls_of(*names):
    return [Call(f"aten::{name}", number + 1) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("recorded_names", "measured_names", "expected"),
    [
        (("mm", "add"), ("mm", "add"), {0: 1, 1: 2}),
        (("mm", "relu", "add"), ("mm", "add"), {0: 1, 2: 2}),
        (("mm", "add"), ("copy_", "mm", "fill_", "add"), {0: 2, 1: 4}),
        (("native_batch_norm", "mm"), ("cudnn_batch_norm", "mm"), {0: 1, 1: 2}),
        (("attention", "attention_backward"), ("_scaled_dot_product_flash_attention",), {0: 1}),
        (("attention_backward",), ("_scaled_dot_product_efficient_attention_backward",), {0: 1}),
        (("mm",), ("bmm",), {}),
    ],
)
def test_operators_are_matched_in_order_by_name(recorded_names, measured_names, expected):
    recorded_ones = [f"aten::{name}" for name in recorded_names]
    assert joined(recorded_ones, calls_of(*measured_names)) == expected


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_split_time_adds_up(total, weights):
    shares = split(total, weights)
    assert sum(shares) == total
    assert len(shares) == len(weights)
    assert min(shares) >= 0


def test_shares_are_in_proportion():
    assert split(100, [1, 3]) == [25, 75]
    assert split(100, [0, 0]) == [50, 50]


@pytest.mark.parametrize("name", ["perceptron", "conv_net", "language"])
@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_every_recorded_operator_can_be_run_by_itself(models, name, attention):
    recorder, kept = recorded(getattr(models, name), StepOptions(optimizer="adam", attention=attention))
    times = benchmarked(kept, device="cpu")
    assert [call.name for call in kept] == recorder.calls
    missing = {recorder.calls[call] for call in range(len(kept)) if call not in times}
    assert missing == set()
    assert min(times.values()) > 0


def test_operators_with_equal_arguments_are_run_once(models, monkeypatch):
    _, kept = recorded(models.perceptron)
    ran = []
    monkeypatch.setattr(measured_module, "_benchmark", lambda call, device: ran.append(call) or 7)
    times = benchmarked([*kept, *kept], device="cpu")
    assert len(times) == 2 * len(kept)
    assert len(ran) <= len(kept)


def test_a_step_that_does_not_fit_is_timed_operator_by_operator(models, monkeypatch):
    def too_small(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measured_module, "profile_steps", too_small)
    monkeypatch.setattr(measured_module, "require_cuda", lambda: "Imaginary GPU")
    monkeypatch.setattr(measured_module, "on_device", lambda options: nullcontext())
    monkeypatch.setattr(measured_module, "benchmarked", lambda kept: benchmarked(kept, device="cpu"))
    recorder, kept = recorded(models.perceptron)
    times, device = measured_times(lambda: Model(*models.perceptron()), OPTIONS, recorder, kept, A100)
    assert device == "Imaginary GPU"
    assert set(times) == set(range(len(recorder.kernels)))
    assert {source for _, source in times.values()} == {TimeSource.BENCHMARKED}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_measuring_is_refused(models):
    with pytest.raises(ConfigError, match="--measure: found no CUDA device; allowed: a computer with one"):
        capture_step(models.perceptron, measure=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_cuda_device_kernels_are_measured(models):
    trace = capture_step(models.perceptron, optimizer="sgd", measure=True)
    check_trace(trace, "trace")
    assert TimeSource.MEASURED in {kernel.time_source for kernel in trace.kernels}
    assert trace.origin["device"] == torch.cuda.get_device_name()
