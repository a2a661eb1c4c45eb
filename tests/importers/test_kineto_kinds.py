"""Profiles as machines record them: steps, devices, streams, graphs, types, copies, and nearly JSON."""

import json

import pytest
from profiles import MB, ProfileBuilder, two_products

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.errors import TraceError
from g10sim.importers.account import Reason, account_of
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import Span, innermost, read_profile
from g10sim.importers.operations import ByHand
from g10sim.trace.model import Device, Phase, TensorKind


def imported(made, tmp_path, **options):
    return import_kineto(read_profile(made.save(tmp_path / "profile.json")), **options)


def durations(trace):
    return [kernel.duration // 1000 for kernel in trace.kernels]


def kinds(trace, kind):
    return sum(tensor.size_bytes for tensor in trace.tensors if tensor.kind is kind)


def names(trace):
    return [kernel.name for kernel in trace.kernels]


def test_of_spans_that_overlap_the_one_that_began_last_owns_what_begins_in_it():
    def span(start, end):
        return Span("", start, end, (1, 2), {})

    owner = innermost([span(0, 10), span(2, 4), span(5, 15), span(6, 7), span(20, 30), span(20, 30)])
    starts = {0: 0, 2: 1, 4: 0, 5: 2, 6: 3, 7: 2, 10: 2, 14: 2, 15: None, 20: 5, 30: None}
    assert {start: owner(span(start, start)) for start in starts} == starts
    assert owner(None) is None
    assert owner(Span("", 3, 3, (1, 3), {})) is None


def test_all_device_time_is_imported_and_gaps_are_told(tmp_path):
    account = account_of(imported(two_products(), tmp_path))
    assert (account.imported_ns, account.left_out, account.aside) == (200_000, {}, {Reason.GAPS: 20_000})


def test_gaps_become_idle_time_if_they_are_kept(tmp_path):
    trace = imported(two_products(), tmp_path, keep_gaps=True)
    assert names(trace) == ["mm", "idle", "mm"]
    assert durations(trace) == [100, 20, 100]
    assert trace.kernels[1].tensors == ()


def test_without_gaps_no_idle_time_is_kept(tmp_path):
    made = ProfileBuilder().step(1, 0, 1000).operator("aten::mm", 10, (100, 100), allocates=0x1000)
    trace = imported(made, tmp_path, keep_gaps=True)
    assert (names(trace), account_of(trace).aside) == (["mm"], {})


def test_streams_that_overlap_count_as_busy_time(tmp_path):
    made = ProfileBuilder().step(1, 0, 1000)
    made.operator("aten::mm", 10, (100, 100), allocates=0x1000)
    made.operator("c10d::allreduce_", 31, (105, 290), shapes=[[1024, 1024]], stream=20)
    made.operator("aten::mm", 52, (200, 100), allocates=0x2000)
    trace = imported(made.operator("aten::mm", 73, (300, 100), allocates=0x3000), tmp_path)
    assert sum(durations(trace)) == 300
    assert account_of(trace).aside == {Reason.OVERLAP: 290_000}


@pytest.mark.parametrize("launch", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_kernels_of_a_graph_are_kernels(tmp_path, launch):
    made = two_products().step(2, 1000, 9000).operator("aten::mm", 1010, (1030, 5), allocates=0x3000)
    made.launch(1050, [(f"gemm_{number}", 1100 + 100 * number, 100) for number in range(40)], name=launch)
    trace = imported(made, tmp_path)
    assert sum(durations(trace)) == 4005
    assert names(trace)[1:] == [f"gemm_{number}" for number in range(40)]
    assert any("kernels whose tensors" in text for text in account_of(trace).warnings())


@pytest.mark.parametrize("waits", [True, False])
def test_a_graph_without_kernels_is_one_kernel_of_the_time_until_the_next_event(tmp_path, waits):
    made = ProfileBuilder().step(1, 0, 9000).operator("aten::mm", 10, (30, 100), allocates=0x1000)
    made.launch(150, [], name="cudaGraphLaunch")
    if waits:
        made.span("cuda_runtime", "cudaStreamSynchronize", 200, 2950, correlation=99)
    trace = imported(made.operator("aten::mm", 4000, (4150, 100), allocates=0x2000), tmp_path)
    assert names(trace) == ["mm", "graph", "mm"]
    assert durations(trace) == [100, 3000 if waits else 4000, 100]
    assert any(text.startswith("1 graph launches have no kernels") for text in account_of(trace).warnings())


@pytest.mark.parametrize("operators", [0, 1])
def test_the_sliver_after_the_last_step_is_not_taken(tmp_path, operators):
    made = two_products().step(2, 1001, 49)
    if operators:
        made.operator("aten::zeros", 1005, (1025, 2), shapes=[[1]])
    trace = imported(made, tmp_path)
    assert durations(trace) == [100, 100]
    assert "1" in trace.origin["step"]
    assert "2" in trace.origin["step"]


def test_a_step_is_chosen_by_its_number(tmp_path):
    made = two_products().step(2, 1000, 1000).operator("aten::mm", 1010, (1030, 7), allocates=0x3000)
    assert durations(imported(made, tmp_path)) == [7]
    trace = imported(made, tmp_path, step=1)
    assert durations(trace) == [100, 100]
    assert account_of(trace).aside[Reason.OUTSIDE] == 7000
    with pytest.raises(TraceError, match=r"found --step 3; allowed: 1, 2|found --step 3; allowed: 1 or 2"):
        imported(made, tmp_path, step=3)


def test_the_backward_pass_on_a_thread_of_its_own_belongs_to_the_step(tmp_path):
    made = two_products()
    made.span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 300, 100, tid=9)
    made.operator("aten::mm", 310, (400, 60), allocates=0x3000, tid=9)
    made.operator("side::op", 500, (600, 30), allocates=0x4000, tid=11, **{"Fwd thread id": 1})
    trace = imported(made, tmp_path)
    assert [kernel.phase for kernel in trace.kernels] == [Phase.FORWARD] * 2 + [Phase.BACKWARD] * 2


def test_a_device_is_asked_for_where_there_are_several(tmp_path):
    made = ProfileBuilder().step(1, 0, 1000)
    made.operator("aten::mm", 10, (30, 100), allocates=0x1000)
    made.operator("aten::mm", 40, (40, 90), allocates=0x9000, device=1, size=8 * MB)
    with pytest.raises(TraceError, match="found work of 2 devices; allowed: --device with one of 0"):
        imported(made, tmp_path)
    trace = imported(made, tmp_path, device="1")
    assert durations(trace) == [90]
    assert kinds(trace, TensorKind.TEMPORARY) == 8 * MB
    assert account_of(trace).aside[Reason.DEVICES] == 100_000


def test_two_ranks_in_one_file_are_two_processes(tmp_path):
    """Their launches have the same numbers, and their blocks the same addresses."""
    made = ProfileBuilder()
    for pid, device, duration in ((1, 0, 100), (2, 1, 70)):
        made.correlation = 0
        made.step(1, 100 * device, 900, pid=pid)
        at = 100 * device + 10
        made.operator("aten::mm", at, (at + 20, duration), allocates=0x1000, pid=pid, device=device)
    with pytest.raises(TraceError, match="found work of 2 processes; allowed: --process with one of 1"):
        imported(made, tmp_path)
    assert durations(imported(made, tmp_path, process="1")) == [100]
    assert durations(imported(made, tmp_path, process="2")) == [70]
    assert durations(imported(made, tmp_path, device="1")) == [70]


@pytest.mark.parametrize(
    ("kind", "item_bytes"),
    [
        ("__int64", 8),
        ("unsigned __int64", 8),
        ("long int", 8),
        ("unsigned int", 4),
        ("short int", 2),
        ("c10::complex<double>", 16),
        ("c10::complex<float>", 8),
        ("c10::complex<c10::Half>", 4),
        ("c10::Float8_e4m3fn", 1),
        ("c10::Float8_e5m2fnuz", 1),
        ("c10::Float8_e8m0fnu", 1),
        ("signed char", 1),
        ("c10::quint8", 1),
        ("bool", 1),
        ("at::Half", 2),
    ],
)
def test_types_have_their_sizes(tmp_path, kind, item_bytes):
    made = ProfileBuilder().step(1, 0, 1000)
    made.operator("aten::abs", 10, (30, 100), shapes=[[1024, 1024]], types=[kind], allocates=0x1000)
    trace = imported(made, tmp_path)
    assert trace.tensors[trace.kernels[0].inputs[0]].size_bytes == item_bytes * MB


def test_an_unknown_type_is_named(tmp_path):
    made = two_products()
    made.operator("aten::abs", 300, (500, 9), shapes=[[8]], types=["c10::Float3"], allocates=0x3000)
    assert any("'c10::Float3'" in text for text in account_of(imported(made, tmp_path)).warnings())


def test_an_expanded_operand_is_as_large_as_its_storage(tmp_path):
    made = ProfileBuilder(total=4 * MB).step(1, 0, 1000)
    made.operator(
        "aten::sum", 10, (30, 100), shapes=[[64, 1024, 1024]], strides=[[0, 1024, 1]], allocates=0x1000
    )
    trace = imported(made, tmp_path)
    assert peak_live_bytes(trace) == 8 * MB
    assert list(account_of(trace).warnings()) == []


def test_a_weight_that_is_used_again_is_one_tensor(tmp_path):
    made = ProfileBuilder(total=64 * MB).step(1, 0, 1000)
    shapes = [[64, 4096], [4096, 4096]]
    for number in range(8):
        at = 10 + 30 * number
        made.operator("aten::mm", at, (at + 12, 10), shapes=shapes, allocates=number + 1, size=MB)
    trace = imported(made, tmp_path)
    assert kinds(trace, TensorKind.WEIGHT) == 64 * MB
    assert kinds(trace, TensorKind.INPUT) == MB


def test_weights_of_one_size_are_several_where_there_is_room(tmp_path):
    made = ProfileBuilder(total=3 * 4 * MB).step(1, 0, 1000)
    for number in range(3):
        at = 10 + 30 * number
        made.operator("aten::mm", at, (at + 12, 10), shapes=[[64, 1024], [1024, 1024]],
                      allocates=number + 1, size=MB // 4)  # fmt: skip
    assert kinds(imported(made, tmp_path), TensorKind.WEIGHT) == 12 * MB


def test_a_block_that_was_not_split_belongs_to_its_tensor(tmp_path):
    """The allocator gives 10 MiB and 900 KiB of a rest for a tensor of 10 MiB."""
    made = ProfileBuilder(total=8 * MB).step(1, 0, 1000)
    size, shape = 10 * MB + 900 * 1024, [10, 512, 512]
    made.operator("aten::mm", 10, (30, 100), allocates=0x1000, size=size)
    trace = imported(
        made.operator("aten::relu", 40, (150, 9), shapes=[shape], allocates=0x2000, size=size), tmp_path
    )
    mm, relu = trace.kernels
    assert relu.inputs == mm.outputs


def test_what_was_there_and_is_not_used_lasts_too(tmp_path):
    trace = imported(two_products(total=100 * MB), tmp_path)
    assert sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent) == 96 * MB
    assert kinds(trace, TensorKind.INPUT) == 4 * MB
    assert any("from before the step" in text for text in account_of(trace).facts)


def test_weights_and_inputs_can_be_told_by_hand(tmp_path):
    made = two_products()
    trace = imported(made, tmp_path)
    (fed,) = (tensor.id for tensor in trace.tensors if tensor.kind is TensorKind.INPUT)
    (first, _) = (tensor.id for tensor in trace.tensors if tensor.kind is TensorKind.WEIGHT)
    by_hand = ByHand(frozenset({fed}), frozenset({first}))
    told = imported(made, tmp_path, by_hand=by_hand)
    assert [told.tensors[number].kind for number in (fed, first)] == [TensorKind.WEIGHT, TensorKind.INPUT]
    assert told.tensors[fed].persistent
    with pytest.raises(
        TraceError, match="--inputs: found 2; allowed: numbers of tensors from before the step, 0-1, 3"
    ):
        imported(made, tmp_path, by_hand=ByHand(inputs=frozenset({2})))


def test_token_ids_are_inputs_and_tables_weights(tmp_path):
    made = ProfileBuilder().step(1, 0, 1000)
    shapes, types = [[32000, 64], [], [512]], ["c10::BFloat16", "Scalar", "long int"]
    made.operator("aten::index_select", 10, (30, 100), shapes=shapes, types=types, allocates=1, size=65536)
    trace = imported(made, tmp_path)
    assert kinds(trace, TensorKind.INPUT) == 512 * 8
    assert kinds(trace, TensorKind.WEIGHT) == 32000 * 64 * 2


def test_what_is_released_in_the_step_does_not_last(tmp_path):
    made = two_products()
    made.memory(300, 0x7000, -4 * MB)
    trace = imported(made.operator("aten::mm", 310, (400, 9), allocates=0x3000), tmp_path)
    assert kinds(trace, TensorKind.INPUT) == 8 * MB


def test_copies_to_and_from_the_host_are_work_on_one_tensor(tmp_path):
    made = ProfileBuilder().step(1, 0, 1000)
    made.memory(5, 0x1000, 4 * MB)
    for name, at, kind in (("aten::copy_", 10, "HtoD"), ("aten::copy_", 40, "DtoH")):
        made.operator(name, at, None)
        made.launch(
            at + 10, [("gpu_memcpy", f"Memcpy {kind} (Pageable)", at + 15, 20)], name="cudaMemcpyAsync"
        )
    trace = imported(made, tmp_path)
    fetched, stored = trace.kernels
    assert (fetched.inputs, fetched.outputs) == ((), stored.inputs)
    assert kinds(trace, TensorKind.INPUT) == 4 * MB
    assert stored.outputs == ()
    assert (fetched.duration, stored.duration) == (20_000, 20_000)


def test_an_operator_that_allocates_nothing_writes_into_what_it_was_given(tmp_path):
    made = two_products()
    made.memory(295, 0x3000, 4 * MB)
    made.operator("_C::silu_and_mul", 300, (500, 50), shapes=[[1024, 1024], [2048, 1024]])
    made.operator("aten::mm", 330, (600, 50), shapes=[*([[1024, 1024]] * 2), [1024, 1024]])
    custom, out = imported(made, tmp_path).kernels[2:]
    assert len(custom.outputs) == len(out.outputs) == 1
    assert out.outputs[0] in out.inputs


def test_an_optimizer_of_the_cpu_is_work_of_the_cpu(tmp_path):
    made = two_products()
    made.operator("aten::copy_", 300, None)
    made.launch(310, [("gpu_memcpy", "Memcpy DtoH (Device)", 320, 20)], name="cudaMemcpyAsync")
    made.span("user_annotation", "Optimizer.step#CPUAdam.step", 400, 300)
    for at in (410, 450):
        made.operator("aten::add_", at, None)
    trace = imported(made, tmp_path)
    assert [kernel.device for kernel in trace.kernels] == [Device.GPU] * 3 + [Device.CPU] * 2
    assert [kernel.duration for kernel in trace.kernels][3:] == [20_000, 20_000]
    assert len(trace.only_on_cpu) == 4


def test_work_that_was_launched_before_the_recording_is_outside_the_step(tmp_path):
    made = two_products()
    made.span("kernel", "of before", 5, 15, pid=0, tid=7, correlation=77, device=0, stream=7)
    made.span("kernel", "lost launch", 300, 15, pid=0, tid=7, correlation=78, device=0, stream=7)
    trace = imported(made, tmp_path)
    assert names(trace) == ["mm", "mm", "lost launch"]
    assert account_of(trace).aside[Reason.OUTSIDE] == 15_000


def test_memory_of_hip_numbers_its_device_otherwise(tmp_path):
    made = ProfileBuilder().step(1, 0, 1000)
    made.operator("aten::mm", 10, None)
    made.memory(15, 0x1000, 4 * MB, device=0, kind=6).launch(
        20, [("k", 30, 10)], name="hipLaunchKernel", device=2
    )
    assert kinds(imported(made, tmp_path), TensorKind.TEMPORARY) == 4 * MB


def test_categories_of_earlier_profiles(tmp_path):
    made = two_products()
    made.step(2, 1000, 1000).operator("aten::mm", 1010, (1030, 70), allocates=0x3000)
    earlier = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel"}
    earlier["cuda_runtime"] = "Runtime"
    for event in made.events:
        event["cat"] = earlier.get(event["cat"], event["cat"])
        if "Input Dims" in event["args"]:
            event["args"]["Input dims"] = event["args"].pop("Input Dims")
    assert durations(imported(made, tmp_path)) == [70]
    assert durations(imported(made, tmp_path, step=1)) == [100, 100]


def test_a_release_of_a_devices_memory_is_no_work_for_it(tmp_path):
    made = ProfileBuilder().operator("aten::mm", 10, None).memory(15, 0x1000, 4 * MB, kind=0)
    made.memory(50, 0x9000, -4 * MB, kind=1)
    assert durations(imported(made, tmp_path)) == [20]


@pytest.mark.parametrize("told_by", ["[memory]", "cudaLaunchKernel"])
def test_work_for_a_device_of_which_nothing_is_recorded_is_refused(tmp_path, told_by):
    """Its operators on the host are no measure: they only launch."""
    made = two_products()
    made.events = [event for event in made.events if event["cat"] == "cpu_op" or event["name"] == told_by]
    with pytest.raises(TraceError, match="nothing that ran there; allowed: a profile with"):
        imported(made, tmp_path, partial=True)


@pytest.mark.parametrize("key", ["pid", "tid"])
@pytest.mark.parametrize("category", ["cpu_op", "cuda_runtime", "cpu_instant_event", "user_annotation"])
def test_ids_that_are_texts_are_the_same_as_numbers(tmp_path, category, key):
    made = two_products().step(2, 1000, 9)
    for event in made.events:
        if event["cat"] == category:
            event[key] = str(event[key])
    trace = imported(made, tmp_path)
    assert (names(trace), trace.origin["step"]) == (["mm", "mm"], "1 of 1 (2 without operators)")
    assert [len(kernel.inputs) + len(kernel.outputs) for kernel in trace.kernels] == [3, 3]


def test_memory_events_of_the_host_do_not_stand_for_those_of_the_device(tmp_path):
    """An allocator that PyTorch's profiler does not know leaves no others."""
    made = two_products()
    for event in made.events:
        if event["name"] == "[memory]":
            event["args"]["Device Type"] = 0
    with pytest.raises(TraceError, match="no memory events of the device; allowed: a profile with"):
        imported(made, tmp_path)
    assert durations(imported(made, tmp_path, partial=True)) == [100, 100]


def test_kernels_of_a_compiled_function_are_between_the_operators_that_it_calls(tmp_path):
    made = ProfileBuilder().step(1, 0, 1000).operator("CompiledFunction", 10, (40, 5), allocates=0x1000)
    made.events[-3]["dur"] = 300
    made.operator("aten::mm", 100, (120, 100), allocates=0x2000)
    made.memory(200, 0x3000, 4 * MB).launch(210, [("triton_poi_fused_gelu", 230, 7)])
    trace = imported(made, tmp_path)
    assert names(trace) == ["CompiledFunction", "mm", "triton_poi_fused_gelu"]
    assert durations(trace) == [5, 100, 7]
    assert [len(kernel.outputs) for kernel in trace.kernels] == [1, 1, 1]


def test_time_of_compiled_functions_on_the_cpu_is_left_out(tmp_path):
    """A product of 20 us inside, a kernel that is named (30 us), and others that are not (50 us).

    What is around operators is told.
    """
    made = ProfileBuilder().span("cpu_op", "autograd::engine::evaluate_function: Mine", 90, 117)
    made.span("cpu_op", "Torch-Compiled Region: 0/0", 100, 100)
    made.operator("aten::mm", 110, None).memory(115, 0x1000, 4 * MB, kind=0)
    made.span("cpu_op", "graph_0_cpp_fused_gelu_1", 140, 30)
    with pytest.raises(TraceError, match=r"80.0% of the step's device time .* compiled functions, of which"):
        imported(made, tmp_path)
    account = account_of(imported(made, tmp_path, partial=True))
    assert (account.imported_ns, account.left_out) == (20_000, {Reason.COMPILED: 80_000})
    assert account.aside == {Reason.AROUND: 17_000}


@pytest.mark.parametrize("lacking", ["shapes", "memory"])
def test_what_a_profile_lacks_is_refused_unless_partial(tmp_path, lacking):
    made = two_products()
    if lacking == "memory":
        made.events = [event for event in made.events if event["name"] != "[memory]"]
    for event in made.events:
        if lacking == "shapes":
            event["args"].pop("Input Dims", None)
    with pytest.raises(TraceError, match="or --partial"):
        imported(made, tmp_path)
    trace = imported(made, tmp_path, partial=True)
    assert sum(durations(trace)) == 200
    assert any(lacking in text for text in account_of(trace).warnings())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"stream": 7', '"stream": 7, "rate": inf', 1),
        lambda text: text.replace('"stream": 7', '"stream": 7, "rate": -nan(ind)', 1),
        lambda text: text.replace('"schemaVersion": 1', r'"traceName": "C:\users\x\t.json"'),
        lambda text: text.replace(
            "}]}",
            '}, {"ph": "X", "cat": "cuda_runtime", "dur": -1, "ts": 5, "name": "w", '
            '"pid": 1, "tid": 1, "args": {"correlation": 77}}]}',
        ),
        lambda text: text.replace('"ts": 10,', '"ts": "10",'),
        lambda text: json.dumps(json.loads(text)["traceEvents"]),
        lambda text: text.replace("}]}", "},]}"),
        lambda text: "\ufeff" + text,
    ],
)
def test_files_that_are_nearly_json_are_read(tmp_path, damage):
    path = two_products().save(tmp_path / "profile.json")
    path.write_text(damage(path.read_text()), encoding="utf-8")
    assert durations(import_kineto(read_profile(path))) == [100, 100]


def test_a_path_of_windows_is_read_as_it_was_meant(tmp_path):
    made = two_products()
    path = made.operator("aten::abs", 300, (500, 9), shapes=[[8]], allocates=9).save(
        tmp_path / "profile.json"
    )
    path.write_text(path.read_text().replace("aten::abs", r"C:\new\abs"))
    assert read_profile(path).operators[-1].name == r"C:\new\abs"
