"""Experts: a tensor and kernels of their own for each, and tokens that add up, given or drawn."""

import json

import pytest
from tiny_models import TINY

pytest.importorskip("transformers", reason="needs pip install 'g10sim[capture]'")
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture.routing import ROUTED_TOKENS, drawn_counts
from g10sim.capture.source import capture_source
from g10sim.errors import ConfigError, TraceError
from g10sim.trace.format import save_trace
from g10sim.trace.model import Phase

pytestmark = pytest.mark.slow

BATCH, LENGTH, EXPERTS, CHOSEN, WIDTH = 2, 32, 8, 2, 64
TOKENS = BATCH * LENGTH
OPTIONS = {"gpu": "h100", "batch_size": BATCH, "seq_len": LENGTH}


def mixtral(**options):
    return capture_source("hf:mixtral", settings=TINY["mixtral"], inference=True, **OPTIONS | options)


def tokens_of_experts(trace, layer):
    """Tokens of each expert, from the FLOPs of the product with its first weights (128 by 64, twice)."""
    counts = [0] * EXPERTS
    weights = {
        tensor.id: int(tensor.name.rpartition(".")[2])
        for tensor in trace.tensors
        if f"layers.{layer}.mlp.experts.gate_up_proj." in tensor.name and tensor.persistent
    }
    for kernel in trace.kernels:
        for number in set(kernel.inputs) & set(weights):
            assert kernel.phase is Phase.FORWARD
            counts[weights[number]] += kernel.flops // (2 * WIDTH * 2 * 128)
    return counts


def test_each_expert_has_weights_and_kernels_of_its_own():
    trace = mixtral()
    sizes = {tensor.name: tensor.size_bytes for tensor in trace.tensors}
    for expert in range(EXPERTS):
        assert sizes[f"model.layers.1.mlp.experts.gate_up_proj.{expert}"] == 2 * 128 * WIDTH * 4
        assert sizes[f"model.layers.1.mlp.experts.down_proj.{expert}"] == 128 * WIDTH * 4
    rows = json.loads(trace.origin[ROUTED_TOKENS])
    assert len(rows) == 2
    for layer, row in enumerate(rows):
        assert sum(row) == TOKENS * CHOSEN
        assert tokens_of_experts(trace, layer) == row


def test_tokens_are_sent_as_a_file_says_and_as_a_trace_did(tmp_path):
    rows = [[TOKENS, TOKENS, 0, 0, 0, 0, 0, 0], [16] * EXPERTS]
    file = tmp_path / "routing.json"
    file.write_text(json.dumps(rows))
    trace = mixtral(routing=str(file))
    assert [tokens_of_experts(trace, layer) for layer in (0, 1)] == rows
    save_trace(trace, tmp_path / "one.g10t")
    again = mixtral(routing=str(tmp_path / "one.g10t"))
    assert again.kernels == trace.kernels


def test_experts_without_tokens_launch_nothing(tmp_path):
    file = tmp_path / "routing.json"
    file.write_text(json.dumps([[TOKENS, TOKENS, 0, 0, 0, 0, 0, 0]] * 2))
    trace = mixtral(routing=str(file))
    used = {trace.tensors[number].name for kernel in trace.kernels for number in kernel.inputs}
    assert "model.layers.0.mlp.experts.gate_up_proj.1" in used
    assert "model.layers.0.mlp.experts.gate_up_proj.2" not in used


def test_training_makes_gradients_expert_by_expert():
    trace = capture_source("hf:qwen3-moe", settings=TINY["qwen3-moe"], **OPTIONS)
    made = {t.name: t.size_bytes for t in trace.tensors if t.kind.value == "gradient"}
    assert made["model.layers.0.mlp.experts.down_proj.3.grad"] == 32 * WIDTH * 4


@pytest.mark.nightly
def test_blocks_that_run_again_choose_the_same_experts():
    options = {"settings": TINY["mixtral"], **OPTIONS}
    once = capture_source("hf:mixtral", **options)
    again = capture_source("hf:mixtral", activation_checkpointing=True, **options)
    assert again.origin[ROUTED_TOKENS] == once.origin[ROUTED_TOKENS]
    assert len(again.kernels) > len(once.kernels)


def test_a_grouped_layer_stays_as_it_is():
    trace = mixtral(routing="grouped", dtype="bfloat16")
    assert ROUTED_TOKENS not in trace.origin
    assert "_grouped_mm" in {kernel.name for kernel in trace.kernels}


def test_a_seed_draws_the_same_again_and_another_seed_others():
    assert mixtral().kernels == mixtral(routing="uniform", routing_seed=0).kernels
    assert mixtral().origin[ROUTED_TOKENS] != mixtral(routing_seed=1).origin[ROUTED_TOKENS]


def test_draws_add_up_and_follow_zipf():
    tokens, experts, chosen = 20_000, 8, 2
    even = drawn_counts(tokens, experts, chosen, 0.0, (0,))
    assert even.sum() == tokens * chosen
    assert even.max() / even.min() < 1.1
    one = sorted(drawn_counts(tokens, experts, 1, 1.0, (0,)), reverse=True)
    harmonic = sum(1 / rank for rank in range(1, experts + 1))
    for rank, count in enumerate(one, start=1):  # a share of 1 / rank / H, within four standard deviations
        share = 1 / rank / harmonic
        assert count / tokens == pytest.approx(share, abs=4 * (share * (1 - share) / tokens) ** 0.5)


def test_no_expert_gets_a_token_twice():
    counts = drawn_counts(100, 4, 3, 5.0, (1,))
    assert counts.max() <= 100
    assert counts.sum() == 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1, 2]]", r"row 1: found 2 experts, 3 tokens, at most 2 in one; allowed: 8 experts, 128 tokens"),
        ("[[65, 63, 0, 0, 0, 0, 0, 0]]", "at most 65 in one; allowed: 8 experts, 128 tokens, at most 64"),
        ("[[16, 16, 16, 16, 16, 16, 16, 16]]", "row 2: found 1 rows; allowed: one for each router"),
        ("[[-1]]", "0.0: Input should be greater than or equal to 0"),
        ("{", "allowed: a JSON list with a row for each router"),
    ],
)
def test_a_wrong_routing_is_refused(tmp_path, text, message):
    file = tmp_path / "routing.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        mixtral(routing=str(file))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routing": "zipf:x"}, "routing: found zipf:x; allowed: zipf:EXPONENT with a number from 0"),
        ({"routing": "unifrom"}, "--routing: unifrom: No such file or directory; allowed: uniform, zipf"),
        ({"routing": "grouped", "routing_seed": 1}, "routing_seed: found 1 with routing grouped"),
        (
            {"routing": "uniform", "measure": True},
            "--routing: found uniform with --measure; allowed: grouped",
        ),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(ConfigError) as refused:
        mixtral(**options)
    assert message in str(refused.value)


def test_a_model_of_ones_own_is_routed_where_that_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "own_experts.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match=r"whose result depends on values.*--routing gives values"):
        capture_source("own_experts:build", gpu="h100")
    trace = capture_source("own_experts:build", gpu="h100", routing="zipf:2")
    (row,) = json.loads(trace.origin[ROUTED_TOKENS])
    products = [
        k.flops // (2 * 16 * 16) for k in trace.kernels if k.name == "addmm" and k.phase is Phase.FORWARD
    ]
    assert products == [count for count in row if count]
    assert sum(row) == 64


OWN = """
import torch


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(16, 4, bias=False)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        chosen = self.router(x).topk(1).indices.squeeze(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == number).squeeze(-1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        return out


def build(batch_size=64):
    return Experts(), torch.randn(batch_size, 16)
"""
