"""Tensors of a profile, by hand: what each operator of a small step reads, writes and keeps alive."""

import pytest
from profiles import MB, ProfileBuilder

from g10sim.importers.account import account_of
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile
from g10sim.trace.model import Device, Phase, TensorKind

KB = 1024
BATCH, WIDE, HIDDEN, NARROW = 256, 64, 128, 96
# Of float32: the input has 64 KiB, weights 32 and 48 KiB, activations 128 KiB, the result 96 KiB.
FIRST, SECOND = [HIDDEN, WIDE], [NARROW, HIDDEN]


def imported(made, tmp_path, **options):
    return import_kineto(read_profile(made.save(tmp_path / "profile.json")), **options)


def flow(trace):
    """Name, tensors read and tensors written of every kernel: kind, number and KiB of each."""

    def told(numbers):
        tensors = [trace.tensors[number] for number in numbers]
        return " ".join(f"{tensor.name}:{tensor.size_bytes / KB:g}" for tensor in tensors)

    return [(kernel.name, told(kernel.inputs), told(kernel.outputs)) for kernel in trace.kernels]


def operator(made, name, at, shapes, address=None, size=0, sequence=None, **options):
    """An operator at a time that runs 10 us on the device."""
    numbered = {} if sequence is None else {"Sequence number": sequence}
    return made.operator(
        name, at, (at + 12, 10), shapes=shapes, allocates=address, size=size, **numbered, **options
    )


def backward(made, at, name, sequence, tid=9):
    return made.span(
        "cpu_op", f"autograd::engine::evaluate_function: {name}", at, 100, tid=tid,
        **{"Sequence number": sequence},
    )  # fmt: skip


def training_step():
    """Two products with a rectifier between them, their gradients, and an update of both weights."""
    made = ProfileBuilder(total=144 * KB).step(1, 0, 9000)
    operator(made, "aten::mm", 100, [[BATCH, WIDE], FIRST], 0xA, 128 * KB, sequence=1)
    operator(made, "aten::relu", 200, [[BATCH, HIDDEN]], 0xB, 128 * KB, sequence=2)
    made.memory(225, 0xA, -128 * KB)
    operator(made, "aten::mm", 300, [[BATCH, HIDDEN], SECOND], 0xC, 96 * KB, sequence=3)
    made.memory(307, 0x1, 64 * KB).memory(309, 0x2, 16 * KB).memory(311, 0x1, -64 * KB)
    made.memory(320, 0x1, 40 * KB).memory(321, 0x1, -40 * KB).memory(322, 0x2, -16 * KB)
    operator(made, "aten::sum", 400, [[BATCH, NARROW]], 0x3, 512)
    made.memory(425, 0xC, -96 * KB)
    backward(made, 500, "SumBackward0", 4)
    operator(made, "aten::ones_like", 510, [[1]], 0xD, 96 * KB, tid=9)
    backward(made, 600, "MmBackward0", 3)
    operator(made, "aten::mm", 610, [[NARROW, BATCH], [BATCH, HIDDEN]], 0xE, 48 * KB, tid=9)
    operator(made, "aten::mm", 640, [[BATCH, NARROW], SECOND], 0xF, 128 * KB, tid=9)
    made.memory(695, 0xD, -96 * KB, tid=9)
    backward(made, 700, "ReluBackward0", 2)
    operator(made, "aten::threshold_backward", 710, [[BATCH, HIDDEN]] * 2, 0x10, 128 * KB, tid=9)
    made.memory(795, 0xF, -128 * KB, tid=9).memory(796, 0xB, -128 * KB, tid=9)
    backward(made, 800, "MmBackward0", 1)
    operator(made, "aten::mm", 810, [[HIDDEN, BATCH], [BATCH, WIDE]], 0x11, 32 * KB, tid=9)
    made.memory(895, 0x10, -128 * KB, tid=9)
    made.span("user_annotation", "Optimizer.step#SGD.step", 1000, 900)
    operator(made, "aten::add_", 1010, [FIRST, FIRST])
    operator(made, "aten::add_", 1040, [SECOND, SECOND])
    made.memory(1900, 0xE, -48 * KB).memory(1901, 0x11, -32 * KB)
    return made


def test_each_operator_of_a_training_step_uses_the_tensors_that_it_was_given(tmp_path):
    """The last kernel keeps what is released after it, and the sum that nobody releases.

    Space for the second product is 80 KiB at most at a time. What was there is used, and nothing else.
    """
    trace = imported(training_step(), tmp_path)
    assert flow(trace) == [
        ("mm", "input0:64 weight1:32", "temporary2:128"),
        ("relu", "temporary2:128", "activation3:128"),
        ("mm", "activation3:128 weight4:48", "temporary5:96 workspace6:80"),
        ("sum", "temporary5:96", "activation7:0.5"),
        ("ones_like", "activation7:0.5", "temporary8:96"),
        ("mm", "temporary8:96 activation3:128", "gradient9:48"),
        ("mm", "temporary8:96 weight4:48", "temporary10:128"),
        ("threshold_backward", "temporary10:128 activation3:128", "temporary11:128"),
        ("mm", "temporary11:128 input0:64", "gradient12:32"),
        ("add_", "weight1:32 gradient12:32", "weight1:32"),
        ("add_", "weight4:48 gradient9:48 gradient12:32 activation7:0.5", "weight4:48"),
    ]
    assert [kernel.phase for kernel in trace.kernels] == (
        [Phase.FORWARD] * 4 + [Phase.BACKWARD] * 5 + [Phase.OPTIMIZER] * 2
    )
    account = account_of(trace)
    before = account.memory[0]
    assert (before.recorded_bytes, before.imported_bytes) == (144 * KB, 144 * KB)
    assert list(account.warnings()) == []


def test_a_backward_operator_uses_what_its_forward_operator_used_first(tmp_path):
    """Of four tensors of one size: its gradient is the latest, the others are those of its number."""
    made = ProfileBuilder(total=128 * KB).step(1, 0, 9000)
    shape = [BATCH, HIDDEN]
    operator(made, "aten::abs", 100, [shape], 0xA, 128 * KB, sequence=1)
    operator(made, "aten::mul", 200, [shape, shape], 0xB, 128 * KB, sequence=2)
    operator(made, "aten::abs", 300, [shape], 0xC, 128 * KB, sequence=3)
    backward(made, 400, "MulBackward0", 2)
    operator(made, "aten::mul", 410, [shape] * 3, 0xD, 128 * KB, tid=9)
    trace = imported(made, tmp_path)
    first, product, last, gradient = trace.kernels
    assert product.inputs[0] == first.outputs[0]
    assert gradient.inputs[:3] == (last.outputs[0], *product.inputs)


def test_what_the_device_uses_lasts_until_the_operator_that_it_is_released_after(tmp_path):
    made = ProfileBuilder(total=0).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [], 0xA, 64 * KB)
    operator(made, "aten::rand", 200, [], 0xB, 32 * KB)
    made.memory(280, 0xA, -64 * KB)
    made.operator("aten::rand", 300, None, shapes=[])
    made.memory(320, 0xB, -32 * KB)
    operator(made, "aten::rand", 400, [], 0xC, 16 * KB)
    trace = imported(made, tmp_path)
    assert [trace.tensors[tensor].size_bytes for tensor in trace.kernels[1].inputs] == [64 * KB]
    assert trace.kernels[2].inputs == ()


def test_what_was_released_is_nobodys_operand(tmp_path):
    """The forward operator's own tensor is gone when its gradient is computed: the latest is taken."""
    made = ProfileBuilder(total=0).step(1, 0, 9000)
    shape = [BATCH, HIDDEN]
    operator(made, "aten::rand", 100, [[1]], 0xA, 128 * KB)
    operator(made, "aten::abs", 200, [shape], 0xB, 128 * KB, sequence=2)
    operator(made, "aten::rand", 300, [[1]], 0xC, 128 * KB, sequence=3)
    made.memory(350, 0xB, -128 * KB).memory(351, 0xA, -128 * KB)
    operator(made, "aten::abs", 360, [shape], 0xD, 128 * KB, sequence=4)
    backward(made, 400, "AbsBackward0", 2)
    operator(made, "aten::mul", 410, [shape] * 2, 0xE, 128 * KB, tid=9)
    trace = imported(made, tmp_path)
    assert trace.kernels[3].inputs == trace.kernels[2].outputs
    assert trace.kernels[4].inputs[:2] == (trace.kernels[3].outputs[0], trace.kernels[2].outputs[0])
    assert trace.deaths[trace.kernels[1].outputs[0]] == 3


def test_blocks_from_before_the_step_are_weights_and_inputs_where_they_are_released(tmp_path):
    made = ProfileBuilder(total=0)
    for at, address in ((10, 0xA), (20, 0xB), (30, 0xC)):
        made.memory(at, address, 128 * KB)
    made.memory(40, 0xC, -128 * KB).memory(41, 0xC, 64 * KB)
    made.step(1, 1000, 9000)
    operator(made, "aten::abs", 1100, [[BATCH, HIDDEN]], 0xD, 32 * KB)
    operator(made, "aten::abs", 1200, [[BATCH, WIDE]], 0xE, 32 * KB)
    made.memory(1230, 0xB, -128 * KB)
    operator(made, "aten::add", 1300, [[BATCH, WIDE], [BATCH, HIDDEN]], 0xF, 32 * KB)
    made.memory(1400, 0xF, -32 * KB)
    trace = imported(made, tmp_path)
    assert flow(trace)[:2] == [
        ("abs", "input0:128", "temporary1:32"),
        ("abs", "weight2:64 input0:128", "temporary3:32"),
    ]
    assert flow(trace)[2][1].startswith("weight2:64 weight4:128")
    assert trace.deaths[0] == 2
    before = account_of(trace).memory[0]
    assert (before.recorded_bytes, before.imported_bytes) == (320 * KB, 320 * KB)


@pytest.mark.parametrize(("other_bytes", "previous", "last"), [(100.5 * KB, 0, 2), (100 * KB, 1, 1)])
def test_what_nobody_releases_lasts_as_long_as_the_largest_kernel_leaves_room(
    tmp_path, other_bytes, previous, last
):
    """The largest kernel needs 300 KiB, or half a KiB more: as much as the last one with both tensors."""
    shape = [25, 1024]
    made = ProfileBuilder(total=0).step(1, 0, 9000)
    made.total = 100 * KB + int(other_bytes)
    operator(made, "aten::add", 100, [shape, [int(other_bytes) // 4]], 0xD, 100 * KB)
    made.memory(150, 0xD, -100 * KB)
    operator(made, "aten::rand", 200, [], 0xA, 100 * KB)
    operator(made, "aten::rand", 300, [], 0xB, 100 * KB)
    operator(made, "aten::rand", 400, [], 0xC, 100 * KB)
    made.memory(450, 0xC, -100 * KB)
    operator(made, "aten::ones", 500, [shape], 0xE, 512)
    made.memory(550, 0xE, -512)
    trace = imported(made, tmp_path)
    kept = {trace.kernels[1].outputs[0], trace.kernels[2].outputs[0]}
    assert [len(kept & set(trace.kernels[number].inputs)) for number in (3, 4)] == [previous, last]


def test_scratch_space_does_not_hide_what_is_written_later(tmp_path):
    """The first operator allocates and releases as much as the second one makes and the third one reads."""
    shape = [BATCH, HIDDEN]
    made = ProfileBuilder().step(1, 0, 9000)
    operator(made, "aten::abs", 100, [shape], 0xA, 64 * KB)
    made.memory(110, 0xB, 128 * KB).memory(115, 0xB, -128 * KB)
    operator(made, "aten::abs", 200, [shape], 0xC, 128 * KB)
    operator(made, "aten::abs", 300, [shape], 0xD, 64 * KB)
    assert flow(imported(made, tmp_path)) == [
        ("abs", "weight0:128", "temporary1:64 workspace2:128"),
        ("abs", "weight3:128", "temporary4:128"),
        ("abs", "temporary4:128", "temporary5:64"),
    ]


def test_fused_optimizers_update_weights_and_states_and_read_gradients(tmp_path):
    """The file tells no type in lists: weights of 2 bytes are known by their sizes, as are their states."""
    half, lists = ["c10::BFloat16"] * 2, ["TensorList"] * 6
    made = ProfileBuilder(total=144 * KB + 512).step(1, 0, 9000)
    operator(made, "aten::mm", 100, [[512, WIDE], FIRST], 0xA, 128 * KB, sequence=1, types=half)
    for at in (200, 300, 400):
        operator(made, "aten::sum", at, [[BATCH, HIDDEN]], 0xB + at, 512)
    backward(made, 500, "MmBackward0", 1)
    operator(made, "aten::mm", 510, [[HIDDEN, 512], [512, WIDE]], 0xC, 16 * KB, types=half, tid=9)
    made.span("user_annotation", "Optimizer.step#Adam.step", 1000, 900)
    shapes = [[FIRST], [FIRST], [FIRST], [FIRST], [], [[1]]]
    operator(made, "aten::_fused_adam_", 1010, shapes, types=lists)
    made.memory(1100, 0xC, -16 * KB).memory(1101, 0xA, -128 * KB)
    trace = imported(made, tmp_path)
    name, read, written = flow(trace)[-1]
    assert (name, read.split()[1]) == ("_fused_adam_", f"gradient{trace.kernels[4].outputs[0]}:16")
    assert written.split()[0] == flow(trace)[0][1].split()[1] == "weight1:16"
    states = [tensor.size_bytes for tensor in trace.tensors if tensor.kind is TensorKind.OPTIMIZER_STATE]
    assert states == [16 * KB, 16 * KB, 512]
    assert len(written.split()) == 4


def test_calls_of_an_operator_of_the_cpu_use_the_same_tensors_in_every_step_of_it(tmp_path):
    """The second calls of both operators work on the second tensor of a size."""
    made = ProfileBuilder().step(1, 0, 9000)
    operator(made, "aten::abs", 100, [[BATCH, HIDDEN]], 0xA, 128 * KB)
    made.operator("aten::copy_", 300, None)
    made.launch(310, [("gpu_memcpy", "Memcpy DtoH (Device)", 320, 20)], name="cudaMemcpyAsync")
    made.span("user_annotation", "Optimizer.step#CPUAdam.step", 400, 900)
    for at, name in ((410, "mul_"), (450, "mul_"), (500, "add_"), (550, "add_"), (600, "div")):
        made.operator(f"aten::{name}", at, None, shapes=[FIRST, FIRST])
    on_cpu = imported(made, tmp_path).kernels[-5:]
    once, twice, again, further, other = (kernel.inputs for kernel in on_cpu)
    assert once == again == other
    assert twice == further
    assert len({*once, *twice}) == 4
    assert [kernel.outputs for kernel in on_cpu] == [(kernel.inputs[0],) for kernel in on_cpu]


def test_an_operator_that_allocates_nothing_writes_into_its_first_or_last_argument(tmp_path):
    made = ProfileBuilder(total=288 * KB).step(1, 0, 9000)
    operator(made, "aten::rand", 50, [[1]], 0xA, 96 * KB)
    operator(made, "_C::silu_and_mul", 100, [[BATCH, NARROW], [BATCH, HIDDEN]])
    operator(made, "aten::mm", 200, [[BATCH, HIDDEN], FIRST, [BATCH, NARROW]])
    trace = imported(made, tmp_path)
    _, custom, aten = trace.kernels
    size = {tensor.id: tensor.size_bytes // KB for tensor in trace.tensors}
    assert [size[tensor] for tensor in custom.outputs] == [96]
    assert [size[tensor] for tensor in aten.inputs] == [128, 32, 96]
    assert aten.outputs == custom.outputs
    assert any(text.startswith("2 kernels allocate nothing") for text in account_of(trace).facts)


def test_a_block_that_is_new_is_what_the_next_operator_fills(tmp_path):
    """Another of its size was written before, which an operator that only reads takes."""
    made = ProfileBuilder(total=0).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [[1]], 0xA, 128 * KB)
    made.memory(150, 0xB, 128 * KB)
    operator(made, "aten::fill_", 200, [[BATCH, HIDDEN]])
    made.memory(250, 0xC, 128 * KB)
    operator(made, "aten::abs", 300, [[BATCH, HIDDEN]], 0xD, 64 * KB)
    trace = imported(made, tmp_path)
    random, filled, read = trace.kernels
    assert filled.outputs[0] not in random.outputs
    assert not set(filled.outputs) & set(filled.inputs)
    assert read.inputs[0] == filled.outputs[0]


@pytest.mark.parametrize(("room", "weights"), [(4608, 2), (4607, 1)])
def test_a_weight_is_a_further_one_where_nine_tenths_of_it_are_left(tmp_path, room, weights):
    made = ProfileBuilder(total=5120 + room).step(1, 0, 9000)
    for number in range(2):
        operator(made, "aten::sum", 100 + 100 * number, [[1280]], number + 1, 1024)
    trace = imported(made, tmp_path)
    found = {kernel.inputs[0] for kernel in trace.kernels}
    assert len(found) == weights
    assert {trace.tensors[tensor].size_bytes for tensor in found} == {5120}


@pytest.mark.parametrize(
    ("tensor", "block", "belongs"),
    [(10 * MB, 11 * MB, True), (10 * MB, 11 * MB + 512, False), (MB, MB + 512, False), (MB, MB, True)],
)
def test_blocks_are_left_whole_for_a_mebibyte_more_and_only_large_ones(tmp_path, tensor, block, belongs):
    made = ProfileBuilder(total=64 * MB).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [[1]], 0xA, block)
    operator(made, "aten::add", 200, [[tensor // 4], [4, MB]], 0xB, 512)
    made_first, used = imported(made, tmp_path).kernels
    assert (made_first.outputs[0] in used.inputs[:1]) is belongs


def test_rows_of_a_table_are_looked_up_in_what_was_there_before(tmp_path):
    """Neither the table nor the numbers are a part of what the step has made."""
    made = ProfileBuilder(total=40 * KB).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [[1]], 0xA, 64 * KB)
    types = ["float", "Scalar", "long int"]
    operator(made, "aten::index_select", 200, [FIRST, [], [512]], 0xB, 64 * KB, types=types)
    assert flow(imported(made, tmp_path))[1][:2] == ("index_select", "weight2:32 input3:4 temporary1:64")


def test_the_largest_operand_may_be_a_part_of_what_was_made(tmp_path):
    made = ProfileBuilder(total=36 * KB).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [[1]], 0xA, 64 * KB)
    operator(made, "aten::rand", 150, [[1]], 0xC, 128 * KB)
    operator(made, "aten::add", 200, [[1024], [8192]], 0xB, 512)
    made.memory(250, 0xB, -512).memory(251, 0xA, -64 * KB).memory(252, 0xC, -128 * KB)
    random, _, added = imported(made, tmp_path).kernels
    assert added.inputs[1] == random.outputs[0]


def test_where_no_room_is_left_a_tensor_is_a_part_of_one_that_was_made(tmp_path):
    made = ProfileBuilder(total=512).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [[1]], 0xA, 64 * KB)
    operator(made, "aten::rand", 200, [[1]], 0xB, 128 * KB)
    operator(made, "aten::add", 300, [[8192], [1024]], 0xC, 512)
    first, second, added = imported(made, tmp_path).kernels
    assert added.inputs[:2] == (*first.outputs, *second.outputs)


def test_memory_of_the_host_says_nothing_about_what_was_there(tmp_path):
    """The first event of the device comes with the step: 36 KiB are there before it, most is 100 KiB."""
    made = ProfileBuilder(total=36 * KB).step(1, 100, 9000)
    made.memory(100, 0xA, 64 * KB).memory(101, 0xA, -64 * KB)
    made.total = None
    made.memory(102, 0xF, 7 * KB, device=-1, kind=0)
    made.total = 36 * KB
    operator(made, "aten::abs", 200, [[9216]], 0xB, 512)
    account = account_of(imported(made, tmp_path))
    assert [row.recorded_bytes for row in account.memory] == [36 * KB, 100 * KB]


def test_a_backward_operator_uses_what_its_forward_operator_made(tmp_path):
    made = ProfileBuilder(total=64 * KB).step(1, 0, 9000)
    operator(made, "aten::sigmoid", 100, [[BATCH, WIDE]], 0xA, 128 * KB, sequence=1)
    operator(made, "aten::rand", 200, [[1]], 0xB, 128 * KB, sequence=2)
    backward(made, 300, "SigmoidBackward0", 1)
    operator(made, "aten::mul", 310, [[BATCH, WIDE], [BATCH, HIDDEN]], 0xC, 64 * KB, tid=9)
    forward, _, gradient = imported(made, tmp_path).kernels
    assert gradient.inputs[1] == forward.outputs[0]


def test_the_first_operand_of_a_backward_operator_is_none_that_was_saved_for_it(tmp_path):
    made = ProfileBuilder(total=64 * KB).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [[1]], 0xB, 128 * KB, sequence=1)
    operator(made, "aten::sigmoid", 200, [[512, 1024]], 0xA, 128 * KB, sequence=2)
    backward(made, 300, "SigmoidBackward0", 2)
    operator(made, "aten::mul", 310, [[BATCH, HIDDEN]] * 2, 0xC, 128 * KB, tid=9)
    gradient, forward, product = imported(made, tmp_path).kernels
    assert product.inputs == (*gradient.outputs, *forward.outputs)


@pytest.mark.parametrize("is_backward", [True, False])
def test_operators_inside_one_take_the_latest_of_what_it_makes(tmp_path, is_backward):
    """A tensor that a forward operator used is saved for its backward operator alone."""
    made = ProfileBuilder(total=256 * KB).step(1, 0, 9000)
    operator(made, "aten::abs", 100, [[BATCH, HIDDEN]], 0xA, 128 * KB, sequence=1)
    if is_backward:
        backward(made, 200, "AbsBackward0", 1)
    numbered = {"tid": 9} if is_backward else {"sequence": 1}
    operator(made, "aten::rand", 210, [[1]], 0xB, 32 * KB, **numbered)
    operator(made, "aten::mul", 240, [[BATCH, HIDDEN], FIRST], 0xC, 32 * KB, **numbered)
    operator(made, "aten::mul", 270, [[BATCH, HIDDEN], FIRST], 0xD, 512, **numbered)
    *_, product, last = imported(made, tmp_path).kernels
    assert last.inputs[1] == product.outputs[0]


def test_the_optimizer_updates_weights_from_before_the_step_and_what_it_made_itself(tmp_path):
    """Gradients of the same size are the latest tensors; no target is one of them."""
    made = ProfileBuilder(total=0).memory(10, 0x1, 32 * KB).memory(20, 0x2, 32 * KB).step(1, 1000, 9000)
    backward(made, 1100, "MmBackward0", 7)
    operator(made, "aten::rand", 1110, [[1]], 0xA, 32 * KB, tid=9)
    operator(made, "aten::rand", 1140, [[1]], 0xB, 32 * KB, tid=9)
    made.span("user_annotation", "Optimizer.step#SGD.step", 2000, 900)
    operator(made, "aten::_fused_sgd_", 2010, [[FIRST] * 2] * 2, types=["TensorList"] * 2)
    operator(made, "aten::clone", 2040, [FIRST], 0xC, 32 * KB)
    operator(made, "aten::add_", 2070, [FIRST, FIRST])
    one, other, fused, clone, added = imported(made, tmp_path).kernels
    gradients = {*one.outputs, *other.outputs}
    assert len(fused.outputs) == 2
    assert gradients.isdisjoint(fused.outputs)
    assert gradients <= set(fused.inputs)
    assert added.outputs == clone.outputs


def test_the_optimizer_updates_weights_of_one_size_in_turn(tmp_path):
    made = ProfileBuilder(total=128 * KB).step(1, 0, 9000)
    for number in range(2):
        operator(made, "aten::mm", 100 + 50 * number, [[BATCH, WIDE], FIRST], 0xA + number, 128 * KB)
    made.span("user_annotation", "Optimizer.step#SGD.step", 1000, 900)
    for number in range(3):
        operator(made, "aten::mul_", 1010 + 50 * number, [FIRST])
    *products, one, other, again = imported(made, tmp_path).kernels
    weights = [(kernel.inputs[1],) for kernel in products]
    assert [one.outputs, other.outputs, again.outputs] == [*weights, weights[0]]


def test_part_of_a_storage_is_told_by_its_strides(tmp_path):
    """Of rows of 256 numbers 64 are used: from the first to the last 130,304 of the 131,072 bytes."""
    made = ProfileBuilder(total=256 * KB).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [[1]], 0xA, 128 * KB)
    operator(made, "aten::add", 200, [[WIDE, 1024], [128, 64]], 0xB, 512, strides=[[1024, 1], [256, 1]])
    random, added = imported(made, tmp_path).kernels
    assert added.inputs[1] == random.outputs[0]


def test_where_a_block_is_released_that_nobody_allocated_it_is_the_latest_tensor_of_its_size(tmp_path):
    made = ProfileBuilder(total=200 * KB).step(1, 0, 9000)
    operator(made, "aten::cat", 100, [FIRST] * 3, 0xA, 128 * KB)
    made.memory(150, 0x99, -32 * KB)
    operator(made, "aten::rand", 200, [[1]], 0xB, 512)
    trace = imported(made, tmp_path)
    kinds = [trace.tensors[tensor].kind for tensor in trace.kernels[0].inputs[:3]]
    assert kinds == [TensorKind.WEIGHT, TensorKind.WEIGHT, TensorKind.INPUT]


def test_in_place_on_a_part_is_in_place_on_the_whole(tmp_path):
    made = ProfileBuilder(total=512).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [[1]], 0xA, 64 * KB)
    operator(made, "aten::relu_", 200, [[8192]])
    operator(made, "aten::zero_", 300, [[BATCH, WIDE]])
    random, rectified, zeroed = imported(made, tmp_path).kernels
    assert rectified.outputs == rectified.inputs == zeroed.outputs == random.outputs
    assert zeroed.inputs == ()


def test_a_copy_from_the_device_reads_its_only_operand(tmp_path):
    made = ProfileBuilder(total=4 * MB).step(1, 0, 1000)
    made.operator("aten::_to_copy", 40, None, shapes=[[1024, 1024]])
    made.launch(50, [("gpu_memcpy", "Memcpy DtoH (Device)", 55, 20)], name="cudaMemcpyAsync")
    (copy,) = imported(made, tmp_path, partial=True).kernels
    assert (copy.inputs, copy.outputs) == ((0,), ())


def test_an_operator_that_also_computes_is_no_copy(tmp_path):
    """All its operands lie on the device."""
    made = ProfileBuilder(total=64 * KB).step(1, 0, 1000)
    made.operator("aten::add", 40, None, shapes=[FIRST, FIRST], allocates=0xA, size=32 * KB)
    copied = ("gpu_memcpy", "Memcpy HtoD (Pageable)", 55, 20)
    made.launch(50, [copied, ("add", 80, 20)], name="cudaMemcpyAsync")
    (added,) = imported(made, tmp_path).kernels
    assert len(added.inputs) == 2


def test_a_list_of_unknown_tensors_has_the_type_of_most_operands_that_are_no_whole_numbers(tmp_path):
    made = ProfileBuilder().step(1, 0, 9000)
    for at, kind in enumerate(["c10::Half", "long int", "c10::Half", "float", "long int", "long int"]):
        operator(made, "aten::abs", 100 + 30 * at, [[1]], at + 1, 512, types=[kind])
    operator(made, "aten::_foreach_mul_", 500, [[FIRST]], types=["TensorList"])
    trace = imported(made, tmp_path)
    assert [trace.tensors[tensor].size_bytes for tensor in trace.kernels[-1].outputs] == [16 * KB]


def test_tensors_of_a_list_are_no_inputs(tmp_path):
    made = ProfileBuilder().step(1, 0, 9000)
    operator(made, "aten::_foreach_abs", 100, [[FIRST]], 0xA, 32 * KB, types=["TensorList"])
    trace = imported(made, tmp_path)
    assert [trace.tensors[tensor].persistent for tensor in trace.kernels[0].inputs] == [True]


def test_without_memory_events_each_size_is_one_tensor(tmp_path):
    made = ProfileBuilder().step(1, 0, 9000)
    for at in (100, 200):
        operator(made, "aten::mm", at, [[BATCH, WIDE], FIRST])
    first, second = imported(made, tmp_path, partial=True).kernels
    assert first.inputs == second.inputs


def test_what_is_allocated_before_the_first_operator_is_what_it_fills(tmp_path):
    made = ProfileBuilder(total=0).step(1, 0, 9000).memory(50, 0xA, 64 * KB)
    operator(made, "aten::fill_", 100, [[BATCH, WIDE]])
    trace = imported(made, tmp_path)
    assert [tensor.size_bytes for tensor in trace.tensors] == [64 * KB]
    assert (trace.kernels[0].inputs, trace.kernels[0].outputs) == ((), (0,))
    assert [row.recorded_bytes for row in account_of(trace).memory] == [0, 64 * KB]


def test_a_step_that_releases_all_it_has_started_with_nothing(tmp_path):
    made = ProfileBuilder(total=0).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [], 0xA, 64 * KB)
    made.memory(180, 0xA, -64 * KB)
    operator(made, "aten::rand", 200, [], 0xB, 64 * KB)
    account = account_of(imported(made, tmp_path))
    assert [row.recorded_bytes for row in account.memory] == [0, 64 * KB]


def test_totals_that_are_less_than_what_was_allocated_say_nothing(tmp_path):
    made = ProfileBuilder(total=-4 * KB).step(1, 0, 9000)
    operator(made, "aten::rand", 100, [], 0xA, 64 * KB)
    assert account_of(imported(made, tmp_path)).memory == []


def test_on_the_host_no_block_is_larger_than_its_tensor(tmp_path):
    made = ProfileBuilder().step(1, 0, 9000)
    for at, name, shapes in ((100, "aten::rand", [[1]]), (200, "aten::add", [[512, 1024], [4, MB]])):
        made.operator(name, at, None, shapes=shapes)
        made.memory(at + 5, at, 3 * MB, device=-1, kind=0)
    random, added = imported(made, tmp_path).kernels
    assert added.inputs[0] not in random.outputs


@pytest.mark.parametrize("offloaded", [False, True])
def test_an_operator_whose_lists_are_not_written_out_is_a_kernel_and_told(tmp_path, offloaded):
    """PyTorch writes no list of more than 30 tensors; the operator looks at a number of each."""
    made = ProfileBuilder().step(1, 0, 9000)
    made.operator("aten::mm", 100, (120, 40) if offloaded else None)
    made.memory(110, 0x1000, 4 * MB, kind=int(offloaded))
    if offloaded:
        made.operator("aten::copy_", 300, None)
        made.launch(310, [("gpu_memcpy", "Memcpy DtoH (Device)", 320, 20)], name="cudaMemcpyAsync")
    made.span("user_annotation", "Optimizer.step#Adam.step", 400, 900)
    lists = {"Input Dims": [[], [], []], "Input type": ["TensorList", "TensorList", "Scalar"]}
    made.span("cpu_op", "aten::_fused_adam_", 410, 100, **lists)
    made.span("cpu_op", "aten::item", 420, 60)
    trace = imported(made, tmp_path)
    assert (trace.kernels[-1].name, trace.kernels[-1].duration) == ("_fused_adam_", 100_000)
    assert trace.kernels[-1].device is (Device.CPU if offloaded else Device.GPU)
    assert any(text.startswith("1 kernels use lists") for text in account_of(trace).warnings())


@pytest.mark.parametrize("total", [None, 4 * MB])
def test_tensors_from_before_are_told_where_nothing_says_how_much_was_there(tmp_path, total):
    """One tensor that is updated twice, or two tensors of its size: the total decides."""
    made = ProfileBuilder(total).step(1, 0, 9000)
    operator(made, "aten::relu_", 100, [[1024, 1024]])
    operator(made, "aten::relu_", 200, [[1024, 1024]])
    operator(made, "aten::rand", 300, [], 0xA, 4 * MB)
    found = [text for text in account_of(imported(made, tmp_path)).warnings() if "sizes alone" in text]
    assert [text.partition(" are told")[0] for text in found] == [
        "2 tensors from before the step (8.00 MiB)"
    ] * (total is None)
