"""Generation of tokens with a cache that grows: as recorded step by step, stored once for each layer."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture.source import make_torchvision_importable

make_torchvision_importable()
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'g10sim[capture]'")

import decoders
import torch
from decoders import PROMPT, SAMPLES, SIZES, llama

import g10sim
from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture import capture_step
from g10sim.capture.devices import fake_device
from g10sim.capture.fused import one_sequence_a_sample
from g10sim.capture.generation import Decoding, Generation, step_templates
from g10sim.capture.options import step_options
from g10sim.capture.recording import record_step
from g10sim.capture.workload import Model
from g10sim.errors import ConfigError
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import TensorKind
from g10sim.trace.repetition import blocks_of

pytestmark = pytest.mark.slow

TOKENS = 12
LAYERS = 4
HEADS, WIDTH = SIZES["num_attention_heads"], SIZES["hidden_size"] // SIZES["num_attention_heads"]
MISTRAL = {"kind": "MistralConfig", "sliding_window": PROMPT + 5}


def recorded_and_extended(cache, **sizes):
    """Every step recorded one after another, and the steps as a capture extends them from a few."""
    options = step_options({"generate": TOKENS, "cache": cache})
    with fake_device(options):
        model = Model(*llama(2, **sizes)())
        with one_sequence_a_sample():
            generation = Generation(model, options)
            extended = list(generation.templates())
            decoding = Decoding(model.network, generation._new_cache(), generation.prompt)
            recorded = step_templates(record_step(decoding, TOKENS + 1))
    return recorded, extended


@pytest.mark.parametrize(
    ("cache", "sizes"),
    [
        ("dynamic", {}),
        pytest.param("static", {}, marks=pytest.mark.nightly),
        pytest.param("dynamic", MISTRAL, marks=pytest.mark.nightly),
    ],
)
def test_steps_between_recorded_ones_are_those_that_would_be_recorded(cache, sizes):
    recorded, extended = recorded_and_extended(cache, **sizes)
    assert len(recorded) == len(extended) == TOKENS + 1
    for number, (one, other) in enumerate(zip(recorded, extended, strict=True)):
        assert one.is_like(other), number


@pytest.fixture(scope="module", params=["dynamic", "static"])
def trace(request):
    return capture_step(llama(), generate=TOKENS, cache=request.param)


def test_layers_are_stored_once_and_a_file_keeps_them_so(trace, tmp_path):
    check_trace(trace)
    repeated = [block for block in blocks_of(trace.kernels) if block.times > 1]
    assert [block.times for block in repeated] == (TOKENS + 1) * [LAYERS - 1]
    assert [block.times for block in blocks_of(trace.tensors)] == [1, LAYERS]
    save_trace(trace, tmp_path / "kept.g10t")
    assert load_trace(tmp_path / "kept.g10t") == trace
    assert {kernel.layer for kernel in trace.kernels if kernel.name == "attention"} == {
        "model.layers.*.self_attn"
    }


def test_every_token_attends_to_all_before_it(trace):
    found = [kernel.flops for kernel in trace.kernels if kernel.name == "attention"]
    grows = trace.origin["cache"] == "dynamic"  # one of full length is read whole, behind a mask
    tokens = range(1, TOKENS + 1) if grows else TOKENS * [TOKENS]
    pairs = [PROMPT * (PROMPT + 1) // 2, *(PROMPT + token for token in tokens)]
    # Scores and weighted values: a multiply-add for each pair of positions, head and element.
    assert found == [4 * SAMPLES * HEADS * WIDTH * count for count in pairs for _ in range(LAYERS)]


def test_weights_and_the_cache_are_alive_in_the_last_step(trace):
    weights = sum(t.size_bytes for t in trace.tensors if t.kind is TensorKind.WEIGHT)
    cache = LAYERS * 2 * SAMPLES * SIZES["num_key_value_heads"] * WIDTH * 4 * (PROMPT + TOKENS)
    assert peak_live_bytes(trace) >= weights + cache
    full = [t for t in trace.tensors if t.persistent and t.size_bytes == cache // LAYERS // 2]
    assert len(full) == (2 * LAYERS if trace.origin["cache"] == "static" else 0)
    assert trace.origin.get("operators_priced_by_bytes") is None


def test_operators_of_unknown_cost_are_counted_in_every_layer_and_step():
    def transform(module, given):
        torch.fft.rfft(given[0])

    def build():
        network, inputs = llama()()
        for layer in network.model.layers:
            layer.mlp.register_forward_pre_hook(transform)
            layer.self_attn.o_proj.register_forward_pre_hook(transform)
        return network, inputs

    trace = capture_step(build, generate=TOKENS)
    assert f"_fft_r2c x{2 * LAYERS * (TOKENS + 1)}" in trace.origin["operators_priced_by_bytes"]


def test_each_step_reads_the_keys_and_values_that_the_one_before_it_left():
    trace = capture_step(llama(), generate=TOKENS)
    row = SAMPLES * SIZES["num_key_value_heads"] * WIDTH * 4
    lengths = range(PROMPT + 1, PROMPT + TOKENS + 1)
    made = {
        tensor: kernel
        for kernel in trace.kernels
        for tensor in kernel.outputs
        if kernel.name == "cat" and trace.tensors[tensor].size_bytes in {row * length for length in lengths}
    }
    assert len(made) == TOKENS * LAYERS * 2
    read = {tensor for kernel in made.values() for tensor in kernel.inputs}
    for last in made.keys() - read:
        sizes, tensor = [], last
        while tensor is not None:
            sizes.append(trace.tensors[tensor].size_bytes)
            tensor = next((one for one in made[tensor].inputs if one in made), None)
        assert sizes == [row * length for length in reversed(lengths)]


@pytest.mark.parametrize("policy", ["base_uvm", "deepum"])
def test_a_generation_is_simulated(trace, policy):
    result = g10sim.simulate(trace, "a100-40g-pcie3-znand", policy, iterations=1, check=True)
    assert 0 < result.performance <= 1


@pytest.mark.nightly
def test_a_model_whose_layers_come_in_turns_repeats_them_by_twos():
    turns = {"layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": PROMPT + 4}
    trace = capture_step(llama(6, kind="Qwen2Config", use_sliding_window=True, **turns), generate=8)
    check_trace(trace)
    times = {block.times for block in blocks_of(trace.kernels) if block.times > 1}
    assert times == {2}


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (llama(), {"generate": 200}, "--generate: found 200 after 24 tokens of prompt; allowed: at most 104"),
        (llama(), {"generate": 0}, "generate: found 0; allowed: at least 1"),
        (llama(), {"cache": "static"}, "cache: found static without generate"),
        (llama(), {"generate": 2, "steps": 2}, "steps: found 2 with generate; allowed: 1"),
        (llama(), {"generate": 2, "optimizer": "sgd"}, "optimizer: found sgd in inference"),
    ],
)
def test_what_cannot_generate_is_refused(build, options, message):
    with pytest.raises(ConfigError, match=message):
        capture_step(build, **options)


def test_a_model_without_a_cache_is_refused(models):
    with pytest.raises(ConfigError, match="--generate: found Perceptron; allowed: a causal language model"):
        capture_step(models.perceptron, generate=2)


def decode_peaks(**sizes):
    """Weights, cache and the peak of a decode step with each kind of cache."""
    found = {}
    for kept in ("dynamic", "static", "buffers"):
        trace = capture_step(decoders.decode_step(kept, **sizes), inference=True)
        persistent = sum(t.size_bytes for t in trace.tensors if t.persistent)
        found[kept] = peak_live_bytes(trace), persistent
    return found


def check_decode(weights_and_cache, peaks):
    for peak, persistent in peaks.values():
        assert peak >= weights_and_cache
        assert persistent >= weights_and_cache
    whole = [peak for peak, _ in peaks.values()]
    assert max(whole) <= 1.02 * min(whole)


def test_a_decode_step_needs_alike_memory_with_every_kind_of_cache():
    sizes = decoders.WEIGHTY
    width, layers, heads = sizes["hidden_size"], 8, sizes["num_key_value_heads"]
    attention = 2 * width * width + 2 * width * heads * (width // sizes["num_attention_heads"])
    weights = layers * (attention + 3 * width * sizes["intermediate_size"]) + 2 * sizes["vocab_size"] * width
    cache = layers * 2 * 8 * heads * 128 * (width // sizes["num_attention_heads"])
    check_decode(4 * (weights + cache), decode_peaks(length=128))


@pytest.mark.nightly
def test_a_billion_parameters_decode_alike_with_every_kind_of_cache():
    cache = 16 * 2 * 8 * 8 * 64 * 2048
    peaks = decode_peaks(layers=16, length=2048, **decoders.ONE_BILLION)
    check_decode(4 * (1_235_814_400 + cache), peaks)


@pytest.mark.nightly
def test_a_thousand_tokens_of_a_billion_parameters_are_a_small_file(tmp_path):
    build = llama(16, 8, 2048, **decoders.ONE_BILLION)
    trace = capture_step(build, generate=1000, dtype="bfloat16")
    assert len(trace.kernels) > 600_000
    path = tmp_path / "long.g10t"
    save_trace(trace, path)
    assert path.stat().st_size < 5_000_000
