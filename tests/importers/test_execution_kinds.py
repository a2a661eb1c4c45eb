"""Execution traces as machines record them: schemas, threads, devices, compiled kernels, pairs."""

import json
from dataclasses import replace

import pytest

from g10sim.errors import TraceError
from g10sim.importers.account import Reason, account_of
from g10sim.importers.execution_trace import import_execution_trace
from g10sim.importers.kineto_events import read_profile
from g10sim.importers.operations import aten
from g10sim.trace.model import Device, Phase, TensorKind

ELEMENTS, FLOAT_BYTES = 2**20, 4
SIZE = ELEMENTS * FLOAT_BYTES
MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"


def side(tensors, device, kind):
    tensors = [(*one, device)[:3] for one in tensors]
    return {
        "values": [[tensor, storage, 0, ELEMENTS, FLOAT_BYTES, place] for tensor, storage, place in tensors],
        "types": [f"Tensor({kind})" for _ in tensors],
        "shapes": [[ELEMENTS] for _ in tensors],
        "strides": [[1] for _ in tensors],
    }


def node(
    number, name, parent, inputs=(), outputs=(), schema="", *, device="cuda:0", kind="float", **attributes
):
    """A node; tensors are (tensor, storage) or (tensor, storage, device), of 4 MiB each."""
    attributes = {"rf_id": number, "op_schema": schema, **attributes}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": side(inputs, device, kind),
        "outputs": side(outputs, device, kind),
        "attrs": [{"name": key, "value": value} for key, value in attributes.items()],
    }


def product(number, parent, first, second, result, **more):
    inputs = [(one, one + 10) for one in (first, second)]
    return node(number, "aten::mm", parent, inputs, [(result, result + 10)], MM, **more)


ROOTS = [
    node(1, "[pytorch|profiler|execution_trace|process]", 1),
    node(2, "[pytorch|profiler|execution_trace|thread]", 1),
]


def imported(tmp_path, *nodes, schema="1.1.1-chakra.0.0.4", **options):
    path = tmp_path / "execution.json"
    path.write_text(json.dumps({"schema": schema, "nodes": [*ROOTS, *nodes]}))
    if "profile" not in options:
        options["price"] = lambda cost: cost.moved_bytes
    return import_execution_trace(path, **options)


def names(trace):
    return [kernel.name for kernel in trace.kernels]


@pytest.mark.parametrize(
    "schema", ["1.0.2-chakra.0.0.4", "1.0.3-chakra.0.0.4", "1.1.0-chakra.0.0.4", "9.9-chakra"]
)
def test_without_strides_tensors_are_contiguous(tmp_path, schema):
    made = product(3, 2, 10, 11, 12)
    for one in ("inputs", "outputs"):
        del made[one]["strides"]
    trace = imported(tmp_path, made, schema=schema)
    assert [tensor.size_bytes for tensor in trace.tensors] == [SIZE] * 3


def test_the_first_schema_names_its_columns_otherwise(tmp_path):
    made, nodes = product(3, 2, 10, 11, 12), []
    for one in (*ROOTS, made):
        old = {"id": one["id"], "name": one["name"], "parent": one["ctrl_deps"], "scope": 0, "tid": 1}
        old.update((attribute["name"], attribute["value"]) for attribute in one["attrs"])
        for key in ("input", "output"):
            column = one[f"{key}s"]
            old |= {
                f"{key}s": column["values"],
                f"{key}_shapes": column["shapes"],
                f"{key}_types": column["types"],
            }
        nodes.append(old)
    path = tmp_path / "execution.json"
    path.write_text(json.dumps({"schema": "1.0.1", "nodes": nodes}))
    trace = import_execution_trace(path, price=lambda cost: cost.moved_bytes)
    assert names(trace) == ["mm"]
    assert trace.kernels[0].duration == 3 * SIZE


def test_an_expanded_tensor_is_as_large_as_its_storage(tmp_path):
    made = product(3, 2, 10, 11, 12)
    made["inputs"]["shapes"][0], made["inputs"]["strides"][0] = [64, 16384], [0, 1]
    assert min(tensor.size_bytes for tensor in imported(tmp_path, made).tensors) == 16384 * FLOAT_BYTES


def test_the_backward_pass_of_another_thread_belongs_to_the_step(tmp_path):
    engine = "autograd::engine::evaluate_function: MmBackward0"
    steps = []
    for start in (10, 20):
        steps += [
            node(start, f"ProfilerStep#{start}", 2),
            product(start + 1, start, 10, 11, 12),
            node(start + 2, engine, 5),
            product(start + 3, start + 2, 12, 11, 13),
            node(start + 4, "Optimizer.step#SGD.step", start),
        ]
    thread = node(5, "[pytorch|profiler|execution_trace|thread]", 1)
    trace = imported(tmp_path, thread, *steps)
    assert [kernel.phase for kernel in trace.kernels] == [Phase.FORWARD, Phase.BACKWARD]
    assert trace.origin["step"] == "20 of 10, 20"
    assert imported(tmp_path, thread, *steps, step=10).origin["step"] == "10 of 10, 20"
    with pytest.raises(TraceError, match="found --step 7; allowed: 10"):
        imported(tmp_path, thread, *steps, step=7)


@pytest.mark.parametrize("operators", [0, 1])
def test_the_sliver_after_the_last_step_is_not_taken(tmp_path, operators):
    whole = [product(number, 3, number, 11, number + 1) for number in range(100, 120)]
    last = [product(202, 201, 10, 11, 300)] * operators
    trace = imported(tmp_path, node(3, "ProfilerStep#0", 2), *whole, node(201, "ProfilerStep#1", 2), *last)
    assert len(trace.kernels) == 20


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("backend", ["triton", ""])
def test_a_compiled_kernel_writes_what_nobody_has_used(tmp_path, strides, backend):
    """It has no schema and no outputs, and its last numbers may have no strides."""
    compiled = node(4, "triton_poi_fused_gelu_0", 2, [(12, 22), (13, 23)], kernel_backend=backend)
    compiled["inputs"]["values"] += [16, 16]
    compiled["inputs"]["types"] += ["Int", "Int"]
    compiled["inputs"]["shapes"] += [[], []]
    compiled["inputs"]["strides"] += [[]] * strides
    trace = imported(tmp_path, product(3, 2, 10, 11, 12), compiled, product(5, 2, 13, 11, 14))
    first, gelu, last = trace.kernels
    assert gelu.inputs == first.outputs
    assert gelu.outputs[0] in last.inputs
    assert not trace.tensors[gelu.outputs[0]].persistent


def test_a_buffer_given_for_the_result_is_new(tmp_path):
    schema = "aten::convolution.out(Tensor a, Tensor b, int[] stride=[1, 1], *, Tensor(a!) out) -> Tensor(a!)"
    made = node(3, "aten::convolution", 2, [(10, 20), (11, 21)], [(12, 22)], schema)
    result = side([(12, 22)], "cuda:0", "float")
    for key, plain in (
        ("values", [1, 1]),
        ("types", "GenericList[Int,Int]"),
        ("shapes", []),
        ("strides", []),
    ):
        made["inputs"][key] += [plain, *result[key]]
    trace = imported(tmp_path, made)
    assert trace.tensors[trace.kernels[0].outputs[0]].kind is TensorKind.TEMPORARY
    assert len(trace.kernels[0].inputs) == 2


def test_a_result_may_be_the_first_argument_that_is_given_by_name(tmp_path):
    made = node(3, "mine::fill", 2, [(12, 22)], [(12, 22)], "mine::fill.out(*, Tensor(a!) out) -> Tensor(a!)")
    (kernel,) = imported(tmp_path, made, product(4, 2, 12, 11, 13)).kernels[:1]
    assert (kernel.inputs, kernel.outputs) == ((), (0,))


def test_a_device_is_asked_for_where_there_are_several(tmp_path):
    nodes = [
        product(3, 2, 10, 11, 12),
        node(
            4, "aten::_to_copy", 2, [(12, 22)], [(13, 23, "cuda:1")], "aten::_to_copy(Tensor self) -> Tensor"
        ),
        product(5, 2, 13, 14, 15, device="cuda:1"),
        product(6, 2, 15, 16, 17, device="cuda:1"),
    ]
    with pytest.raises(TraceError, match=r"found work of 2 devices; allowed: --device with one of cuda:0"):
        imported(tmp_path, *nodes)
    trace = imported(tmp_path, *nodes, device="1")
    assert names(trace) == ["_to_copy", "mm", "mm"]
    assert any("cuda:0 are left out" in fact for fact in account_of(trace).facts)
    assert names(imported(tmp_path, *nodes, device="cuda:0")) == ["mm"]


def test_devices_that_annotations_alone_name_are_not_told(tmp_path):
    nodes = [product(3, 2, 10, 11, 12), node(4, "mine", 2, [(12, 22, "cuda:1")], device="cuda:1")]
    facts = account_of(imported(tmp_path, *nodes, device="0")).facts
    assert facts == account_of(imported(tmp_path, nodes[0])).facts


OFFLOADED = [
    product(3, 2, 10, 11, 12),
    node(4, "aten::_to_copy", 2, [(12, 22)], [(13, 23, "cpu")], "aten::_to_copy(Tensor self) -> Tensor"),
    node(5, "Optimizer.step#CPUAdam.step", 2),
    node(6, "aten::add_", 5, [(14, 24), (13, 23)], [(14, 24)],
         "aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", device="cpu"),
    node(7, "aten::copy_", 2, [(10, 20), (14, 24, "cpu")], [(10, 20)],
         "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"),
]  # fmt: skip


def test_an_offloaded_optimizer_and_its_copies_are_work(tmp_path):
    trace = imported(tmp_path, *OFFLOADED)
    assert names(trace) == ["mm", "_to_copy", "add_", "copy_"]
    assert [kernel.device for kernel in trace.kernels] == [Device.GPU] * 2 + [Device.CPU, Device.GPU]
    update = trace.kernels[2]
    assert (update.duration, update.parameters) == (0, ELEMENTS)
    assert trace.kernels[1].outputs[0] in update.inputs
    assert update.outputs[0] in trace.kernels[3].inputs


def test_weights_last_and_what_is_fed_does_not(tmp_path):
    """Without an optimizer: a product's second factor is a weight; the first one and token ids are not."""
    ids = node(4, "aten::embedding", 2, [(12, 22)], [(13, 23)], "aten::embedding(Tensor indices) -> Tensor",
               kind="long int")  # fmt: skip
    ids["inputs"]["values"][0] = [30, 40, 0, ELEMENTS, 8, "cuda:0"]
    trace = imported(tmp_path, product(3, 2, 10, 11, 12), ids)
    kinds = [tensor.kind for tensor in trace.tensors]
    assert kinds.count(TensorKind.WEIGHT) == 1
    assert kinds.count(TensorKind.INPUT) == 2


def test_what_the_host_feeds_is_an_input(tmp_path):
    fed = node(3, "aten::_to_copy", 2, [(9, 19, "cpu")], [(10, 20)], "aten::_to_copy(Tensor self) -> Tensor")
    trace = imported(tmp_path, fed, product(4, 2, 10, 11, 12))
    (images,) = trace.kernels[0].outputs
    assert images in trace.kernels[1].inputs
    assert trace.tensors[images].kind is TensorKind.INPUT
    assert not trace.tensors[images].persistent


def test_what_was_there_in_the_step_before_lasts(tmp_path):
    """Tensor 11 is used in both steps; tensor 20 is new in the second."""
    nodes = [node(3, "ProfilerStep#0", 2), product(4, 3, 10, 11, 12), node(5, "ProfilerStep#1", 2),
             product(6, 5, 20, 11, 13)]  # fmt: skip
    trace = imported(tmp_path, *nodes)
    fed, weight = trace.kernels[0].inputs
    assert trace.tensors[fed].kind is TensorKind.INPUT
    assert trace.tensors[weight].persistent


def profile_of(tmp_path, numbers):
    events = []
    for place, (number, name) in enumerate(numbers):
        args = {} if number is None else {"Record function id": number}
        at = 100 * place
        common = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**common, "cat": "cpu_op", "name": name, "ts": at, "dur": 50, "args": args},
            {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 10, "dur": 1,
             "args": {"correlation": place}},
            {**common, "cat": "kernel", "name": "k", "ts": at + 20, "dur": 30, "pid": 0,
             "args": {"correlation": place, "device": 0}},
        ]  # fmt: skip
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read_profile(path)


def test_a_pair_that_cannot_be_joined_says_which_ids_are_missing(tmp_path):
    nodes = [product(3, 2, 10, 11, 12), product(4, 2, 12, 11, 13)]
    with pytest.raises(
        TraceError, match=r"no 'Record function id' in any operator: 2 of the 2 .* 3 \('aten::mm'\), 4"
    ):
        imported(tmp_path, *nodes, profile=profile_of(tmp_path, [(None, "aten::mm")]))
    with pytest.raises(
        TraceError, match=r"1 of the 2 kernels .* with rf_id 4 \('aten::mm'\); allowed: the profile"
    ):
        imported(tmp_path, *nodes, profile=profile_of(tmp_path, [(3, "aten::mm"), (9, "aten::mm")]))


def test_a_profile_of_the_host_alone_has_no_times_of_a_device(tmp_path):
    profile = profile_of(tmp_path, [(3, "aten::mm")])
    profile.device.clear()
    profile.launches.clear()
    with pytest.raises(TraceError, match="nothing that ran there; allowed: a profile with"):
        imported(tmp_path, product(3, 2, 10, 11, 12), profile=profile)
    on_host = node(3, "aten::mm", 2, [(10, 20), (11, 21)], [(12, 22)], MM, device="cpu")
    assert imported(tmp_path, on_host, profile=profile).kernels[0].duration == 50_000


def test_compiled_functions_on_the_cpu_are_told(tmp_path):
    region = "Torch-Compiled Region: 0/0"
    on_host = node(4, "aten::mm", 3, [(10, 20), (11, 21)], [(12, 22)], MM, device="cpu")
    profile = profile_of(tmp_path, [(4, "aten::mm")])
    profile.device.clear()
    profile.launches.clear()
    (product_span,) = profile.operators
    for name, start, end in ((region, -10_000, 50_000), ("around", -20_000, 53_000)):
        profile.operators.insert(0, replace(product_span, name=name, start_ns=start, end_ns=end, args={}))
    nodes = [node(3, region, 2), on_host]
    account = account_of(imported(tmp_path, *nodes, profile=profile))
    assert (account.left_out, account.aside) == ({Reason.COMPILED: 10_000}, {Reason.AROUND: 13_000})
    assert any("compiled functions on the CPU" in note for note in account.notes)
    assert account_of(imported(tmp_path, *nodes)).notes == account.notes
    assert account_of(imported(tmp_path, node(3, region, 2), product(4, 3, 10, 11, 12))).notes == []


def test_device_time_of_operators_that_write_nothing_is_left_out(tmp_path):
    nodes = [product(3, 2, 10, 11, 12), product(5, 2, 12, 11, 13)]
    profile = profile_of(tmp_path, [(3, "aten::mm"), (4, "aten::unknown"), (5, "aten::mm")])
    with pytest.raises(
        TraceError, match=r"33.3% of the step's device time .* operators without recorded outputs"
    ):
        imported(tmp_path, *nodes, profile=profile)
    account = account_of(imported(tmp_path, *nodes, profile=profile, partial=True))
    assert (account.imported_ns, account.left_out) == (60_000, {Reason.OUTPUTS: 30_000})
    kept = imported(tmp_path, *nodes, profile=profile, partial=True, keep_gaps=True)
    assert [kernel.duration for kernel in kept.kernels] == [30_000, 170_000, 30_000]


def test_operators_are_named_with_their_namespace():
    assert aten("mm bmm") == {"aten::mm", "aten::bmm"}


def test_a_step_ends_with_what_follows_it_at_its_level(tmp_path):
    """All that lies inside the step, however deep, is part of it."""
    trace = imported(
        tmp_path,
        product(3, 2, 10, 11, 12),
        node(4, "ProfilerStep#3", 2),
        node(5, "inner", 4),
        product(6, 5, 20, 21, 22),
        product(7, 4, 22, 21, 23),
        product(8, 2, 23, 21, 24),
    )
    assert [sorted(kernel.outputs) for kernel in trace.kernels] == [[2], [3]]
    assert trace.origin["step"].startswith("3 of 3")


def test_a_list_may_have_fewer_strides_than_tensors(tmp_path):
    """The second tensor is contiguous; every other number of the first one is used."""
    made = node(3, "aten::cat", 2, [(10, 20)], [(12, 30)], "aten::cat(Tensor[] tensors, int dim=0) -> Tensor")
    half = ELEMENTS // 2
    made["inputs"] = {
        "values": [[[10, 20, 0, half, FLOAT_BYTES, "cuda:0"], [11, 21, 0, half, FLOAT_BYTES, "cuda:0"]]],
        "types": ["GenericList[Tensor(float),Tensor(float)]"],
        "shapes": [[[half], [half]]],
        "strides": [[[2]]],
    }
    trace = imported(tmp_path, made)
    sizes = [trace.tensors[tensor].size_bytes for tensor in trace.kernels[0].inputs]
    assert sizes == [(2 * (half - 1) + 1) * FLOAT_BYTES, half * FLOAT_BYTES]


def test_an_operator_that_an_exception_left_has_no_say_in_what_comes_after_it(tmp_path):
    """Checkpointing stops the second forward pass in its last operator: PyTorch never writes that one.

    It takes that operator for the innermost, then what was around it, though they have ended.
    """
    engine, nodes, around = "autograd::engine::evaluate_function: MmBackward0", [], 2
    for start in (10, 110):
        nodes.append(node(start, f"ProfilerStep#{start}", around))
        outer = start
        for one in (start + 1, start + 31):  # two micro-batches
            nodes += [
                product(one, outer, 10, 11, 12),
                node(one + 1, engine, outer),
                node(one + 2, "MmBackward0", one + 1),
                product(one + 3, one + 2, 10, 11, 13),
                # one + 4 is not written
                product(one + 5, one + 4, 13, 11, 14),
                product(one + 6, one + 4, 14, 11, 15),
                node(one + 7, engine, one + 1),
                product(one + 8, one + 7, 15, 11, 16),
            ]
            outer = one + 1  # has ended
        nodes.append(node(start + 80, "Optimizer.step#SGD.step", outer))
        nodes.append(product(start + 81, start + 80, 16, 11, 17))
        around = start + 2  # one of the two that have ended has gone with the step
    micro_batch = [Phase.FORWARD, *[Phase.BACKWARD] * 4]
    for step in (10, 110):
        trace = imported(tmp_path, *nodes, step=step)
        assert trace.origin["step"] == f"{step} of 10, 110"
        assert [kernel.phase for kernel in trace.kernels] == [*micro_batch * 2, Phase.OPTIMIZER]


def collective(number, name, *arguments):
    """A communication of lists in lists of tensors, which no schema says are written to."""
    made = node(number, f"c10d::{name}", 2, schema=f"c10d::{name}(Tensor[][] first) -> Work")
    columns = [side(one, "cuda:0", "float") for one in arguments]
    for key, last in (("values", "<None>"), ("shapes", []), ("strides", [])):
        made["inputs"][key] = [[[*column[key], last]] for column in columns]
    made["inputs"]["types"] = ["GenericList[GenericList[Tensor(float),None]]" for _ in columns]
    return made


def test_a_collective_that_fills_tensors_is_a_kernel_and_one_in_place_is_told(tmp_path):
    """A gathered weight is made by nothing else."""
    weight, shard, gradient = (12, 22), (10, 20), (15, 25)
    empty = node(3, "aten::empty", 2, outputs=[weight], schema="aten::empty(int[] size) -> Tensor")
    nodes = [empty, collective(4, "allgather_", [weight], [shard]), product(5, 2, 12, 11, 15),
             collective(6, "allreduce_", [gradient]), collective(7, "recv_", [gradient])]  # fmt: skip
    trace = imported(tmp_path, *nodes)
    gathered, multiplied, received = trace.kernels
    assert (gathered.name, gathered.inputs, gathered.outputs) == ("allgather_", (0,), (1,))
    assert 1 in multiplied.inputs
    assert received.inputs == ()
    assert account_of(trace).notes == [
        "2 collectives take the time of their bytes in the memory of one device",
        "1 collectives are left out, which fill nothing: allreduce_",
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_tensors_of_shapes_alone_are_on_no_device(tmp_path, device):
    """torch.compile traces with them, and models are built of them."""
    nodes = []
    for number, name, place in ((3, "addmm", "meta"), (4, "mm", device)):
        inputs, outputs = [(10, 20, place), (11, 21, place)], [(number, 22, place)]
        nodes.append(node(number, f"aten::{name}", 2, inputs, outputs, MM))
    trace = imported(tmp_path, *nodes)
    assert names(trace) == ["mm"]
    assert account_of(trace).facts == ["step: all of the file: no step is marked"]
