"""Profiles, written by the installed PyTorch about steps of three linear layers.

Device events, which no CPU writes, are added by hand as PyTorch writes them on a CUDA device.
"""

import gzip
import json
from itertools import pairwise

import pytest

from g10sim.errors import TraceError
from g10sim.importers.execution_trace import import_execution_trace
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile
from g10sim.trace.model import Phase, TensorKind, TimeSource

WIDTHS, BATCH, FLOAT_BYTES = (64, 256, 128, 10), 512, 4
PAIRS = list(pairwise(WIDTHS))
WEIGHTS = {wide * narrow * FLOAT_BYTES for wide, narrow in PAIRS}


@pytest.fixture(scope="module")
def trace(recorded):
    return import_kineto(read_profile(recorded / "profile.json"), model="Net", batch_size=BATCH)


def named(trace, name):
    return [kernel for kernel in trace.kernels if kernel.name == name]


def sizes(trace, tensors):
    return sorted(trace.tensors[tensor].size_bytes for tensor in tensors)


def test_operators_that_take_the_time_are_the_kernels(trace):
    names = [kernel.name for kernel in trace.kernels]
    assert "addmm" in names
    assert not {"linear", "t", "transpose", "expand", "as_strided"} & set(names)
    assert {kernel.time_source for kernel in trace.kernels} == {TimeSource.MEASURED}


def test_an_operator_works_itself_unless_it_hands_all_its_tensors_on(recorded, tmp_path):
    """However long the copy of the bias takes inside a product, the product is the kernel, not the copy."""
    data = json.loads((recorded / "profile.json").read_text())
    spans = [one for one in data["traceEvents"] if one.get("cat") == "cpu_op"]
    products = [one for one in spans if one["name"] == "aten::addmm"]
    for product in products:
        inside = [
            one for one in spans
            if product["ts"] < one["ts"] < product["ts"] + product["dur"] and one["name"] == "aten::copy_"
        ]  # fmt: skip
        inside[0]["dur"] = product["ts"] + product["dur"] - inside[0]["ts"]
    path = tmp_path / "slow_copy.json"
    path.write_text(json.dumps(data))
    assert len(named(import_kineto(read_profile(path)), "addmm")) == len(products) == len(PAIRS)


def both_imports(directory):
    """Return the traces from both recordings of a step."""
    profile = import_kineto(read_profile(directory / "profile.json"), model="Net", batch_size=BATCH)
    return profile, import_execution_trace(directory / "execution.json", price=lambda cost: cost.moved_bytes)


def test_both_recordings_of_a_step_have_the_same_kernels(recorded, record_again):
    """Names may differ: short operators such as 'relu' take longer than 'clamp_min' inside them.

    Where the processor was taken from an operator that only calls others, it looks like one that computes:
    such a step is recorded again.
    """
    trace, other = both_imports(recorded)
    for _ in range(3):
        if len(trace.kernels) != len(other.kernels):
            trace, other = both_imports(record_again())
    assert len(trace.kernels) == len(other.kernels)
    for name in ("addmm", "mm", "threshold_backward"):
        places = [[k.id for k in found.kernels if k.name == name] for found in (trace, other)]
        assert places[0] == places[1] != []


def test_inputs_are_told_by_their_sizes(trace):
    for kernel, (wide, narrow) in zip(named(trace, "addmm"), PAIRS, strict=True):
        expected = [narrow, wide * narrow, BATCH * wide]
        assert sizes(trace, kernel.inputs) == sorted(FLOAT_BYTES * count for count in expected)
        assert FLOAT_BYTES * BATCH * narrow in sizes(trace, kernel.outputs)


def test_a_layers_output_is_the_next_ones_input(trace):
    first, second, third = named(trace, "addmm")
    rectified = [kernel for kernel in trace.kernels if kernel.name in ("relu", "clamp_min")]
    assert set(first.outputs) & set(rectified[0].inputs)
    assert set(rectified[0].outputs) & set(second.inputs)
    assert set(rectified[1].outputs) & set(third.inputs)


def test_the_backward_pass_uses_the_weights_of_the_forward_pass(trace):
    forward = {
        tensor for kernel in named(trace, "addmm") for tensor in kernel.inputs
        if trace.tensors[tensor].size_bytes in WEIGHTS
    }  # fmt: skip
    backward = {
        tensor for kernel in named(trace, "mm") for tensor in kernel.inputs
        if trace.tensors[tensor].persistent
    }  # fmt: skip
    assert backward
    assert backward <= forward
    assert {trace.tensors[tensor].kind for tensor in backward} == {TensorKind.WEIGHT}


def test_births_and_deaths_are_those_of_the_allocations(trace, recorded):
    profile = read_profile(recorded / "profile.json")
    live, most, addresses = 0, 0, {}
    for event in profile.memory:
        if event.size_bytes > 0:
            addresses[event.address] = event.size_bytes
            live += event.size_bytes
        else:
            live -= addresses.pop(event.address, 0)
        most = max(most, live)
    temporary = [tensor for tensor in trace.tensors if not tensor.persistent]
    peak = max(
        sum(t.size_bytes for t in temporary if trace.births[t.id] <= kernel.id < trace.deaths[t.id])
        for kernel in trace.kernels
    )
    # Samples and labels are from before the recording; scratch space of operators is in the events only.
    inputs = BATCH * (64 * FLOAT_BYTES + 8)
    assert peak - inputs <= most * 1.01
    assert peak >= most * 0.9


def test_phases_are_told(trace):
    assert {kernel.phase for kernel in named(trace, "addmm")} == {Phase.FORWARD}
    assert {kernel.phase for kernel in named(trace, "mm")} == {Phase.BACKWARD}
    assert {kernel.phase for kernel in trace.kernels} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


def test_of_several_steps_the_last_is_taken(recorded):
    several = import_kineto(read_profile(recorded / "steps.json.gz"))
    assert len(named(several, "addmm")) == len(PAIRS)


def on_device(data, kernels=("aten::addmm", "aten::clamp_min", "aten::mm", "aten::threshold_backward")):
    """Make a profile of a CUDA device: each of these operators launches kernels of 5 and 2 us."""
    events, correlation = data["traceEvents"], 0
    launched = [e for e in events if e.get("cat") == "cpu_op" and e["name"] in kernels]
    for event in events:
        if event.get("name") == "[memory]":
            event["args"]["Device Type"], event["args"]["Device Id"] = 1, 0
            if abs(event["args"]["Bytes"]) % 512:
                event["args"]["Bytes"] += -event["args"]["Bytes"] % 512
    for operator in launched:
        for microseconds in (5, 2):
            correlation += 1
            common = {"correlation": correlation, "External id": operator["args"]["External id"]}
            start = operator["ts"]  # before any operator inside it
            events += [
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": operator["pid"],
                 "tid": operator["tid"], "ts": start, "dur": 0.5, "args": {"cbid": 211, **common}},
                {"ph": "X", "cat": "kernel", "name": "void gemm<float>", "pid": 0, "tid": 7,
                 "ts": start + 100, "dur": microseconds,
                 "args": {"device": 0, "context": 1, "stream": 7, "grid": [1, 1, 1], **common}},
                {"ph": "s", "cat": "ac2g", "id": correlation, "name": "ac2g", "pid": operator["pid"],
                 "tid": operator["tid"], "ts": start},
            ]  # fmt: skip
    events.append(
        {"ph": "X", "cat": "gpu_memset", "name": "Memset", "pid": 0, "tid": 7, "ts": 1, "dur": 9,
         "args": {"correlation": 10**6, "bytes": 4}}
    )  # fmt: skip
    return len(launched)


@pytest.fixture
def edited(recorded, tmp_path):
    """Write the profile again after a change; return its path."""

    def write(change):
        data = json.loads((recorded / "profile.json").read_text())
        write.result = change(data)
        path = tmp_path / "edited.json.gz"
        path.write_bytes(gzip.compress(json.dumps(data).encode()))
        return path

    return write


def test_on_a_device_operators_that_launch_take_the_times_of_their_kernels(edited):
    path = edited(on_device)
    trace = import_kineto(read_profile(path))
    assert len(trace.kernels) == edited.result
    assert {kernel.name for kernel in trace.kernels} == {"addmm", "clamp_min", "mm", "threshold_backward"}
    assert {kernel.duration for kernel in trace.kernels} == {7000}


def _find(data, category, name=None):
    return next(e for e in data["traceEvents"] if e.get("cat") == category and name in (None, e["name"]))


def _shaped(data, dims, types):
    _find(data, "cpu_op")["args"].update({"Input Dims": dims, "Input type": types})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("traceEvents"), "found no object with 'traceEvents'"),
        (lambda data: data.update(traceEvents={}), "traceEvents: found no list"),
        (lambda data: data["traceEvents"].insert(0, 3), "event 0: found int; allowed: an object"),
        (lambda data: _find(data, "cpu_op").update(dur=-1), "found dur -1; allowed: at least 0"),
        (lambda data: _find(data, "cpu_op").update(ts="now"), "found ts 'now'; allowed: a number of micro"),
        (lambda data: _find(data, "cpu_op").update(ts=float("nan")), "found ts nan; allowed: a number of"),
        (lambda data: _find(data, "cpu_op").update(dur=float("inf")), "found dur inf; allowed: a number of"),
        (lambda data: _shaped(data, [["x"]], ["float"]), "found Input Dims [['x']]; allowed: a list of sh"),
        (lambda data: _shaped(data, [[[2, 3]]], ["float"]), "Input Dims [[2, 3]] of type float"),
        (lambda data: _shaped(data, [[2, 3]], ["TensorList"]), "Input Dims [2, 3] of type TensorList"),
        (lambda data: _shaped(data, [[2, 3]], [{}]), "found Input type [{}]; allowed: texts"),
        (lambda data: _find(data, "cpu_op").update(name="\ud800"), "found half a character"),
        (lambda data: _find(data, "cpu_op").pop("name"), "found name None; allowed: a text"),
        (lambda data: _find(data, "cpu_op").update(args=[]), "found args []; allowed: an object"),
        (lambda data: _find(data, "cpu_op").update(tid=None), "found tid None; allowed: a number or a text"),
        (
            lambda data: _find(data, "cpu_instant_event")["args"].pop("Bytes"),
            "found Bytes None; allowed: an integer",
        ),
        (
            lambda data: on_device(data) and _find(data, "kernel")["args"].pop("correlation"),
            "correlation None",
        ),
        (
            lambda data: on_device(data) and _find(data, "kernel")["args"].update(device=[0]),
            "found device [0]; allowed: a number or a text",
        ),
        (
            lambda data: on_device(data) and _find(data, "kernel")["args"].update(bytes="many"),
            "found bytes 'many'; allowed: an integer",
        ),
    ],
)
def test_a_malformed_file_is_refused(edited, change, message):
    path = edited(change)
    with pytest.raises(TraceError) as refused:
        import_kineto(read_profile(path))
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_shapes.json", "found no operator with shapes; allowed: a profile with record_shapes=True"),
        ("no_memory.json", "found no memory events; allowed: a profile with profile_memory=True"),
    ],
)
def test_a_profile_without_what_is_needed_is_refused(recorded, name, message):
    with pytest.raises(TraceError, match=message):
        import_kineto(read_profile(recorded / name))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"traceEvents": ', "\x1f\x8b"])
def test_what_is_no_profile_is_refused(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError, match=r"allowed: a profile of PyTorch"):
        read_profile(path)


def test_flipped_bits_of_an_archive_are_noticed_or_harmless(tmp_path):
    path = tmp_path / "flipped.json.gz"
    data = gzip.compress(json.dumps({"traceEvents": [], "x": list(range(99))}).encode(), mtime=0)
    path.write_bytes(data)
    whole, harmless = read_profile(path), 0
    for bit in range(80, 8 * len(data), 5):  # behind the header
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        try:
            assert read_profile(path) == whole
            harmless += 1
        except TraceError:
            continue
    assert harmless <= 1  # bits between the data and their checksum


def test_an_archive_that_expands_beyond_measure_is_not_read(tmp_path):
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [')
        for _ in range(50):
            file.write(b"[]," * 2**18)
    with pytest.raises(TraceError, match=r"cannot be read: \d+ bytes and more are packed into \d+"):
        read_profile(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_profile(tmp_path / "nowhere.json")
