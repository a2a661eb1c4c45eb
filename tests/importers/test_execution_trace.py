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


def test_without_a_profile_work_is_priced(recorded):
    trace = import_execution_trace(recorded / "execution.json", price=lambda cost: 7 * cost.moved_bytes)
    sources = {kernel.name: kernel.time_source for kernel in trace.kernels}
    assert (sources["addmm"], sources["threshold_backward"]) == (TimeSource.ROOFLINE, TimeSource.BYTES)
    assert all(kernel.duration == 7 * kernel.moved_bytes for kernel in trace.kernels)
    moved = FLOAT_BYTES * (BATCH * 64 + 64 * 256 + 256 + BATCH * 256)
    assert trace.kernels[0].moved_bytes == moved


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


def tensors_of(references):
    """Arguments that are vectors of floats: (tensor id, storage id, elements)."""
    return {
        "values": [
            [tensor, storage, 0, elements, FLOAT_BYTES, "cpu"] for tensor, storage, elements in references
        ],
        "types": ["Tensor(float)" for _ in references],
        "shapes": [[elements] for _, _, elements in references],
        "strides": [[1] for _ in references],
    }


def operator(number, name, inputs, outputs, parent=1):
    attributes = {"rf_id": number, "op_schema": f"aten::{name}(Tensor self) -> Tensor"}
    return {
        "id": number,
        "name": f"aten::{name}",
        "ctrl_deps": parent,
        "inputs": tensors_of(inputs),
        "outputs": tensors_of(outputs),
        "attrs": [{"name": key, "value": value} for key, value in attributes.items()],
    }


def imported(tmp_path, *nodes):
    path = tmp_path / "execution.json"
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    return import_execution_trace(path, price=lambda cost: cost.moved_bytes)


@pytest.mark.parametrize(("tensor", "read"), [(7, 7), (17, 17), (17, 7)])
def test_ids_used_again_are_a_new_tensor(tmp_path, tensor, read):
    """Tensor 7 in storage 8 dies after 'sin'; 'cos' is given the storage's id, or both, for a larger one."""
    trace = imported(
        tmp_path,
        operator(2, "exp", [(3, 4, 100)], [(7, 8, 100)]),
        operator(3, "sin", [(7, 8, 100)], [(5, 6, 100)]),
        operator(4, "cos", [(5, 6, 100)], [(tensor, 8, 300)]),
        operator(5, "tan", [(read, 8, 300)], [(9, 10, 300)]),
    )
    exp, sin, cos, tan = trace.kernels
    assert sin.inputs == exp.outputs
    assert tan.inputs == cos.outputs != exp.outputs
    assert [kernel.moved_bytes for kernel in trace.kernels] == [800, 800, 1600, 2400]


def test_what_an_inner_operator_returns_is_what_the_outer_one_returns(tmp_path):
    """Inside 'gelu', 'erf' writes a temporary tensor whose storage the result then takes up."""
    trace = imported(
        tmp_path,
        operator(2, "gelu", [(3, 4, 100)], [(7, 8, 100)]),
        operator(3, "erf", [(3, 4, 100)], [(5, 8, 50)], parent=2),
        operator(4, "mul", [(5, 8, 50)], [(9, 6, 50)], parent=2),
        operator(5, "add", [(9, 6, 50)], [(7, 8, 100)], parent=2),
        operator(6, "neg", [(7, 8, 100)], [(11, 12, 100)]),
        operator(7, "abs", [(13, 8, 100)], [(15, 16, 100)]),
    )
    erf, _, add, neg, last = trace.kernels
    assert [kernel.name for kernel in trace.kernels] == ["erf", "mul", "add", "neg", "abs"]
    assert erf.outputs != add.outputs == neg.inputs == last.inputs


@pytest.mark.parametrize("elements", [1, 2])
def test_a_view_of_eight_bytes_is_the_tensor_that_has_them(tmp_path, elements):
    trace = imported(
        tmp_path,
        operator(2, "exp", [(3, 4, 2)], [(7, 8, 2)]),
        operator(3, "sin", [(17, 8, elements)], [(5, 6, 2)]),
    )
    assert trace.kernels[1].inputs == trace.kernels[0].outputs


def test_a_number_is_no_tensor_that_had_its_ids(tmp_path):
    """PyTorch makes a tensor of the 0.9 in 'mul(momentum, 0.9)' and may give it ids used before."""
    number = {
        "values": [[9, 8, 0, 1, 8, "cpu"]],
        "types": ["Tensor(double)"],
        "shapes": [[]],
        "strides": [[]],
    }
    scaled = operator(4, "mul", [(5, 6, 100)], [(11, 12, 100)])
    for key, values in number.items():
        scaled["inputs"][key] += values
    trace = imported(
        tmp_path,
        operator(2, "exp", [(3, 4, 100)], [(7, 8, 100)]),
        operator(3, "sin", [(7, 8, 100)], [(5, 6, 100)]),
        scaled,
    )
    exp, _, mul = trace.kernels
    assert not set(exp.outputs) & set(mul.inputs)
    assert mul.moved_bytes == 2 * 400 + 8


def _first(data):
    return next(node for node in data["nodes"] if node["name"] == "aten::addmm")


def _in_first(data, **changes):
    """Replace what the first product says of its first argument."""
    for key, (value,) in changes.items():
        _first(data)["inputs"][key][0] = value


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
        (lambda data: data["nodes"].insert(0, 5), "node number 0: found int; allowed: an object"),
        (lambda data: _first(data).pop("ctrl_deps"), ": found ctrl_deps None; allowed: int"),
        (lambda data: _first(data)["inputs"].update(strides=3), ": found strides 3; allowed: list"),
        (lambda data: _first(data)["inputs"]["types"].pop(), "of different lengths; allowed: one of each"),
        (lambda data: _first(data)["inputs"]["values"][0].pop(), "allowed: [tensor id, storage id, offset, "),
        (
            lambda data: _first(data)["inputs"]["shapes"][0].append(3),
            "allowed: as many strides as dimensions",
        ),
        (lambda data: _first(data).update(attrs=[{}]), "found an attribute without a name"),
        (lambda data: _first(data).update(attrs=[{"name": []}]), "found an attribute without a name"),
        (lambda data: data["nodes"].append(_first(data)), "twice; allowed: once"),
        (lambda data: _first(data).update(ctrl_deps=10**9), "allowed: a node that started before"),
        (lambda data: _first(data).update(name="\ud800"), "found half a character"),
        (lambda data: _in_first(data, shapes=[["x", 2]]), "found shape ['x', 2]; allowed: sizes"),
        (lambda data: _in_first(data, strides=[[-1, 2]]), "found strides [-1, 2]; allowed: a distance"),
        (lambda data: _in_first(data, values=[[0, 0, -1, 1, 4, "cpu"]]), "found tensor [0, 0, -1, 1, 4,"),
        (
            lambda data: _in_first(data, types=["GenericList[Tensor(float)]"], shapes=[7]),
            "allowed: tensors, shapes and strides",
        ),
    ],
)
def test_a_malformed_file_is_refused(edited, change, message):
    path = edited(change)
    with pytest.raises(TraceError) as refused:
        import_execution_trace(path, price=lambda cost: 1)
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
