"""Profiles and execution traces that machines recorded, as their owners published them."""

import os
from functools import cache
from pathlib import Path

import pytest

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.errors import TraceError
from g10sim.importers.account import Reason, account_of
from g10sim.importers.execution_trace import import_execution_trace
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile
from g10sim.trace.model import Phase, TensorKind

pytestmark = pytest.mark.slow
MIB, GIB = 2**20, 2**30
QWEN = "tracelens_h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
TIMESFORMER = "tracelens_h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz"
GRAPHS = "tracelens_inference__vllm_prefilldecode_piecewise__graph_execution.json.gz"
CAPTURE = "tracelens_vllm_piecewise_capture_rank_0.json.gz"


@pytest.fixture
def recorded_file():
    directory = Path(os.environ.get("G10SIM_REFERENCE", "nowhere")) / "recorded"

    def find(name):
        if not (directory / name).is_file():
            pytest.skip(f"{name} is not there: G10SIM_REFERENCE must name the directory of 'recorded'")
        return directory / name

    return find


@pytest.fixture(scope="module")
def profile_in():
    """Reads a profile, once for all tests."""
    return cache(read_profile)


def persistent(trace):
    return sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent)


@pytest.mark.parametrize(
    "name", ["param_resnet_1gpu_et.json.tar.gz", "param_1.0.3_resnet_1gpu_et.json.gz",
             "param_1.1.0_resnet_2gpu_et.json.gz"]
)  # fmt: skip
def test_resnet_has_its_backward_pass(recorded_file, name):
    trace = import_execution_trace(recorded_file(name), price=lambda cost: cost.moved_bytes)
    backward = [kernel for kernel in trace.kernels if kernel.phase is Phase.BACKWARD]
    assert (len(trace.kernels), len(backward)) == (899, 341)
    assert peak_live_bytes(trace) == pytest.approx(2.88 * GIB, rel=0.01)


def test_the_whole_step_of_gpt2_is_taken_and_not_the_sliver(recorded_file):
    trace = import_execution_trace(
        recorded_file("param_hf_GPT2_et.json.tar.gz"), price=lambda cost: cost.moved_bytes
    )
    assert trace.origin["step"].startswith("0 of 0, 1")
    gradients = sum(tensor.size_bytes for tensor in trace.tensors if tensor.kind is TensorKind.GRADIENT)
    assert gradients == persistent(trace)


def test_a_compiled_step_has_its_triton_kernel(recorded_file):
    trace = import_execution_trace(
        recorded_file("param_pt2_et.json.tar.gz"), price=lambda cost: cost.moved_bytes
    )
    product, fused = trace.kernels
    assert product.outputs[0] in fused.inputs
    assert len(fused.outputs) == 2


def test_a_pair_without_numbers_says_what_is_missing(recorded_file, profile_in):
    profile = profile_in(recorded_file("param_resnet_kineto.json.gz"))
    with pytest.raises(TraceError, match=r"no 'Record function id' in any operator: 899 of the 899 kernels"):
        import_execution_trace(recorded_file("param_resnet_et.json.gz"), profile=profile)


@pytest.mark.parametrize(
    ("name", "before", "most", "copied"),
    [(QWEN, 939, 1992, 0), (TIMESFORMER, 274, 4283, 128 * 3 * 224 * 224 * 2)],
)
def test_inference_has_its_weights_and_its_peak(recorded_file, profile_in, name, before, most, copied):
    """Images that the step copies from the host are inputs, too, of after its start."""
    trace = import_kineto(profile_in(recorded_file(name)))
    made = {tensor for kernel in trace.kernels for tensor in kernel.outputs}
    inputs = [tensor for tensor in trace.tensors if tensor.kind is TensorKind.INPUT]
    assert sum(tensor.size_bytes for tensor in inputs if tensor.id in made) == copied
    fed = sum(tensor.size_bytes for tensor in inputs) - copied
    assert persistent(trace) + fed == pytest.approx(before * MIB, rel=0.01)
    assert peak_live_bytes(trace) == pytest.approx(most * MIB, rel=0.01)


def test_an_all_reduce_beside_kernels_counts_once(recorded_file, profile_in):
    profile = profile_in(recorded_file("hta_trace_diff_control.json.gz"))
    account = account_of(import_kineto(profile, partial=True))
    assert account.imported_ns == 67_302_000
    assert account.aside[Reason.OVERLAP] == 87_620_000 - 67_302_000


def test_graphs_take_their_time(recorded_file, profile_in):
    trace = import_kineto(profile_in(recorded_file(GRAPHS)), partial=True)
    assert sum(kernel.duration for kernel in trace.kernels) == pytest.approx(156_085_905, abs=1000)


def test_operators_that_write_into_a_given_buffer_are_kernels(recorded_file, profile_in):
    trace = import_kineto(profile_in(recorded_file(CAPTURE)))
    assert sum(kernel.duration for kernel in trace.kernels) == pytest.approx(843_456, abs=1000)
    assert all(kernel.outputs for kernel in trace.kernels if "copy" not in kernel.name and kernel.inputs)


@pytest.mark.parametrize(
    "name",
    ["hta_nccl_data.json.gz", "hta_trace_diff_control.json.gz", "param_resnet_kineto.json.gz",
     "tracelens_b200__eager_trace.json.gz", QWEN, TIMESFORMER, GRAPHS, CAPTURE],
)  # fmt: skip
def test_all_device_time_of_a_file_is_accounted_for(recorded_file, profile_in, name):
    profile = profile_in(recorded_file(name))
    account = account_of(import_kineto(profile, partial=True))
    told = account.step_ns + sum(time for reason, time in account.aside.items() if reason != Reason.GAPS)
    assert told == pytest.approx(sum(event.duration_ns for event in profile.device), abs=1000)
