"""The five models of the G10 paper, as PyTorch's libraries have them: built for capture."""

from __future__ import annotations

from typing import Any

import torch

from g10sim.capture.published_graphs import images, inception_v3, senet154

_BERT_TOKENS = 128


class _Encoder(torch.nn.Module):  # type: ignore[misc]
    """BERT up to its pooler; the published model has no output over the vocabulary."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Any) -> Any:
        return self.bert(input_ids=input_ids).pooler_output


def bert_base(batch_size: int) -> tuple[Any, Any]:
    """BERT-base without dropout and with ReLU, as published."""
    from transformers import BertConfig, BertModel

    bert = BertModel(BertConfig(hidden_act="relu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    return _Encoder(bert), {"input_ids": torch.zeros(batch_size, _BERT_TOKENS, dtype=torch.int64)}


def vit(batch_size: int) -> tuple[Any, Any]:
    """ViT-S/32: the published tensors have width 384 and 50 tokens of 32 x 32 pixels."""
    import timm

    return timm.create_model("vit_small_patch32_224"), images(batch_size, 224)


def resnet152(batch_size: int) -> tuple[Any, Any]:
    """ResNet-152."""
    from torchvision.models import resnet152

    return resnet152(), images(batch_size, 224)


MODELS = {
    "BERT_Base": bert_base,
    "Inceptionv3": inception_v3,
    "ResNet152": resnet152,
    "SENet154": senet154,
    "VIT": vit,
}
"""By the names that the published traces give them."""
