"""Profiles by hand: malformed events, who launched what, work of the CPU, and the edges of steps."""

import json
import tarfile

import pytest
from profiles import MB, ProfileBuilder, two_products

from g10sim.errors import TraceError
from g10sim.importers.account import Reason, account_of
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile
from g10sim.trace.model import Device, TensorKind

SHAPE = [[1024, 1024]]


def imported(made, tmp_path, **options):
    return import_kineto(read_profile(made.save(tmp_path / "profile.json")), **options)


def names(trace):
    return [kernel.name for kernel in trace.kernels]


def durations(trace):
    return [kernel.duration // 1000 for kernel in trace.kernels]


def shaped(dims, kinds):
    return {"args": {"Input Dims": dims, "Input type": kinds}}


@pytest.mark.parametrize(
    ("category", "change", "message"),
    [
        ("cpu_op", {"dur": -1}, "found dur -1; allowed: at least 0"),
        ("kernel", {"dur": -0.5}, "found dur -0.5; allowed: at least 0"),
        ("cpu_op", {"ts": "now"}, "found ts 'now'; allowed: a number of microseconds"),
        ("cpu_op", {"ts": float("nan")}, "found ts nan; allowed: a number of microseconds"),
        ("cpu_op", {"ts": 10**18}, "found ts 1000000000000000000; allowed: a number of microseconds"),
        ("cpu_op", {"name": None}, "found name None; allowed: a text"),
        ("cpu_op", {"args": []}, "found args []; allowed: an object"),
        ("cpu_op", {"tid": None}, "found tid None; allowed: a number or a text"),
        ("cpu_op", shaped([["x"]], ["float"]), "found Input Dims [['x']]; allowed: a list of shapes"),
        (
            "cpu_op",
            shaped([[2, 3]], ["TensorList"]),
            "found Input Dims [2, 3] of type TensorList; allowed: a",
        ),
        ("cpu_op", shaped([[2, 3]], [{}]), "found Input type [{}]; allowed: texts"),
        (
            "cpu_instant_event",
            {"args": {"Addr": 1, "Device Type": 1}},
            "found Bytes None; allowed: an integer",
        ),
        ("kernel", {"args": {}}, "found correlation None; allowed: an integer"),
    ],
)
def test_a_malformed_event_is_named(tmp_path, category, change, message):
    made = two_products()
    number = next(at for at, event in enumerate(made.events) if event["cat"] == category)
    made.events[number] |= change
    with pytest.raises(TraceError) as refused:
        imported(made, tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'profile.json'}: event {number}: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "found no object with 'traceEvents'; allowed: a profile of PyTorch (JSON)"),
        ([], "found no object with 'traceEvents'; allowed: a profile of PyTorch (JSON)"),
        ({"traceEvents": {}}, "traceEvents: found no list; allowed: a profile of PyTorch"),
        ([3], "event 0: found int; allowed: an object"),
    ],
)
def test_a_file_without_events_is_refused(tmp_path, content, message):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TraceError) as refused:
        read_profile(path)
    assert str(refused.value) == f"{path}: {message}"


def test_half_a_character_is_refused(tmp_path):
    path = two_products().span("cpu_op", "\ud800", 700, 1).save(tmp_path / "profile.json")
    with pytest.raises(TraceError, match=r"found half a character \('\\ud800'\); allowed: Unicode text$"):
        read_profile(path)


@pytest.mark.parametrize("others", [0, 1])
def test_an_archive_has_one_profile_and_perhaps_other_files(tmp_path, others):
    profile = two_products().save(tmp_path / "profile.json")
    (tmp_path / "read.me").write_text("{}")
    path = tmp_path / "profile.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "read.me", "read.me")
        for number in range(1 + others):
            archive.add(profile, f"{number}.json")
    if not others:
        assert durations(import_kineto(read_profile(path))) == [100, 100]
        return
    with pytest.raises(TraceError, match="found 2 JSON files in it; allowed: one, a profile of PyTorch"):
        read_profile(path)


def test_the_order_of_a_files_events_is_of_no_account(tmp_path):
    """Operators that begin at one time lie in each other: the longer one is outside."""
    made = ProfileBuilder(total=8 * MB).step(1, 0, 1000)
    made.span("cpu_op", "aten::linear", 10, 300, **{"Input Dims": [[8]], "Input type": ["float"]})
    made.operator("aten::mm", 10, (30, 100), allocates=0x1000)
    made.operator("aten::mm", 40, (150, 100), allocates=0x2000)
    forward = imported(made, tmp_path)
    made.events.reverse()
    assert imported(made, tmp_path) == forward
    assert names(forward) == ["mm", "mm"]


def test_the_innermost_operator_at_a_launch_has_its_kernels(tmp_path):
    """One that ends when the kernel is launched, or is of another thread, has not; nobody's stand alone."""
    made = ProfileBuilder(total=8 * MB).step(1, 0, 1000)
    made.span("cpu_op", "aten::linear", 10, 90, **{"Input Dims": SHAPE, "Input type": ["float"]})
    made.operator("aten::mm", 20, None, allocates=0x1000)
    made.span("cpu_op", "aten::other", 10, 900, tid=5, **{"Input Dims": SHAPE, "Input type": ["float"]})
    made.launch(20, [("inside", 200, 10)])
    made.launch(40, [("at its end", 210, 10)])
    made.launch(60, [("outside", 220, 10)])
    made.launch(100, [("after both", 230, 10)])
    trace = imported(made, tmp_path)
    assert names(trace) == ["linear", "mm", "after both"]
    assert durations(trace) == [20, 10, 10]


def host(made, name, at, duration, shapes=SHAPE, address=None, kind="float"):
    """An operator of the CPU, which allocates a tensor as large as its first one."""
    made.span("cpu_op", name, at, duration, **{"Input Dims": shapes, "Input type": [kind] * len(shapes)})
    if address:
        made.memory(at + 1, address, 4 * MB, device=-1, kind=0)
    return made


def test_operators_of_the_cpu_work_themselves_unless_they_hand_their_tensors_on(tmp_path):
    made = ProfileBuilder().step(1, 0, 9000)
    host(made, "aten::relu", 100, 100)
    host(made, "aten::clamp_min", 120, 80, address=1)  # has all of the tensors and most of the time
    host(made, "aten::mul", 300, 100, address=2)
    host(made, "aten::copy_", 310, 90, shapes=[[512, 1024]])  # has another tensor
    host(made, "aten::add", 500, 100, address=3)
    host(made, "aten::to", 510, 50)  # has no more than half of the time
    host(made, "aten::view", 700, 100, address=4)
    host(made, "autograd::engine::evaluate_function: MulBackward0", 900, 100, address=5)
    host(made, "aten::empty", 1100, 100, address=6)
    host(made, "aten::div", 1300, 100, address=7)
    host(made, "aten::outer", 1310, 45)
    host(made, "aten::inner", 1310, 45)  # its time is that of the one around it already
    host(made, "aten::cumsum", 1500, 100, shapes=[[2**20]], kind="double")
    host(made, "aten::sub", 1510, 90, shapes=[[2**21]], address=8)  # as many bytes are the same tensors
    host(made, "aten::eq", 1700, 7)
    trace = imported(made, tmp_path)
    assert names(trace) == ["clamp_min", "mul", "add", "div", "sub"]
    assert durations(trace) == [80, 100, 100, 100, 90]
    account = account_of(trace)
    assert account.imported_ns == 470_000
    assert account.left_out == {Reason.OUTPUTS: 7_000}


def test_processes_do_not_see_each_others_work(tmp_path):
    made = ProfileBuilder()
    for pid, name, size in ((1, "aten::abs", 4 * MB), (2, "aten::neg", 8 * MB)):
        made.step(1, 0, 1000, pid=pid)
        made.span("cpu_op", name, 10 * pid, 50, pid=pid, **{"Input Dims": SHAPE, "Input type": ["float"]})
        made.memory(10 * pid + 5, 0x1000, size, device=-1, kind=0, pid=pid)
    for process, name, size in (("1", "abs", 4 * MB), ("2", "neg", 8 * MB)):
        trace = imported(made, tmp_path, process=process)
        assert names(trace) == [name]
        assert [trace.tensors[one].size_bytes for one in trace.kernels[0].outputs] == [size]


@pytest.mark.parametrize(
    ("lengths", "taken"),
    [((1000, 100), 2), ((1000, 99), 1), ((500, 1000, 60), 2), ((1000, 500, 60), 2), ((60,), 1)],
)
def test_the_last_step_is_a_sliver_below_a_tenth_of_the_longest_other_one(tmp_path, lengths, taken):
    made, begin = ProfileBuilder(), 0
    for number, length in enumerate(lengths, 1):
        made.step(number, begin, length)
        made.operator("aten::mm", begin, (begin + 10, number), allocates=number)
        begin += length
    trace = imported(made, tmp_path)
    assert durations(trace) == [taken]
    assert trace.origin["step"].startswith(f"{taken} of 1")


def test_what_begins_with_a_step_is_in_it_and_what_begins_with_the_next_is_not(tmp_path):
    made = ProfileBuilder().step(1, 100, 100).step(2, 200, 100)
    for at, duration in ((100, 7), (200, 9)):
        made.operator("aten::mm", at, None, allocates=at)
        made.launch(at, [("k", at + 20, duration)])
    assert durations(imported(made, tmp_path, step=1)) == [7]
    assert durations(imported(made, tmp_path, step=2)) == [9]
    assert account_of(imported(made, tmp_path, step=1)).aside == {Reason.OUTSIDE: 9_000}


def test_steps_without_operators_are_passed_over(tmp_path):
    made = ProfileBuilder().step(1, 0, 100).step(2, 100, 100).step(3, 200, 10)
    made.operator("aten::mm", 110, (150, 9), allocates=1)
    trace = imported(made, tmp_path)
    assert durations(trace) == [9]
    assert trace.origin["step"] == "2 of 2 (1, 3 without operators)"
    assert imported(made, tmp_path, step=2).origin["step"] == "2 of 1, 2, 3"
    with pytest.raises(TraceError, match="found no operator that does work"):
        imported(made, tmp_path, step=1, partial=True)


@pytest.mark.parametrize(
    ("steps", "words"), [(0, "all of the file: no step is marked"), (1, "all: no step has operators")]
)
def test_without_steps_that_work_all_is_imported(tmp_path, steps, words):
    made = ProfileBuilder()
    made.operator("aten::mm", 110, (150, 9), allocates=1).operator("aten::mm", 210, (250, 9), allocates=2)
    for number in range(steps):
        made.step(number, 500, 100)
    trace = imported(made, tmp_path)
    assert durations(trace) == [9, 9]
    assert trace.origin["step"] == words
    assert f"step: {words}" in account_of(trace).facts


def test_kernels_of_one_stream_that_begin_at_one_time_run_after_each_other(tmp_path):
    """The second operator's kernel runs first, on another stream, and 50 us pass until the others."""
    made = ProfileBuilder().step(1, 0, 1000)
    made.operator("aten::mm", 10, None, allocates=1)
    made.launch(20, [("a", 300, 10), ("b", 300, 5)])
    made.operator("aten::abs", 40, (150, 100), shapes=SHAPE, allocates=2, stream=8)
    trace = imported(made, tmp_path)
    assert (names(trace), durations(trace)) == (["mm", "abs"], [15, 100])
    assert account_of(trace).aside == {Reason.GAPS: 50_000}
    kept = account_of(imported(made, tmp_path, keep_gaps=True))
    assert kept.aside == {"gaps, kept as idle time of the host": 50_000}


def optimizer_on_cpu(made, *, copied_bytes):
    """A gradient that is copied to the host, and operators of the optimizer with and without kernels."""
    made.operator("aten::mm", 10, (30, 100), allocates=0x1000)
    if copied_bytes:
        made.operator("aten::copy_", 300, None)
        made.launch(310, [], name="cudaMemcpyAsync")
        args = {"correlation": made.correlation, "device": 0, "stream": 7, "bytes": copied_bytes}
        made.span("gpu_memcpy", "Memcpy DtoH (Device)", 320, 20, pid=0, tid=7, **args)
    made.span("user_annotation", "Optimizer.step#CPUAdam.step", 400, 300)
    made.operator("aten::add_", 410, None)
    made.operator("aten::add_", 450, None, shapes=[[1]])  # counts steps
    made.span("cpu_op", "aten::outer", 490, 40, **{"Input Dims": SHAPE, "Input type": ["float"]})
    made.operator("aten::mul_", 500, (600, 7), shapes=SHAPE)
    made.operator("aten::div_", 540, None, shapes=[[1], [1024, 1024]])
    return made


@pytest.mark.parametrize(("copied_bytes", "on_cpu"), [(0, []), (1023, []), (1024, ["add_", "div_"])])
def test_the_optimizer_runs_on_the_cpu_where_gradients_are_copied_there(tmp_path, copied_bytes, on_cpu):
    trace = imported(optimizer_on_cpu(ProfileBuilder().step(1, 0, 1000), copied_bytes=copied_bytes), tmp_path)
    assert [kernel.name for kernel in trace.kernels if kernel.device is Device.CPU] == on_cpu
    told = "2 kernels of the optimizer run on the CPU (40 us)" in account_of(trace).facts
    assert told == bool(on_cpu)


@pytest.mark.parametrize(
    ("kind", "fed"),
    [("long int", True), ("unsigned", True), ("bool", True), ("float", False), ("c10::Float8_e5m2", False)],
)
def test_whole_numbers_are_inputs(tmp_path, kind, fed):
    made = ProfileBuilder().step(1, 0, 1000)
    made.operator("aten::abs", 10, (30, 9), shapes=[[128]], types=[kind], strides=[[1]], allocates=1)
    trace = imported(made, tmp_path)
    read = trace.tensors[trace.kernels[0].inputs[0]]
    assert read.kind is (TensorKind.INPUT if fed else TensorKind.WEIGHT)
    assert read.size_bytes == {"long int": 1024}.get(kind, 512)


def test_tensors_of_unknown_types_are_counted(tmp_path):
    made = two_products()
    for at in (300, 330, 360):
        made.operator("aten::abs", at, (at + 200, 9), shapes=[[8], []], types=["Odd", "Odder"], allocates=at)
    warnings = list(account_of(imported(made, tmp_path)).warnings())
    assert "3 tensors of type 'Odd' are left out: its size is not known" in warnings
    assert not any("Odder" in text for text in warnings)


@pytest.mark.parametrize(("bare_us", "told"), [(2, False), (3, True)])
def test_kernels_without_tensors_are_told_above_a_hundredth_of_the_time(tmp_path, bare_us, told):
    made = two_products()
    made.launch(300, [("bare", 500, bare_us)])
    warnings = list(account_of(imported(made, tmp_path)).warnings())
    bare = [text for text in warnings if "kernels whose tensors the file does not name" in text]
    assert bare == ["1.5% of the time are kernels whose tensors the file does not name"] * told
