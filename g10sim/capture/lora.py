"""A decoder with low-rank adapters (LoRA): its weights are frozen, pairs of small matrices are trained.

To capture: ``g10sim trace capture g10sim.capture.lora:llama_1b --batch-size 1 --seq-len 512 --dtype bfloat16
--optimizer adamw --attention fused --activation-checkpointing --gpu a100-40g``.

For the queries and values of every layer a product W x becomes W x + (16 / 8) B A x, with A of 8 rows and B
of 8 columns (Hu et al., LoRA, ICLR 2022). Rank, scale and layers are those that github.com/tloen/alpaca-lora
trains (finetune.py); there is no dropout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from g10sim.capture.hugging_face import build_hugging_face
from g10sim.capture.options import Sizes, StepOptions

__all__ = ["adapt", "llama_1b"]


class _Adapted(nn.Module):  # type: ignore[misc]
    """A linear layer that stays as it is, and what its adapter adds."""

    def __init__(self, layer: Any, rank: int, alpha: int) -> None:
        super().__init__()
        kind = {"bias": False, "device": layer.weight.device, "dtype": layer.weight.dtype}
        self.layer = layer
        self.scale = alpha / rank
        self.down = nn.Linear(layer.in_features, rank, **kind)
        self.up = nn.Linear(rank, layer.out_features, **kind)

    def forward(self, x: Any) -> Any:
        found = self.layer(x)
        added = self.up(self.down(x))
        return found + (added if self.scale == 1 else added * self.scale)


def adapt(module: Any, names: Iterable[str], rank: int, alpha: int) -> None:
    """Put adapters next to linear layers of a module, by name."""
    for name in names:
        setattr(module, name, _Adapted(getattr(module, name), rank, alpha))


def llama_1b(batch_size: int, seq_len: int, dtype: Any) -> tuple[Any, Any]:
    """Llama 3.2 with 1.2 billion frozen parameters, and adapters of 0.85 million."""
    options, sizes = StepOptions(dtype=dtype), Sizes(batch_size=batch_size, seq_len=seq_len)
    network, inputs = build_hugging_face("Llama-3.2-1B", sizes, options)()
    network.requires_grad_(False)
    for layer in network.model.layers:
        adapt(layer.self_attn, ("q_proj", "v_proj"), rank=8, alpha=16)
    return network, inputs
