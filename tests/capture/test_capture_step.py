from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.analysis.gpus import load_gpu
from g10sim.capture import capture_step
from g10sim.errors import ConfigError, TraceError
from g10sim.trace.check import check_trace
from g10sim.trace.model import Phase, TensorKind, TimeSource
from g10sim.trace.work import KernelCost, NumberFormat, OperatorClass

pytestmark = pytest.mark.slow

FLOAT_BYTES = 4


def kernels_named(trace, *names):
    return [kernel for kernel in trace.kernels if kernel.name in names]


def names_of(trace, tensors):
    return [trace.tensors[tensor].name for tensor in tensors]


def tensors_of(trace, kind):
    return [tensor for tensor in trace.tensors if tensor.kind is kind]


def test_a_perceptron_gives_the_kernels_one_expects(models):
    trace = capture_step(models.perceptron, optimizer="sgd")
    check_trace(trace)
    found = [(kernel.phase.value, kernel.layer, kernel.name) for kernel in trace.kernels]
    assert found == [
        ("forward", "first", "addmm"),
        ("forward", "", "relu"),
        ("forward", "second", "addmm"),
        ("forward", "", "sum"),
        ("backward", "", "ones_like"),
        ("backward", "second", "mm"),
        ("backward", "second", "mm"),
        ("backward", "second", "sum"),
        ("backward", "", "threshold_backward"),
        ("backward", "first", "mm"),
        ("backward", "first", "sum"),
        ("optimizer", "", "_fused_sgd_"),
    ]
    assert trace.batch_size == 16
    assert trace.kernels[0].layer_type == "Linear"
    assert {kernel.time_source for kernel in trace.kernels} == {TimeSource.ROOFLINE}


def test_kernels_name_the_storages_they_touch_and_what_they_cost(models):
    trace = capture_step(models.perceptron, optimizer="sgd")
    first = trace.kernels[0]
    assert set(names_of(trace, first.inputs)) == {"input.0", "first.weight", "first.bias"}
    assert [trace.tensors[tensor].size_bytes for tensor in first.outputs] == [16 * 128 * FLOAT_BYTES]
    assert first.flops == 2 * 16 * 64 * 128
    assert first.moved_bytes == FLOAT_BYTES * (16 * 64 + 64 * 128 + 128 + 16 * 128)
    expected = load_gpu("a100-40g").launch_overhead // 1000
    assert all(kernel.duration > expected for kernel in trace.kernels)


def test_weights_and_their_gradients_are_told_apart(models):
    trace = capture_step(models.perceptron, optimizer="sgd")
    weights = tensors_of(trace, TensorKind.WEIGHT)
    gradients = tensors_of(trace, TensorKind.GRADIENT)
    assert [tensor.name for tensor in weights] == [
        "first.weight",
        "first.bias",
        "second.weight",
        "second.bias",
    ]
    assert {f"{tensor.name}.grad": tensor.size_bytes for tensor in weights} == {
        tensor.name: tensor.size_bytes for tensor in gradients
    }
    assert all(tensor.persistent for tensor in weights)
    assert not any(tensor.persistent for tensor in gradients)
    update = trace.kernels[-1]
    assert {tensor.id for tensor in gradients} <= set(update.inputs)
    assert {tensor.id for tensor in weights} == set(update.outputs)


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("adam", 2), ("adamw", 2)])
def test_optimizer_states_exist_before_the_step_and_outlive_it(models, optimizer, states):
    trace = capture_step(models.perceptron, optimizer=optimizer)
    found = tensors_of(trace, TensorKind.OPTIMIZER_STATE)
    weights = sum(tensor.size_bytes for tensor in tensors_of(trace, TensorKind.WEIGHT))
    counters = 4 * FLOAT_BYTES if states else 0
    assert sum(tensor.size_bytes for tensor in found) == states * weights + counters
    assert all(tensor.persistent for tensor in found)
    made = [kernel for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER and "like" in kernel.name]
    assert made == []


def test_a_fused_optimizer_does_everything_to_some_tensors_in_one_kernel(models):
    trace = capture_step(models.perceptron, optimizer="adamw")
    check_trace(trace)
    counting, update = [kernel for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER]
    assert (counting.name, update.name) == ("_foreach_add_", "_fused_adamw_")
    written = {trace.tensors[tensor].kind for tensor in update.outputs}
    assert written == {TensorKind.WEIGHT, TensorKind.OPTIMIZER_STATE}
    weights = sum(tensor.size_bytes for tensor in tensors_of(trace, TensorKind.WEIGHT))
    counters = 4 * FLOAT_BYTES
    assert update.moved_bytes == (4 + 3) * weights + counters  # reads and writes all but gradients


def test_an_unfused_optimizer_has_a_kernel_for_each_operation_on_lists_of_tensors(models):
    trace = capture_step(models.perceptron, optimizer="adamw", optimizer_form="foreach")
    optimizer = [kernel for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER]
    assert all(kernel.name.startswith("_foreach_") for kernel in optimizer)
    assert 6 < len(optimizer) < 12
    assert len(kernels_named(trace, "_foreach_sqrt")[0].outputs) == 4


def test_momentum_is_a_state_of_sgd(models):
    trace = capture_step(models.perceptron, optimizer="sgd", momentum=0.9)
    states = tensors_of(trace, TensorKind.OPTIMIZER_STATE)
    assert {tensor.name for tensor in states} == {
        f"{tensor.name}.momentum_buffer" for tensor in tensors_of(trace, TensorKind.WEIGHT)
    }


@pytest.mark.parametrize("name", ["language", "conv_net"])
def test_inference_is_a_forward_pass_that_keeps_nothing(models, name):
    trace = capture_step(getattr(models, name), inference=True)
    check_trace(trace)
    assert {kernel.phase for kernel in trace.kernels} == {Phase.FORWARD}
    kinds = {tensor.kind for tensor in trace.tensors}
    assert kinds <= {TensorKind.WEIGHT, TensorKind.BUFFER, TensorKind.INPUT, TensorKind.TEMPORARY}
    assert not kernels_named(trace, "native_dropout")
    assert peak_live_bytes(trace) < peak_live_bytes(capture_step(getattr(models, name))) * 0.6


def test_checkpointed_blocks_run_again_in_the_backward_pass(models):
    plain = capture_step(models.language)
    trace = capture_step(models.language, activation_checkpointing=True)
    check_trace(trace)

    def layers(trace, phase):
        return [kernel.layer for kernel in kernels_named(trace, "attention") if kernel.phase is phase]

    first, second = (f"encoder.layers.{number}.self_attn" for number in (0, 1))
    assert layers(trace, Phase.FORWARD) == layers(plain, Phase.FORWARD) == [first, second]
    assert layers(trace, Phase.BACKWARD) == [second, first]
    assert layers(plain, Phase.BACKWARD) == []
    assert peak_live_bytes(trace) < peak_live_bytes(plain)
    assert sum(kernel.flops for kernel in trace.kernels) > sum(kernel.flops for kernel in plain.kernels)


def test_a_model_without_blocks_cannot_be_checkpointed(models):
    with pytest.raises(ConfigError, match="found no block to run again in the model; allowed: a model with"):
        capture_step(models.perceptron, activation_checkpointing=True)


def test_mixed_precision_multiplies_in_the_lower_format_and_keeps_weights_in_float32(models):
    plain = capture_step(models.language)
    trace = capture_step(models.language, autocast="bfloat16")
    check_trace(trace)

    def sizes(trace, kind):
        return {tensor.name: tensor.size_bytes for tensor in tensors_of(trace, kind)}

    for kind in (TensorKind.WEIGHT, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE):
        assert sizes(trace, kind) == sizes(plain, kind)
    products = [(kernels_named(t, "addmm")[-1], t) for t in (trace, plain)]
    half, whole = (t.tensors[kernel.outputs[0]].size_bytes for kernel, t in products)
    assert 2 * half == whole
    assert kernels_named(trace, "_to_copy")


@pytest.mark.parametrize("pack", [lambda x: ({"x": [x]},), lambda x: {"batch": {"x": [x]}}])
def test_samples_are_counted_in_inputs_within_inputs(torch, pack):
    class Packed(torch.nn.Linear):
        def forward(self, batch):
            return super().forward(batch["x"][0])

    trace = capture_step(lambda: (Packed(4, 4), pack(torch.ones(6, 4))), inference=True)
    assert trace.batch_size == 6


def test_master_weights_take_16_bytes_a_parameter_and_one_cast_gradient(models):
    trace = capture_step(models.perceptron, dtype="bfloat16", master_weights=True)
    check_trace(trace)
    sizes = {tensor.name: tensor.size_bytes for tensor in trace.tensors}
    weights = [tensor.name for tensor in tensors_of(trace, TensorKind.WEIGHT)]
    for name in weights:
        assert 2 * sizes[name] == 2 * sizes[f"{name}.grad"] == sizes[f"{name}.master"]
        assert sizes[f"{name}.master"] == sizes[f"{name}.exp_avg"] == sizes[f"{name}.exp_avg_sq"]
    parameters = (64 * 128 + 128) + (128 * 32 + 32)
    inputs, steps = 2 * 16 * 64, FLOAT_BYTES * len(weights)
    assert peak_live_bytes(trace) == 16 * parameters + FLOAT_BYTES * 64 * 128 + inputs + steps


def test_master_weights_are_updated_one_by_one_and_cast_back(models):
    trace = capture_step(models.perceptron, dtype="bfloat16", master_weights=True)
    update = [kernel for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER][:4]
    assert [kernel.name for kernel in update] == ["_to_copy", "_foreach_add_", "_fused_adamw_", "copy_"]
    cast, _, step, back = update
    assert names_of(trace, cast.inputs) == ["first.weight.grad"]
    assert cast.outputs[0] in step.inputs
    assert "first.weight.master" in names_of(trace, step.outputs)
    assert (names_of(trace, back.inputs), names_of(trace, back.outputs)) == (
        ["first.weight.master"],
        ["first.weight"],
    )
    assert cast.moved_bytes == back.moved_bytes == (2 + FLOAT_BYTES) * 64 * 128


def test_mixed_precision_takes_a_network_without_parameters(torch):
    class Product(torch.nn.Module):
        def forward(self, x):
            return x @ x

    trace = capture_step(lambda: (Product(), torch.ones(4, 4)), autocast="bfloat16", inference=True)
    assert [kernel.number_format for kernel in kernels_named(trace, "mm")] == [NumberFormat.BFLOAT16]


@pytest.mark.parametrize("kernel", ["native_layer_norm", "_log_softmax"])
def test_mixed_precision_normalizes_in_float32_as_cuda_devices_do(models, kernel):
    outputs = [
        [t.tensors[tensor].size_bytes for tensor in kernels_named(t, kernel)[0].outputs]
        for t in (capture_step(models.language), capture_step(models.language, autocast="float16"))
    ]
    assert outputs[0] == outputs[1]


def test_several_steps_follow_each_other(models):
    one = capture_step(models.conv_net, optimizer="sgd")
    three = capture_step(models.conv_net, optimizer="sgd", steps=3)
    check_trace(three)
    assert [kernel.name for kernel in three.kernels] == 3 * [kernel.name for kernel in one.kernels]
    assert peak_live_bytes(three) == peak_live_bytes(one)


def test_products_are_given_the_workspace_asked_for(models):
    plain = capture_step(models.perceptron)
    trace = capture_step(models.perceptron, workspace="1 MiB")
    check_trace(trace)
    given = [kernel.name for kernel in trace.kernels if trace.workspace_bytes(kernel) == 2**20]
    assert given == ["addmm", "addmm", "mm", "mm", "mm"]
    assert [kernel.duration for kernel in trace.kernels] == [kernel.duration for kernel in plain.kernels]
    assert len(tensors_of(trace, TensorKind.WORKSPACE)) == len(given)


def test_an_operator_that_needs_values_is_refused_where_it_would_take_real_memory(models):
    message = (
        r"found the operator aten.binomial.default, which PyTorch can only run with values, on \d+ bytes"
    )
    with pytest.raises(TraceError, match=message):
        capture_step(lambda: models.drawn(2**28))
    assert capture_step(lambda: models.drawn(16)).kernels


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("form", ["fused", "foreach"])
def test_no_optimizer_takes_memory_for_values(models, monkeypatch, optimizer, form):
    monkeypatch.setattr("g10sim.capture.devices.MOST_BYTES", 0)
    momentum = 0.9 if optimizer == "sgd" else None
    options = {"optimizer": optimizer, "optimizer_form": form, "momentum": momentum}
    assert capture_step(models.language, **options).kernels


def test_inputs_stay_in_memory(models):
    assert all(tensor.persistent for tensor in tensors_of(capture_step(models.conv_net), TensorKind.INPUT))


def test_a_table_of_numbers_may_decide_how_a_model_is_built(models):
    trace = capture_step(models.stepped)
    assert len(kernels_named(trace, "native_dropout")) == 3


def test_fused_attention_is_one_kernel_each_way_that_keeps_no_scores(models):
    trace = capture_step(models.attention())
    check_trace(trace)
    forward, backward = kernels_named(trace, "attention", "attention_backward")
    assert (forward.phase, backward.phase) == (Phase.FORWARD, Phase.BACKWARD)
    one = 8 * 64 * 64 * FLOAT_BYTES
    denominators = 8 * 4 * 64 * FLOAT_BYTES
    assert [trace.tensors[tensor].size_bytes for tensor in forward.outputs] == [one, denominators]
    assert set(forward.inputs) | set(forward.outputs) < set(backward.inputs)
    assert [trace.tensors[tensor].size_bytes for tensor in backward.outputs] == [one] * 3
    product = 2 * 8 * 4 * 64 * 64 * 16
    assert (forward.flops, backward.flops) == (2 * product, 5 * product)
    assert not kernels_named(trace, "bmm", "_softmax", "native_dropout", "bernoulli_")


def test_fused_attention_multiplies_in_the_format_of_its_operands_both_ways(models):
    trace = capture_step(models.attention(), dtype="bfloat16")
    found = kernels_named(trace, "attention", "attention_backward")
    assert [kernel.number_format for kernel in found] == ["bfloat16"] * 2
    assert [dict(kernel.sizes)["keys"] for kernel in found] == [64] * 2


def test_causal_attention_skips_the_pairs_after_the_diagonal(models):
    forward = kernels_named(capture_step(models.attention(causal=True)), "attention")[0]
    assert forward.flops == 2 * 2 * 8 * 4 * (64 * 65 // 2) * 16


def test_grouped_keys_and_values_stay_small(models):
    trace = capture_step(models.attention(key_heads=2))
    backward = kernels_named(trace, "attention_backward")[0]
    sizes = [trace.tensors[tensor].size_bytes for tensor in backward.outputs]
    assert sizes == [8 * 64 * 64 * FLOAT_BYTES, 8 * 64 * 32 * FLOAT_BYTES, 8 * 64 * 32 * FLOAT_BYTES]


def test_eager_attention_has_its_scores_as_tensors(models):
    fused = capture_step(models.attention())
    eager = capture_step(models.attention(), attention="eager")
    check_trace(eager)
    assert kernels_named(eager, "bmm", "baddbmm")
    assert not kernels_named(eager, "attention", "attention_backward")
    assert peak_live_bytes(eager) > peak_live_bytes(fused)


def test_dropout_keeps_a_mask_of_one_byte_an_element(models):
    trace = capture_step(models.conv_net)
    dropout = kernels_named(trace, "native_dropout")[0]
    elements = 32 * 16 * 8 * 8
    assert [trace.tensors[tensor].size_bytes for tensor in dropout.outputs] == [4 * elements, elements]


def test_a_convolutional_net_resolves_in_place_kernels_and_running_statistics(models):
    trace = capture_step(models.conv_net, optimizer="adam")
    check_trace(trace)
    relu = kernels_named(trace, "relu_")[0]
    assert relu.inputs == relu.outputs
    assert trace.tensors[relu.inputs[0]].kind is TensorKind.ACTIVATION
    assert relu.moved_bytes == 2 * trace.tensors[relu.inputs[0]].size_bytes
    convolution = kernels_named(trace, "convolution")[0]
    assert convolution.flops == 2 * 32 * 16 * 16 * 16 * 3 * 3 * 3
    norm = kernels_named(trace, "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit")[0]
    statistics = {"norm.running_mean", "norm.running_var"}
    assert statistics <= set(names_of(trace, norm.inputs))
    assert statistics <= set(names_of(trace, norm.outputs))
    assert {tensor.name for tensor in tensors_of(trace, TensorKind.BUFFER)} > statistics


def test_backward_kernels_belong_to_the_module_whose_gradient_they_make(models):
    trace = capture_step(models.conv_net)
    owners = {kernel.name: kernel.layer for kernel in trace.kernels if kernel.phase is Phase.BACKWARD}
    assert owners["convolution_backward_weight"] == "conv"
    assert owners["max_pool2d_with_indices_backward"] == "pool"
    assert owners["native_dropout_backward"] == "drop"


def test_no_view_or_allocation_is_a_kernel(models):
    trace = capture_step(models.language)
    forbidden = (
        "view",
        "t",
        "transpose",
        "permute",
        "expand",
        "detach",
        "empty",
        "empty_like",
        "unsqueeze",
        "alias",
    )
    assert not kernels_named(trace, *forbidden)
    assert all(kernel.outputs for kernel in trace.kernels)


def test_tied_weights_are_one_tensor(models):
    trace = capture_step(models.language)
    check_trace(trace)
    tied = [
        tensor
        for tensor in trace.tensors
        if tensor.size_bytes == 1000 * 64 * FLOAT_BYTES and tensor.persistent
    ]
    assert [tensor.name for tensor in tied] == [
        "embedding.weight",
        "embedding.weight.exp_avg",
        "embedding.weight.exp_avg_sq",
    ]


def test_a_look_up_moves_its_rows_and_not_the_table(models):
    trace = capture_step(lambda: models.language(batch_size=2, seq_len=8))
    look_up = kernels_named(trace, "embedding")[0]
    rows = 2 * 8 * 64 * FLOAT_BYTES
    assert look_up.moved_bytes == rows + 2 * 8 * 8 + rows


def test_frozen_weights_have_no_gradient_and_buffers_are_kept(models):
    trace = capture_step(models.frozen)
    check_trace(trace)
    assert {tensor.name for tensor in tensors_of(trace, TensorKind.GRADIENT)} == {
        "head.weight.grad",
        "head.bias.grad",
    }
    assert {tensor.name for tensor in tensors_of(trace, TensorKind.WEIGHT)} == {
        *("body.weight", "body.bias", "head.weight", "head.bias")
    }
    assert [tensor.persistent for tensor in tensors_of(trace, TensorKind.BUFFER)] == [True]


def test_half_precision_halves_the_tensors_and_uses_tensor_cores(models):
    def large():
        return models.perceptron(batch_size=2**16)

    single = capture_step(large, optimizer="sgd")
    half = capture_step(large, optimizer="sgd", dtype="bfloat16")
    assert peak_live_bytes(half) * 2 == peak_live_bytes(single)
    assert half.kernels[0].duration < single.kernels[0].duration


def test_the_same_step_gives_the_same_trace(models):
    assert capture_step(models.language) == capture_step(models.language)


def test_an_operator_of_unknown_cost_is_named_and_priced_by_its_bytes(models):
    trace = capture_step(models.unusual)
    check_trace(trace)
    assert "_fft_r2c x1" in trace.origin["operators_priced_by_bytes"]
    assert kernels_named(trace, "_fft_r2c")[0].moved_bytes == 4 * 32 * 4 + 4 * 17 * 8


def test_an_initialization_that_asks_for_values_is_left_out(models):
    assert capture_step(models.truncated).kernels


def test_a_step_that_depends_on_values_is_refused_with_its_line(models):
    with pytest.raises(
        TraceError, match=r"mine: the training step stopped at .*capture_models.py:\d+ \(forward\)"
    ) as no:
        capture_step(models.undecided, model="mine")
    assert "whose result depends on values" in str(no.value)
    line = int(str(no.value).split("capture_models.py:")[1].split(" ")[0])
    assert "the line that a refusal names" in Path(models.__file__).read_text().splitlines()[line - 1]


def test_a_model_that_cannot_be_built_is_refused(models):
    with pytest.raises(
        TraceError, match=r"building the model stopped at .*\(broken\): RuntimeError: no such file"
    ):
        capture_step(models.broken)


def test_a_model_with_nothing_to_train_is_refused(models):
    with pytest.raises(ConfigError, match="no parameter to train"):
        capture_step(models.no_gradient)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"optimizer": "adamx"},
            r"optimizer: found 'adamx' \(did you mean 'adam.?'\?\); allowed: adam, adamw, sgd",
        ),
        ({"dtype": "float8"}, r"dtype: found 'float8'"),
        ({"attention": "flash"}, r"attention: found 'flash'.*allowed: eager, fused"),
        ({"autocast": "float32"}, r"autocast: found 'float32'.*allowed: bfloat16, float16"),
        ({"autocast": "float16", "dtype": "bfloat16"}, r"autocast: found float16 with dtype bfloat16"),
        (
            {"master_weights": True},
            r"master_weights: found dtype float32; allowed: dtype bfloat",
        ),
        (
            {"master_weights": True, "dtype": "bfloat16", "inference": True},
            r"master_weights: found True in inference; allowed: training",
        ),
        ({"optimizer_form": "loop"}, r"optimizer_form: found 'loop'.*allowed: foreach, fused"),
        ({"momentum": 0.9}, r"momentum: found 0.9 with optimizer adamw; allowed: optimizer sgd"),
        ({"optimizer": "sgd", "momentum": 1.5}, r"momentum: found 1.5; allowed: at least 0 and less than 1"),
        ({"workspace": "8"}, r"workspace: found '8' without a unit"),
        ({"steps": 0}, r"steps: found 0; allowed: at least 1"),
        ({"inference": True, "optimizer": "sgd"}, r"optimizer: found sgd in inference; allowed: training"),
        ({"gpu": "tpu"}, r"found unknown GPU 'tpu'.*allowed: a100-40g"),
        (
            {"gpu": "v100", "dtype": "bfloat16"},
            r"dtype: found bfloat16, for which GPU 'v100' has no .*; allowed: float16, float32, float64$",
        ),
        (
            {"gpu": "v100", "autocast": "bfloat16"},
            r"autocast: found bfloat16, for which .*; allowed: float16$",
        ),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(models, option, message):
    with pytest.raises(ConfigError, match=message):
        capture_step(models.perceptron, **option)


@pytest.mark.parametrize(
    ("dtype", "lacking"), [("float8_e4m3fn", "a100-40g"), ("float8_e5m2", "a6000"), ("int8", "v100")]
)
def test_products_in_eight_bits_take_their_rate_and_are_refused_without_one(torch, models, dtype, lacking):
    build = models.eight_bits(getattr(torch, dtype))
    (product,) = capture_step(build, gpu="h100", inference=True, cuda_graph=True).kernels
    h100 = load_gpu("h100")
    number_format = NumberFormat(dtype.partition("_")[0])
    assert product.flops == 2 * 32 * 128 * 64
    cost = KernelCost(product.name, OperatorClass.MATMUL, number_format, flops=product.flops)
    cost.moved_bytes = product.moved_bytes
    assert product.duration == h100.replayed().duration_ns(cost)
    with pytest.raises(ConfigError, match=f"GPU '{lacking}': found an operator in {number_format}, which"):
        capture_step(build, gpu=lacking, inference=True)


def test_capturing_leaves_pytorch_as_it_was(torch, models):
    capture_step(models.language, dtype="bfloat16")
    assert torch.get_default_dtype() is torch.float32
    out = torch.nn.functional.dropout(torch.ones(1000), 0.5)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    scores = torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 1, 4, 4))
    assert torch.equal(scores, torch.ones(1, 1, 4, 4))


def test_fused_attention_lays_its_result_out_as_its_query(models):
    trace = capture_step(models.self_attention, inference=True)
    # Query, key and value are products of one weight; what attention returns needs no copy.
    assert [kernel.name for kernel in trace.kernels] == ["addmm", "clone", "attention", "addmm"]


def test_a_gpu_is_found_in_capitals(models):
    assert capture_step(models.self_attention, gpu="H100").origin["gpu"] == "h100"
