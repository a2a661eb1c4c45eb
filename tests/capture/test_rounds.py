"""Steps of language models in rounds of micro-batches, and with adapters."""

from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture import capture_step, rounds
from g10sim.trace.model import Phase, TensorKind

pytestmark = pytest.mark.slow

SMALL = rounds.Sizes(layers=2, width=64, inner=96, heads=4, key_heads=2, words=50, base=10_000.0)
ADAPTED = 7
"""Linear layers of a block: four of attention, three of the MLP."""


@pytest.fixture
def trace(monkeypatch, request):
    monkeypatch.setattr(rounds, "LLAMA_3_8B", SMALL)
    monkeypatch.setattr(rounds, "QWEN3_32B", replace(SMALL, head=32, norms_heads=True))
    monkeypatch.setattr(rounds, "STEP_TOKENS", 128)
    return capture_step(partial(request.param, batch_size=2, seq_len=8))


def updated(trace):
    """Return the weights that each kernel of the optimizer writes, of those that write any."""
    weights = {tensor.id for tensor in trace.tensors if tensor.kind is TensorKind.WEIGHT}
    written = (
        weights.intersection(kernel.outputs) for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER
    )
    return list(filter(None, written))


@pytest.mark.parametrize("trace", [rounds.llama_3_8b_half], indirect=True)
def test_each_weight_is_updated_alone_in_the_last_of_four_rounds(trace):
    weights = [tensor for tensor in trace.tensors if tensor.kind is TensorKind.WEIGHT]
    assert {kernel.micro_batch for kernel in trace.kernels if kernel.phase is Phase.FORWARD} == {1, 2, 3, 4}
    assert sorted(map(len, updated(trace))) == [1] * len(weights)
    assert len(weights) == 3 + (ADAPTED + 2) * SMALL.layers
    assert not trace.frozen


@pytest.mark.parametrize("trace", [rounds.llama_3_8b_half], indirect=True)
def test_blocks_keep_what_products_cannot_be_made_again_without(trace):
    backward = next(kernel.id for kernel in trace.kernels if kernel.phase is Phase.BACKWARD)
    kept = [
        tensor.size_bytes // 4
        for tensor in trace.tensors
        if tensor.kind is TensorKind.ACTIVATION
        and trace.births[tensor.id] < backward < trace.deaths[tensor.id]
    ]
    tokens = 16
    queries, keys = (heads * SMALL.head for heads in (SMALL.heads, SMALL.key_heads))
    # Input and middle, queries and results of attention, keys and values, gate and up.
    block = [SMALL.width, SMALL.width, queries, queries, keys, keys, SMALL.inner, SMALL.inner]
    gradients = [
        tokens * SMALL.width,
        SMALL.words * SMALL.width,
    ]  # of the last norm's output, and of the words
    expected = [*(tokens * one for one in SMALL.layers * block), tokens * SMALL.width, *gradients]
    small = tokens * SMALL.heads  # maxima of attention, and of norms
    assert sorted(size for size in kept if size > small) == sorted(expected)


def test_gradients_are_those_of_plain_operators(monkeypatch):
    torch.manual_seed(0)
    plain, own = (rounds._Llama(SMALL, 8, checkpointed=plain) for plain in (True, False))
    own.load_state_dict(plain.state_dict())
    monkeypatch.setattr(rounds, "_SCRATCH_BYTES", SMALL.words * 4 * 5)  # logits of five tokens at a time
    tokens, targets = torch.randint(SMALL.words, (2, 2, 8))
    losses = [model(tokens, targets) for model in (plain, own)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    for one, other in zip(plain.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.nightly
@pytest.mark.parametrize("trace", [rounds.llama_3_8b_half_lora], indirect=True)
def test_adapters_of_all_linear_layers_are_trained_and_weights_are_frozen(trace):
    assert len(updated(trace)) == 2 * ADAPTED * SMALL.layers
    trained = {trace.tensors[tensor].name for (tensor,) in updated(trace)}
    assert {name.rsplit(".", 2)[1] for name in trained} == {"down", "up"}
    weights = [tensor for tensor in trace.tensors if tensor.kind is TensorKind.WEIGHT]
    assert {tensor.name for tensor in weights if tensor.id not in trace.frozen} == trained
    assert {"embedding.weight", "logits.weight"} <= {trace.tensors[tensor].name for tensor in trace.frozen}


@pytest.mark.parametrize("trace", [rounds.qwen3_32b_checkpointed], indirect=True)
def test_heads_may_be_wider_than_their_share_of_the_model_and_have_norms(trace):
    sizes = {one.name: one.size_bytes // 4 for one in trace.tensors if one.kind is TensorKind.WEIGHT}
    assert sizes["layers.0.queries.weight"] == SMALL.width * SMALL.heads * 32
    assert sizes["layers.0.query_norm.weight"] == sizes["layers.0.key_norm.weight"] == 32
    assert len(updated(trace)) == len(sizes)
