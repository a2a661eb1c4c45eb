"""The five models of the G10 paper, as its published traces have them: built for capture."""

from __future__ import annotations

from typing import Any

import torch

_BERT_TOKENS = 128
_CLASSES = 1000


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

    return timm.create_model("vit_small_patch32_224"), _images(batch_size, 224)


def inception_v3(batch_size: int) -> tuple[Any, Any]:
    """Inception-v3 without the auxiliary classifier."""
    from torchvision.models import inception_v3

    return inception_v3(aux_logits=False, init_weights=False), _images(batch_size, 299)


def resnet152(batch_size: int) -> tuple[Any, Any]:
    """ResNet-152."""
    from torchvision.models import resnet152

    return resnet152(), _images(batch_size, 224)


def senet154(batch_size: int) -> tuple[Any, Any]:
    """SENet-154 with whole convolutions: the published weights are not split into 64 groups."""
    from timm.models.senet import SEBottleneck, SENet

    network = SENet(
        SEBottleneck,
        layers=(3, 8, 36, 3),
        groups=1,
        reduction=16,
        drop_rate=0.2,
        downsample_kernel_size=3,
        downsample_padding=1,
        inplanes=128,
        input_3x3=True,
        num_classes=_CLASSES,
    )
    return network, _images(batch_size, 224)


def _images(batch_size: int, pixels: int) -> Any:
    return torch.randn(batch_size, 3, pixels, pixels)


MODELS = {
    "BERT_Base": bert_base,
    "Inceptionv3": inception_v3,
    "ResNet152": resnet152,
    "SENet154": senet154,
    "VIT": vit,
}
"""By the names that the published traces give them."""
