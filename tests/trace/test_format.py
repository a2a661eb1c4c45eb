"""Trace files: what is written comes back, and nothing else is ever taken for a trace."""

import gzip
import json
import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from g10sim.errors import TraceError
from g10sim.trace.format import load_trace, save_trace, trace_hash
from g10sim.trace.model import Device, FaultProfile, Kernel, Phase, Tensor, TensorKind, TimeSource, Trace
from g10sim.trace.synthetic import chain, long_chain, random_trace

IN_ONE_DIRECTORY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


def lines_of(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def write_plain(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def edited(lines, index, **changes):
    """The lines with keys of one of them changed (None removes a key) and no hash."""
    records = [json.loads(line) for line in lines]
    records[0].pop("sha256")
    for key, value in changes.items():
        if value is None:
            del records[index][key]
        else:
            records[index][key] = value
    return [json.dumps(record) for record in records]


@pytest.fixture
def trace():
    """Two tensors and two kernels that use every field."""
    return Trace(
        model="tiny",
        batch_size=8,
        ticks_per_second=1_000_000,
        tensors=(
            Tensor(0, "wörd [x]", 4096, TensorKind.WEIGHT, True),
            Tensor(1, "out", 1, TensorKind.ACTIVATION, False),
        ),
        kernels=(
            Kernel(0, "Plain", 5, (0,), (1,)),
            Kernel(
                id=1,
                name="Full",
                duration=0,
                inputs=(1, 0),
                outputs=(0,),
                phase=Phase.OPTIMIZER,
                layer="a.b",
                layer_type="Linear",
                flops=10**15,
                moved_bytes=3,
                operator_class="matmul",
                time_source=TimeSource.ROOFLINE,
                fault_profile=FaultProfile(2, 7),
            ),
        ),
        origin={"command": "by hand", "GPU": "none"},
    )


@pytest.fixture
def file(tmp_path, trace):
    path = tmp_path / "tiny.g10t"
    save_trace(trace, path)
    return path


def error_of(path):
    with pytest.raises(TraceError) as found:
        load_trace(path)
    message = str(found.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_every_field_comes_back(file, trace):
    assert load_trace(file) == trace


def test_kernels_that_are_alike_share_what_is_equal(tmp_path):
    path = tmp_path / "alike.g10t"
    kernels = tuple(Kernel(number, "k", 10**6, (0, 1), (300,)) for number in range(2))
    tensors = tuple(Tensor(number, "t", 1, TensorKind.WEIGHT, True) for number in range(301))
    save_trace(Trace("m", 1, 10**9, tensors, kernels), path)
    first, second = load_trace(path).kernels
    for name in ("duration", "inputs", "outputs", "tensors"):
        assert getattr(first, name) is getattr(second, name)


def test_plain_text_is_read_too(file, trace):
    plain = write_plain(file.with_name("plain.g10t"), lines_of(file))
    assert load_trace(plain) == trace


def test_defaults_are_left_out(file):
    assert json.loads(lines_of(file)[3]) == {
        "kernel": 0,
        "name": "Plain",
        "duration": 5,
        "inputs": [0],
        "outputs": [1],
    }


def test_equal_traces_give_equal_bytes_and_no_other_file(tmp_path, trace):
    save_trace(trace, tmp_path / "a.g10t")
    save_trace(replace(trace, origin=dict(reversed(trace.origin.items()))), tmp_path / "b.g10t")
    assert (tmp_path / "a.g10t").read_bytes() == (tmp_path / "b.g10t").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.g10t", "b.g10t"]


def test_a_link_stays_and_a_pipe_is_refused(tmp_path, trace):
    (tmp_path / "link.g10t").symlink_to("file.g10t")
    os.mkfifo(tmp_path / "pipe")
    save_trace(trace, tmp_path / "link.g10t")
    assert (tmp_path / "link.g10t").is_symlink()
    assert load_trace(tmp_path / "file.g10t") == trace
    with pytest.raises(TraceError, match="pipe: cannot be written: it is a pipe or a device; allowed: a wri"):
        save_trace(trace, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.g10t", "link.g10t", "pipe"]


def test_hash_covers_everything_but_origin(trace):
    original = trace_hash(trace)
    assert trace_hash(replace(trace, origin={})) == original
    assert trace_hash(replace(trace, batch_size=9)) != original
    assert trace_hash(replace(trace, model="other")) != original
    changed = replace(trace.kernels[1], fault_profile=FaultProfile(2, 8))
    assert trace_hash(replace(trace, kernels=(trace.kernels[0], changed))) != original


def test_header_carries_the_hash(file, trace):
    assert json.loads(lines_of(file)[0])["sha256"] == trace_hash(trace)


@given(seed=st.integers(0, 10**6), kernels=st.integers(1, 60))
@IN_ONE_DIRECTORY
def test_random_traces_come_back(tmp_path, seed, kernels):
    trace = random_trace(seed, kernels=kernels)
    save_trace(trace, tmp_path / "random.g10t")
    assert load_trace(tmp_path / "random.g10t") == trace


def loaded_or_refused(path, original):
    """Load; anything but the original (origin apart, which no hash covers) must be refused in one line."""
    try:
        found = load_trace(path)
    except TraceError as error:
        return str(error).startswith(f"{path}: ") and "; allowed: " in str(error) and "\n" not in str(error)
    return replace(found, origin={}) == replace(original, origin={})


@given(data=st.data())
@IN_ONE_DIRECTORY
def test_changed_text_is_a_trace_error_or_the_same_trace(tmp_path, data):
    trace = chain(1)
    path = tmp_path / "changed.g10t"
    save_trace(trace, path)
    text = gzip.decompress(path.read_bytes()).decode()
    position = data.draw(st.integers(0, len(text) - 1))
    inserted = data.draw(st.text(max_size=3))
    removed = data.draw(st.integers(0, 40))
    # Without "sha256" a file says nothing about its contents, so the key stays.
    changed = text[:position] + inserted + text[position + removed :]
    path.write_text(changed if '"sha256":"' in changed else text)
    assert loaded_or_refused(path, trace)


@given(data=st.data())
@IN_ONE_DIRECTORY
def test_changed_bytes_are_a_trace_error_or_the_same_trace(tmp_path, data):
    trace = chain(1)
    path = tmp_path / "changed.g10t"
    save_trace(trace, path)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position : position + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=30))
    path.write_bytes(content)
    assert loaded_or_refused(path, trace)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5
)


@pytest.mark.parametrize("index", [0, 1, 7])
@given(data=st.data(), value=ANY_JSON)
@IN_ONE_DIRECTORY
def test_any_json_in_any_place_is_a_trace_error_or_a_trace(tmp_path, index, data, value):
    path = tmp_path / "a.g10t"
    save_trace(chain(1), path)
    lines = lines_of(path)
    key = data.draw(st.sampled_from(list(json.loads(lines[index]))))
    records = [json.loads(line) for line in lines]
    records[0].pop("sha256")
    records[index][key] = value
    write_plain(path, [json.dumps(record) for record in records])
    try:
        accepted = bool(load_trace(path).kernels)
    except TraceError as error:
        accepted = "; allowed: " in str(error)
    assert accepted


def test_missing_file(tmp_path):
    message = error_of(tmp_path / "none.g10t")
    assert message == "cannot be read: No such file or directory; allowed: a readable file"


def test_directory(tmp_path):
    assert error_of(tmp_path) == "cannot be read: Is a directory; allowed: a readable file"


def test_empty_file(tmp_path):
    path = write_plain(tmp_path / "empty.g10t", [])
    assert error_of(path) == "line 1: found the end of the file; allowed: a header"


@pytest.mark.parametrize(
    ("name_bytes", "message"),
    [
        (2**20, r"after line \d+: found compressed data that .* bytes and more are packed into \d+\)"),
        (2**25, "line 2: found a line of 16777216 bytes or more; allowed: shorter ones"),
    ],
)
@pytest.mark.slow
def test_an_archive_that_expands_beyond_measure_is_not_read(tmp_path, name_bytes, message):
    path = tmp_path / "bomb.g10t"
    save_trace(chain(1), path)
    header = {**json.loads(lines_of(path)[0]), "tensors": 0, "kernels": 10**9}
    kernel = {"kernel": 0, "name": "k" * name_bytes, "duration": 1, "inputs": [], "outputs": []}
    with gzip.open(path, "wb") as file:
        file.write(f"{json.dumps(header)}\n".encode())
        for _ in range(2**25 // name_bytes):
            file.write(f"{json.dumps(kernel)}\n".encode())
    assert path.stat().st_size < 10**5
    with pytest.raises(TraceError, match=message):
        load_trace(path)


def test_truncated_gzip(tmp_path):
    path = tmp_path / "cut.g10t"
    save_trace(long_chain(2000), path)
    path.write_bytes(path.read_bytes()[:-100])
    message = error_of(path)
    assert message.startswith("after line ")
    assert message.endswith("; allowed: a whole gzip file")


def test_not_a_trace(tmp_path):
    path = write_plain(tmp_path / "x.yaml", ["name: overall"])
    assert error_of(path) == "line 1: found 'name: overall'; allowed: one JSON object (Expecting value)"


def test_binary_data(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"\xff\xfe\n")
    assert error_of(path) == "line 1: found byte 0xff; allowed: UTF-8 text or gzip data"


def test_half_a_character(file):
    lines = lines_of(file)
    lines[1] = lines[1].replace("[x]", "\\ud800")
    assert error_of(write_plain(file, lines)) == (
        "line 2: found half a character ('\\ud800'); allowed: Unicode text"
    )


def test_line_ends_in_names_do_not_break_messages(file):
    message = error_of(write_plain(file, edited(lines_of(file), 1, name="a\nb", size_bytes=0)))
    assert message == "line 2: tensor 0: 'a\\nb': found size_bytes 0; allowed: at least 1"


def test_deep_nesting(tmp_path):
    path = write_plain(tmp_path / "deep.g10t", ["[" * 100_000])
    assert "allowed: one JSON object (RecursionError)" in error_of(path)


@pytest.mark.parametrize(
    ("key", "twice"), [("size_bytes", '"size_bytes":1,"size_bytes"'), ("kind", '"kind":"other","kind"')]
)
def test_a_key_that_is_twice_in_a_line(file, key, twice):
    lines = lines_of(file)
    lines[1] = lines[1].replace(f'"{key}"', twice)
    assert error_of(write_plain(file, lines)) == f"line 2: found key '{key}' twice; allowed: once"


def test_enormous_number(file):
    lines = lines_of(file)
    lines[1] = lines[1].replace("4096", "4" * 5000)
    assert "allowed: one JSON object (ValueError)" in error_of(write_plain(file, lines))


HEADER_CASES = [
    ({"format": "g10sim-plan"}, "found format 'g10sim-plan'; allowed: 'g10sim-trace'"),
    ({"version": 3}, "found version 3; allowed: 1 or 2"),
    ({"version": True}, "found version True; allowed: 1 or 2"),
    ({"model": 3}, "model: found 3; allowed: a text"),
    ({"model": None}, "found no model; allowed: model with a text"),
    ({"batch_size": 0}, "found batch_size 0; allowed: 1 to 2^63-1"),
    ({"batch_size": 1.5}, "batch_size: found 1.5; allowed: an integer"),
    ({"ticks_per_second": 0}, "found ticks_per_second 0; allowed: 1 to 10^12 (picoseconds)"),
    ({"tensors": -1}, "tensors: found -1; allowed: 0 or more"),
    ({"origin": {"gpu": 1}}, "origin.gpu: found 1; allowed: a text"),
    (
        {"colour": "red"},
        "found unknown key 'colour'; allowed: format, version, model, batch_size, ticks_per_second, "
        "tensors, kernels, sha256, origin",
    ),
]


@pytest.mark.parametrize(("changes", "message"), HEADER_CASES)
def test_header_messages(file, changes, message):
    assert error_of(write_plain(file, edited(lines_of(file), 0, **changes))) == f"line 1: {message}"


TENSOR_CASES = [
    ({"tensor": 4}, "tensor 0: found id 4; allowed: 0 (ids count up from 0)"),
    ({"size_bytes": 0}, "tensor 0: 'wörd [x]': found size_bytes 0; allowed: at least 1"),
    ({"size_bytes": "1 kB"}, "size_bytes: found '1 kB'; allowed: an integer"),
    ({"size_bytes": True}, "size_bytes: found True; allowed: an integer"),
    ({"persistent": 1}, "persistent: found 1; allowed: true or false"),
    (
        {"kind": "wight"},
        "kind: found 'wight'; allowed: weight, buffer, gradient, optimizer_state, activation, input, "
        "temporary, workspace, other",
    ),
    ({"name": None}, "found no name; allowed: name with a text"),
]


@pytest.mark.parametrize(("changes", "message"), TENSOR_CASES)
def test_tensor_messages(file, changes, message):
    assert error_of(write_plain(file, edited(lines_of(file), 1, **changes))) == f"line 2: {message}"


KERNEL_CASES = [
    ({"kernel": 0}, "kernel 1: found id 0; allowed: 1 (ids count up from 0)"),
    ({"duration": -1}, "kernel 1: 'Full': found duration -1; allowed: 0 or more"),
    ({"inputs": [0, 2]}, "kernel 1: 'Full': found unknown tensor 2 among its inputs; allowed: 0 to 1"),
    ({"outputs": [-1]}, "kernel 1: 'Full': found unknown tensor -1 among its outputs; allowed: 0 to 1"),
    ({"inputs": [1, 1]}, "kernel 1: 'Full': found tensor 1 twice among its inputs; allowed: once"),
    ({"inputs": ["out"]}, "inputs: found 'out' in a list; allowed: integers"),
    ({"inputs": 0}, "inputs: found 0; allowed: a list of integers"),
    ({"phase": "up"}, "phase: found 'up'; allowed: forward, backward, optimizer, other"),
    ({"device": "fpga"}, "device: found 'fpga'; allowed: gpu, cpu, links"),
    (
        {"time_source": "guess"},
        "time_source: found 'guess'; allowed: measured, benchmarked, roofline, bytes, synthetic, none",
    ),
    ({"fault_profile": [1]}, "fault_profile: found [1]; allowed: [outputs_faulting, all_faulting]"),
    (
        {"fault_profile": [9, 7]},
        "kernel 1: 'Full': found fault_profile (9, 7) with duration 0; "
        "allowed: duration <= outputs_faulting <= all_faulting",
    ),
    ({"flops": -1}, "kernel 1: 'Full': found flops -1; allowed: 0 to 2^63-1"),
    ({"moved_bytes": 2**63}, f"kernel 1: 'Full': found moved_bytes {2**63}; allowed: 0 to 2^63-1"),
]


@pytest.mark.parametrize(("changes", "message"), KERNEL_CASES)
def test_kernel_messages(file, changes, message):
    assert error_of(write_plain(file, edited(lines_of(file), 4, **changes))) == f"line 5: {message}"


def test_tensor_used_before_it_exists(file):
    message = error_of(write_plain(file, edited(lines_of(file), 3, inputs=[1])))
    assert message == (
        "line 4: kernel 0: 'Plain': reads tensor 1 ('out') before it exists; "
        "allowed: a tensor that an earlier kernel wrote, a persistent one, or one of kind input"
    )


def test_missing_line(file):
    message = error_of(write_plain(file, lines_of(file)[:-1]))
    assert message == "line 5: found the end of the file; allowed: a kernel (the header promises more)"


def test_missing_tensor_line(file):
    lines = lines_of(file)
    message = error_of(write_plain(file, lines[:2] + lines[3:]))
    assert message.startswith("line 3: found {'kernel': 0, ")
    assert message.endswith("allowed: a tensor (the header promises more)")


def test_line_too_many(file):
    lines = lines_of(file)
    message = error_of(write_plain(file, [*lines, "{}"]))
    assert message == "line 6: found '{}'; allowed: nothing (the header promises 2 tensors and 2 kernels)"


def test_contents_that_do_not_match_the_hash(file):
    lines = lines_of(file)
    lines[1] = lines[1].replace("4096", "4097")
    message = error_of(write_plain(file, lines))
    assert message.startswith("line 1: found contents with sha256 ")
    assert message.endswith("as the header says (the file was changed after it was written)")


def test_same_contents_in_other_spelling_match_the_hash(file, trace):
    spaced = [json.dumps(dict(reversed(json.loads(line).items())), indent=None) for line in lines_of(file)]
    assert load_trace(write_plain(file, spaced)) == trace


def test_windows_line_ends(file, trace):
    path = file.with_name("windows.g10t")
    path.write_bytes("".join(f"{line}\r\n" for line in lines_of(file)).encode())
    assert load_trace(path) == trace


def test_hand_made_file_needs_no_hash(file, trace):
    assert load_trace(write_plain(file, edited(lines_of(file), 0))) == trace


def test_a_list_without_numbers_is_as_none(file, trace, tmp_path):
    lines = edited(lines_of(file), 3, reads=[])
    assert load_trace(write_plain(tmp_path / "plain.g10t", lines)) == trace


def test_bad_trace_is_not_written(tmp_path, trace):
    bad = replace(trace, batch_size=0)
    with pytest.raises(TraceError, match="not written: found batch_size 0; allowed: 1 to"):
        save_trace(bad, tmp_path / "bad.g10t")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path(tmp_path, trace):
    path = tmp_path / "none" / "x.g10t"
    with pytest.raises(TraceError) as found:
        save_trace(trace, path)
    assert (
        str(found.value) == f"{path}: cannot be written: No such file or directory; allowed: a writable path"
    )


def test_directory_as_output(tmp_path, trace, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (".", str(tmp_path)):
        with pytest.raises(TraceError, match=r"cannot be written: .*; allowed: a writable path"):
            save_trace(trace, path)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, trace, monkeypatch):
    path = tmp_path / "x.g10t"
    save_trace(trace, path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(TraceError, match="cannot be written: No space left on device"):
        save_trace(replace(trace, batch_size=9), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.g10t"]


def test_thousands_of_kernels_come_back(tmp_path):
    trace = long_chain(5000)
    save_trace(trace, tmp_path / "long.g10t")
    assert load_trace(tmp_path / "long.g10t") == trace


def test_kernels_on_the_cpu_say_so_and_others_nothing(tmp_path, trace):
    kernels = (*trace.kernels, Kernel(2, "Step", 0, (0,), (0,), device=Device.CPU, parameters=7))
    path = tmp_path / "offloaded.g10t"
    save_trace(replace(trace, kernels=kernels), path)
    assert load_trace(path).kernels == kernels
    *others, last = lines_of(path)
    assert json.loads(last).items() >= {"device": "cpu", "parameters": 7}.items()
    assert not any("device" in line or "parameters" in line for line in others)
    found = error_of(write_plain(path, edited(lines_of(path), -1, device="tpu")))
    assert found.endswith("device: found 'tpu'; allowed: gpu, cpu, links")
