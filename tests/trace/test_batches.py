"""Several batches in place of one: what they share, and the order by layers."""

import pytest

from g10sim.cli.main import main
from g10sim.errors import TraceError
from g10sim.trace.batches import block_of, in_batches
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder, chain
from g10sim.trace.transformer import Generation

MODEL = Generation(
    2, 4, 3, 3, 5, prompt_rate=1e9, prompt_attention_rate=2e9, token_rate=4e9, token_attention_rate=8e9
)


def names(trace, ids):
    return [trace.tensors[tensor].name for tensor in ids]


def test_a_generation_by_hand():
    trace = MODEL.trace()
    assert len(trace.kernels) == 3 * 2 * 5
    sizes = {tensor.name: tensor.size_bytes for tensor in trace.tensors}
    assert sizes["layers.1.fc1.weight"] == 2 * 4 * 4**2
    # Keys and values of 3 tokens of 5 prompts, 2 * 2 * 4 bytes each; then of one.
    assert (sizes["layers.0.cache.0"], sizes["layers.0.cache.1"]) == (3 * 5 * 16, 5 * 16)
    first, second, third = (trace.kernels[number] for number in (1, 11, 21))
    assert names(trace, third.inputs) == ["layers.0.qkv", "layers.0.cache.0", "layers.0.cache.1"]
    assert names(trace, third.outputs) == ["layers.0.attention", "layers.0.cache.2"]
    # 4 * 4 operations a token and token before it, for 5 prompts.
    assert first.duration == 16 * 3 * 3 * 5 / 2
    assert (second.duration, third.duration) == (16 * 4 * 5 / 8, 16 * 5 * 5 / 8)
    assert trace.kernels[0].duration == 2 * 3 * 4**2 * 3 * 5
    assert trace.kernels[10].duration == 2 * 3 * 4**2 * 5 / 4


def test_batches_share_weights_and_nothing_else():
    one, three = MODEL.trace(), in_batches(MODEL.trace(), 3)
    weights = [tensor for tensor in one.tensors if tensor.kind is TensorKind.WEIGHT]
    assert len(three.tensors) == len(weights) + 3 * (len(one.tensors) - len(weights))
    assert three.batch_size == 15
    assert [kernel.micro_batch for kernel in three.kernels[::30]] == [1, 2, 3]
    used = [{t for k in three.kernels if k.micro_batch == batch for t in k.touched} for batch in (1, 2, 3)]
    assert {three.tensors[tensor].kind for tensor in used[0] & used[1]} == {TensorKind.WEIGHT}
    assert used[0] & used[1] == used[1] & used[2]


def test_all_batches_run_a_layer_before_the_next_one():
    block = block_of(MODEL.trace(), 2)
    order = [(kernel.layer, kernel.micro_batch) for kernel in block.kernels[::5]]
    token = [("layers.0", 1), ("layers.0", 2), ("layers.1", 1), ("layers.1", 2)]
    assert order == 3 * token


def test_layers_that_are_stored_once_have_numbers():
    """A norm without weights before them, and a sum after them, belong to the layer."""
    builder = TraceBuilder("captured")
    states = builder.tensor("input", 1, TensorKind.INPUT)
    weights = [
        [builder.tensor(f"layers.*.{name}.weight", 1, TensorKind.WEIGHT, persistent=True) for name in "ab"]
        for _ in range(2)
    ]
    for _ in range(2):
        for first, second in weights:
            for path, inputs in ((".a", []), (".a", [first]), (".b", [second]), ("", [])):
                made = builder.tensor("made", 1, TensorKind.ACTIVATION)
                builder.kernel("step", 1, [states, *inputs], [made], Phase.FORWARD, f"layers.*{path}")
                states = made
    found = [kernel.layer for kernel in block_of(builder.build(), 2).kernels]
    layers = [f"layers.{number}" for number in (0, 0, 1, 1)]
    assert found == 2 * [f"{layer}{path}" for layer in layers for path in (".a", ".a", ".b", "")]


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (
            chain(2),
            r"trace: kernel 2 \(Backward\) is of phase backward; allowed: forward passes of one batch",
        ),
        (in_batches(MODEL.trace(), 2), r"trace: kernel 0 \(qkv\) is of a micro-batch; allowed: forward"),
    ],
)
def test_other_traces_are_refused(trace, message):
    with pytest.raises(TraceError, match=message):
        in_batches(trace, 2)


def test_the_command_writes_a_block(tmp_path, monkeypatch, capsys):
    save_trace(MODEL.trace(), tmp_path / "one.g10t")
    files = [str(tmp_path / name) for name in ("one.g10t", "block.g10t")]
    monkeypatch.setattr("sys.argv", ["g10sim", "trace", "block", files[0], "--batches", "2", "-o", files[1]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    # 8 weights; for each token of a batch its input and 6 tensors of every layer.
    assert capsys.readouterr().out == f"{files[1]}: 60 kernels, {8 + 2 * 3 * 13} tensors\n"
    assert load_trace(files[1]).batch_size == 10
