"""Training steps of language models in rounds of micro-batches, for runtimes that keep weights below the GPU.

To capture: ``g10sim trace capture g10sim.capture.rounds:llama_3_8b --batch-size 32 --seq-len 1024
--dtype bfloat16 --gpu h100``.

Norms, attention and the optimizer are one kernel each, and each weight is updated as soon as its gradient is
complete. Blocks that are not checkpointed keep for the backward pass what those of als244/dataflow keep
(docs/models/llama3, commit 047f806): outputs of norms and the input of the last product are made again from
what they were made from. The loss and its gradients are then made in one pass, for some tokens at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from g10sim.capture.lora import adapt

STEP_TOKENS = 131_072
"""Tokens of a step."""
_CHUNK_TOKENS = 4096
"""Tokens whose logits exist at a time in checkpointed models."""
_SCRATCH_BYTES = 512 << 20
"""Logits that exist at a time in others (als244/shadowspill, ``head_scratch_bytes`` of its presets)."""


@dataclass(frozen=True)
class Sizes:
    """Dimensions of a Llama: layers, widths, heads of queries and of keys, words, base of positions.

    With ``norms_heads`` queries and keys are normed head by head, as in Qwen3.
    """

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    words: int
    base: float
    head: int = 128
    norms_heads: bool = False


LLAMA_3_8B = Sizes(layers=32, width=4096, inner=14336, heads=32, key_heads=8, words=128256, base=500_000.0)
QWEN3_32B = Sizes(
    layers=64, width=5120, inner=25600, heads=64, key_heads=8, words=151936, base=1e6, norms_heads=True
)


@contextmanager
def _made_again(make: Callable[[], Tensor]) -> Iterator[Tensor]:
    """Give a tensor that operators of the ``with`` block do not keep: the backward pass makes it again."""
    made, again = [make()], list[Tensor]()

    def pack(saved: Tensor) -> Tensor | torch.Size:
        return saved.shape if saved is made[0] or saved._base is made[0] else saved

    def unpack(packed: Tensor | torch.Size) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if not again:
            with torch.no_grad():
                again.append(make())
        return again[0].view(packed)

    with saved_tensors_hooks(pack, unpack):
        yield made[0]
    made.clear()


class _Gated(torch.autograd.Function):  # type: ignore[misc]
    """silu(gate) * up, for which only these two are kept."""

    @staticmethod
    def forward(context: Any, gate: Tensor, up: Tensor) -> Tensor:
        context.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = context.saved_tensors
        of_gate = torch.ops.aten.silu_backward(gradient * up, gate)
        return of_gate, gradient * functional.silu(gate)


class _Loss(torch.autograd.Function):  # type: ignore[misc]
    """Sum of the cross entropy of logits; the gradients are made next to them, before the backward pass."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        tokens = _SCRATCH_BYTES // (weight.element_size() * len(weight))
        of_x, of_weight = list[Tensor](), torch.zeros_like(weight) if context.needs_input_grad[1] else None
        losses = list[Tensor]()
        for part, wanted in zip(x.split(tokens), targets.unsqueeze(1).split(tokens), strict=True):
            slopes = (part @ weight.t()).softmax(-1)
            losses.append(slopes.gather(1, wanted).float().log().sum())
            slopes.scatter_(1, wanted, slopes.gather(1, wanted) - 1)
            of_x.append(slopes @ weight)
            if of_weight is not None:
                of_weight.addmm_(slopes.t(), part)
        context.save_for_backward(torch.cat(of_x), of_weight)
        return -torch.stack(losses).sum()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        of_x, of_weight = context.saved_tensors
        return of_x * gradient, None if of_weight is None else of_weight * gradient, None


class _Block(nn.Module):  # type: ignore[misc]
    """One layer: attention and a gated MLP, each behind a norm and with a shortcut.

    It ``keeps_all`` that operators keep for the backward pass, or makes some of it again.
    """

    def __init__(self, sizes: Sizes, *, keeps_all: bool) -> None:
        super().__init__()
        self.head, self.keeps_all = sizes.head, keeps_all
        self.norm = nn.RMSNorm(sizes.width)
        self.queries = nn.Linear(sizes.width, sizes.heads * sizes.head, bias=False)
        self.keys = nn.Linear(sizes.width, sizes.key_heads * sizes.head, bias=False)
        self.values = nn.Linear(sizes.width, sizes.key_heads * sizes.head, bias=False)
        self.query_norm, self.key_norm = (
            nn.RMSNorm(sizes.head) if sizes.norms_heads else nn.Identity() for _ in range(2)
        )
        self.out = nn.Linear(sizes.heads * sizes.head, sizes.width, bias=False)
        self.inner_norm = nn.RMSNorm(sizes.width)
        self.gate = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def _given(self, make: Callable[[], Tensor]) -> AbstractContextManager[Tensor]:
        """Give a tensor to operators that keep it, if they keep all."""
        return nullcontext(make()) if self.keeps_all else _made_again(make)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        with self._given(lambda: self.norm(x)) as normed:
            queries, keys, values = (
                one(normed).unflatten(-1, (-1, self.head)).transpose(1, 2)
                for one in (self.queries, self.keys, self.values)
            )
        mixed = functional.scaled_dot_product_attention(
            _turned(self.query_norm(queries), cosine, sine),
            _turned(self.key_norm(keys), cosine, sine),
            values,
            is_causal=True,
            enable_gqa=True,
        )
        middle = x + self.out(mixed.transpose(1, 2).flatten(2))
        with self._given(lambda: self.inner_norm(middle)) as normed:
            gate, up = self.gate(normed), self.up(normed)
        if self.keeps_all:
            return middle + self.down(functional.silu(gate) * up)
        with _made_again(lambda: _Gated.apply(gate, up)) as inner:
            return middle + self.down(inner)


def _turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the halves of each head by the angles of its position."""
    first, second = heads.chunk(2, -1)
    return heads * cosine + torch.cat((-second, first), -1) * sine


class _Llama(nn.Module):  # type: ignore[misc]
    def __init__(self, sizes: Sizes, tokens: int, *, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(_Block(sizes, keeps_all=checkpointed) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width)
        self.logits = nn.Linear(sizes.width, sizes.words, bias=False)
        half = sizes.head // 2
        angles = torch.outer(torch.arange(tokens), sizes.base ** (-torch.arange(half) / half)).repeat(1, 2)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.checkpointed:
                x = checkpoint(layer, x, self.cosine, self.sine, use_reentrant=False)
            else:
                x = layer(x, self.cosine, self.sine)
        x, targets = self.norm(x).flatten(0, 1), targets.flatten()
        if not self.checkpointed:
            return _Loss.apply(x, self.logits.weight, targets) / len(targets)
        losses = [
            checkpoint(self._loss, part, wanted, use_reentrant=False)
            for part, wanted in zip(x.split(_CHUNK_TOKENS), targets.split(_CHUNK_TOKENS), strict=True)
        ]
        return torch.stack(losses).sum() / len(targets)

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.logits(x).float(), targets, reduction="sum")


def _steps(
    sizes: Sizes,
    batch_size: int,
    seq_len: int,
    step_tokens: int = STEP_TOKENS,
    *,
    checkpointed: bool = False,
    rank: int = 0,
) -> Iterator[None]:
    """Yield after each step: every round adds to the gradients, the last one updates the weights.

    With a ``rank`` all weights are frozen, and adapters of every linear layer of the blocks are trained.
    """
    rounds = step_tokens // (batch_size * seq_len)
    model = _Llama(sizes, seq_len, checkpointed=checkpointed)
    if rank:
        model.requires_grad_(False)
        for layer in model.layers:
            adapt(layer, [name for name, one in layer.named_children() if type(one) is nn.Linear], rank, rank)
    last = [False]

    def update(optimizer: torch.optim.Optimizer, _: Tensor) -> None:
        if last[0]:
            optimizer.step()
            optimizer.zero_grad()

    for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
        optimizer = torch.optim.AdamW([weight], fused=True)
        weight.register_post_accumulate_grad_hook(partial(update, optimizer))
    batches = [torch.zeros(2, batch_size, seq_len, dtype=torch.long) for _ in range(rounds)]
    while True:
        for number, (tokens, targets) in enumerate(batches, start=1):
            last[0] = number == rounds
            (model(tokens, targets) / rounds).backward()
        yield


def llama_3_8b(batch_size: int = 32, seq_len: int = 1024) -> Iterator[None]:
    """Return steps of Llama-3-8B on ``STEP_TOKENS`` tokens, ``batch_size`` sequences a round."""
    return _steps(LLAMA_3_8B, batch_size, seq_len)


def llama_3_8b_half(batch_size: int = 8, seq_len: int = 1024) -> Iterator[None]:
    """Return steps of Llama-3-8B on half as many tokens."""
    return _steps(LLAMA_3_8B, batch_size, seq_len, STEP_TOKENS // 2)


def llama_3_8b_half_lora(batch_size: int = 8, seq_len: int = 1024) -> Iterator[None]:
    """Return steps of frozen Llama-3-8B with adapters of rank 32, on half as many tokens."""
    return _steps(LLAMA_3_8B, batch_size, seq_len, STEP_TOKENS // 2, rank=32)


def llama_3_8b_checkpointed(batch_size: int = 13, seq_len: int = 2048) -> Iterator[None]:
    """Return steps of Llama-3-8B of one round, in which inputs of blocks are kept and blocks run again."""
    return _steps(LLAMA_3_8B, batch_size, seq_len, batch_size * seq_len, checkpointed=True)


def qwen3_32b_checkpointed(batch_size: int = 6, seq_len: int = 2048) -> Iterator[None]:
    """Return steps of Qwen3-32B of one round, in which inputs of blocks are kept and blocks run again."""
    return _steps(QWEN3_32B, batch_size, seq_len, batch_size * seq_len, checkpointed=True)
