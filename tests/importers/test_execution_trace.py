"""Execution traces, written by the installed PyTorch about a step of three linear layers."""

import json
from itertools import pairwise

import pytest

from g10sim.errors import TraceError
from g10sim.importers.execution_trace import import_execution_trace
from g10sim.importers.kineto_events import read_profile
from g10sim.trace.model import Phase, TensorKind, TimeSource

WIDTHS, BATCH, FLOAT_BYTES = (64, 256, 128, 10), 512, 4
PAIRS = list(pairwise(WIDTHS))
PARAMETERS = sum(wide * narrow + narrow for wide, narrow in PAIRS) * FLOAT_BYTES


@pytest.fixture(scope="module")
def trace(recorded):
    profile = read_profile(recorded / "profile.json")
    return import_execution_trace(recorded / "execution.json", profile=profile, batch_size=BATCH)


def sizes(trace, kind):
    return sum(tensor.size_bytes for tensor in trace.tensors if tensor.kind is kind)


def kernels_of(trace, phase):
    return [kernel for kernel in trace.kernels if kernel.phase is phase]


def test_operators_that_do_the_work_are_the_kernels(trace):
    forward = [kernel.name for kernel in kernels_of(trace, Phase.FORWARD)]
    assert forward[:5] == ["addmm", "clamp_min", "addmm", "clamp_min", "addmm"]
    assert "linear" not in forward
    backward = [kernel.name for kernel in kernels_of(trace, Phase.BACKWARD)]
    assert backward.count("mm") == 5  # the first layer's input needs no gradient
    assert backward.count("threshold_backward") == 2


def test_weights_gradients_and_momenta_have_their_sizes(trace):
    assert sizes(trace, TensorKind.WEIGHT) == PARAMETERS
    assert sizes(trace, TensorKind.GRADIENT) == PARAMETERS
    momenta = [t for t in trace.tensors if t.kind is TensorKind.OPTIMIZER_STATE and t.size_bytes > 8]
    assert sum(tensor.size_bytes for tensor in momenta) == PARAMETERS
    assert all(tensor.persistent for tensor in momenta)


def test_what_the_backward_pass_uses_is_an_activation(trace):
    kept = sizes(trace, TensorKind.ACTIVATION)
    assert kept == pytest.approx(BATCH * (256 + 128 + 10) * FLOAT_BYTES, rel=0.01)


def test_a_layers_output_is_the_next_ones_input(trace):
    first, relu, second = trace.kernels[:3]
    assert first.outputs[0] in relu.inputs
    assert relu.outputs[0] in second.inputs


def test_times_are_those_of_the_profile(trace, recorded):
    spans = {span.duration_ns for span in read_profile(recorded / "profile.json").operators}
    assert {kernel.duration for kernel in trace.kernels} <= spans
    assert {kernel.time_source for kernel in trace.kernels} == {TimeSource.MEASURED}


@pytest.fixture
def edited(recorded, tmp_path):
    """Write the trace again after a change; return its path."""

    def write(change):
        data = json.loads((recorded / "execution.json").read_text())
        change(data)
        path = tmp_path / "edited.json"
        path.write_text(json.dumps(data))
        return path

    return write


def _first(data):
    return next(node for node in data["nodes"] if node["name"] == "aten::addmm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data.pop("nodes"),
            "found no object with 'nodes'; allowed: an execution trace of PyTorch",
        ),
        (lambda data: data.update(schema="2.0"), "schema: found '2.0'; allowed: one with 'chakra'"),
        (lambda data: data.update(nodes={}), "nodes: found no list"),
        (lambda data: data.update(nodes=[]), "found no operator that writes a tensor"),
        (lambda data: data["nodes"].insert(0, 5), "node number 0: found no object"),
        (lambda data: _first(data).pop("ctrl_deps"), ": found ctrl_deps None; allowed: int"),
        (lambda data: _first(data)["inputs"].pop("strides"), ": found strides None; allowed: list"),
        (lambda data: _first(data)["inputs"]["types"].pop(), "of different lengths; allowed: one of each"),
        (lambda data: _first(data)["inputs"]["values"][0].pop(), "allowed: [tensor id, storage id, offset, "),
        (
            lambda data: _first(data)["inputs"]["shapes"][0].append(3),
            "allowed: as many strides as dimensions",
        ),
        (lambda data: _first(data).update(attrs=[{}]), "found an attribute without a name"),
    ],
)
def test_a_malformed_file_is_refused(edited, change, message):
    path = edited(change)
    with pytest.raises(TraceError) as refused:
        import_execution_trace(path, price=lambda moved: 1)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{path}: ")


def test_a_profile_of_another_run_is_refused(edited, recorded):
    def renumber(data):
        for node in data["nodes"]:
            for attribute in node["attrs"]:
                if attribute["name"] == "rf_id":
                    attribute["value"] += 10_000

    with pytest.raises(TraceError, match="allowed: the profile of the same run"):
        import_execution_trace(edited(renumber), profile=read_profile(recorded / "profile.json"))
