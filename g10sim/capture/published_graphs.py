"""The five models of the G10 paper with the operators of its published traces.

To capture: ``g10sim trace capture g10sim.capture.published_graphs:bert_base --batch-size 256 --optimizer sgd
--attention eager --gpu a100-40g-g10``.

The published graphs of the transformers write out layer normalization and GELU, and give biases, scales and
constants the shape of what they are applied to; the one of ResNet-152 adds a shortcut after ReLU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from g10sim.capture.workload import Model

_LAYERS = 12
_BERT_TOKENS, _BERT_WIDTH, _BERT_HEADS, _BERT_WORDS = 128, 768, 12, 30522
_VIT_TOKENS, _VIT_WIDTH, _VIT_HEADS, _VIT_PATCH = 50, 384, 6, 32
_CLASSES = 1000


class _Sum(torch.autograd.Function):  # type: ignore[misc]
    """Sum over the last dimension whose gradient is handed the input, as the published one is."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sum(-1, keepdim=True)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.expand(ctx.saved_tensors[0].shape).clone()


class _Relu(torch.autograd.Function):  # type: ignore[misc]
    """ReLU whose gradient is handed the input, as the published one is, and not the result."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.ops.aten.threshold_backward(gradient, ctx.saved_tensors[0], 0)


class _Activation(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return _Relu.apply(x)


def _full(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


class _Norm(nn.Module):  # type: ignore[misc]
    """Layer normalization, written out, with a scale and a shift for every element of the batch."""

    def __init__(self, shape: tuple[int, ...], two: nn.Parameter) -> None:
        super().__init__()
        self.two, self.scale, self.shift = two, _full(*shape), _full(*shape)

    def forward(self, x: Any) -> Any:
        width = x.shape[-1]
        centred = x - (_Sum.apply(x) / width).expand(x.shape).clone()
        variance = _Sum.apply(torch.pow(centred, self.two)) / width
        deviation = (variance + 1e-6).sqrt().expand(x.shape).clone()
        return centred / deviation * self.scale + self.shift


class _Gelu(nn.Module):  # type: ignore[misc]
    """GELU, written out, with its constants for every element of the batch."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.divisor, self.summand, self.factor = _full(*shape), _full(*shape), _full(*shape)

    def forward(self, x: Any) -> Any:
        return (torch.erf(x / self.divisor) + self.summand) * x * self.factor


class _Biased(nn.Module):  # type: ignore[misc]
    """A linear layer with a bias for every element of the batch."""

    def __init__(self, batch: int, tokens: int, inside: int, outside: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inside, outside, bias=False)
        self.bias = _full(batch, tokens, outside)

    def forward(self, x: Any) -> Any:
        return self.linear(x) + self.bias


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, batch: int, tokens: int, width: int, heads: int, scale: nn.Parameter) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.inward = _Biased(batch, tokens, width, 3 * width)
        self.outward = _Biased(batch, tokens, width, width)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        split = self.inward(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind()
        shares = ((query @ key.transpose(-1, -2)) * self.scale).softmax(-1)
        return self.outward((shares @ value).transpose(1, 2).reshape(batch, tokens, width))


class _Layer(nn.Module):  # type: ignore[misc]
    """An encoder layer; ``norm_first`` as in ViT, else as in BERT."""

    def __init__(self, parts: dict[str, nn.Module], norm_first: bool) -> None:
        super().__init__()
        self.parts, self.norm_first = nn.ModuleDict(parts), norm_first

    def forward(self, x: Any) -> Any:
        parts = self.parts
        if self.norm_first:
            x = parts["attention"](parts["first"](x)) + x
            return parts["inner"](parts["second"](x)) + x
        x = parts["first"](x + parts["attention"](x))
        return parts["second"](x + parts["inner"](x))


def _encoder(
    shape: tuple[int, int, int], heads: int, two: nn.Parameter, activation: nn.Module, *, norm_first: bool
) -> nn.Sequential:
    batch, tokens, width = shape
    scale = _full(batch, heads, tokens, tokens)
    layers = []
    for _ in range(_LAYERS):
        grow, shrink = _Biased(batch, tokens, width, 4 * width), _Biased(batch, tokens, 4 * width, width)
        parts = {
            "attention": _Attention(batch, tokens, width, heads, scale),
            "inner": nn.Sequential(grow, activation, shrink),
            "first": _Norm(shape, two),
            "second": _Norm(shape, two),
        }
        layers.append(_Layer(parts, norm_first))
    return nn.Sequential(*layers)


class _Bert(nn.Module):  # type: ignore[misc]
    def __init__(self, batch: int) -> None:
        super().__init__()
        shape = (batch, _BERT_TOKENS, _BERT_WIDTH)
        two = _full(*shape)
        self.words, self.kinds = nn.Embedding(_BERT_WORDS, _BERT_WIDTH), nn.Embedding(2, _BERT_WIDTH)
        self.places, self.norm = _full(*shape), _Norm(shape, two)
        self.encoder = _encoder(shape, _BERT_HEADS, two, _Activation(), norm_first=False)
        self.pooler = nn.Linear(_BERT_WIDTH, _BERT_WIDTH)

    def forward(self, words: Any, kinds: Any) -> Any:
        x = self.norm(self.words(words) + self.places + self.kinds(kinds))
        return torch.tanh(self.pooler(self.encoder(x)[:, 0]))


class _Vit(nn.Module):  # type: ignore[misc]
    def __init__(self, batch: int) -> None:
        super().__init__()
        shape = (batch, _VIT_TOKENS, _VIT_WIDTH)
        two = _full(*shape)
        self.patches = nn.Conv2d(3, _VIT_WIDTH, _VIT_PATCH, _VIT_PATCH)
        self.places, self.token = _full(*shape), nn.Parameter(torch.zeros(1, 1, _VIT_WIDTH))
        gelu = _Gelu((batch, _VIT_TOKENS, 4 * _VIT_WIDTH))
        self.encoder = _encoder(shape, _VIT_HEADS, two, gelu, norm_first=True)
        self.norm, self.head = _Norm(shape, two), nn.Linear(_VIT_WIDTH, _CLASSES)

    def forward(self, images: Any) -> Any:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), 1, -1), patches], 1) + self.places
        return self.head(self.norm(self.encoder(x))[:, 0])


def bert_base(batch_size: int) -> Model:
    """BERT-base, written out."""
    tokens = torch.zeros(batch_size, _BERT_TOKENS, dtype=torch.int64)
    return Model(_Bert(batch_size), (tokens, tokens.clone()), after_last_use=True)


def vit(batch_size: int) -> Model:
    """ViT-S/32, written out."""
    return Model(_Vit(batch_size), images(batch_size, 224), after_last_use=True)


def resnet152(batch_size: int) -> tuple[Any, Any]:
    """ResNet-152 with ReLU before the shortcut is added."""
    from torchvision.models.resnet import Bottleneck, ResNet

    class Block(Bottleneck):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            out = self.relu(self.bn1(self.conv1(x)))
            out = self.relu(self.bn2(self.conv2(out)))
            out = self.relu(self.bn3(self.conv3(out)))
            return out + (x if self.downsample is None else self.downsample(x))

    return ResNet(Block, [3, 8, 36, 3]), images(batch_size, 224)


def inception_v3(batch_size: int) -> tuple[Any, Any]:
    """Inception-v3 without the auxiliary classifier."""
    from torchvision.models import inception_v3

    return inception_v3(aux_logits=False, init_weights=False), images(batch_size, 299)


def senet154(batch_size: int) -> tuple[Any, Any]:
    """SENet-154 with whole convolutions: the published weights are not split into 64 groups."""
    from timm.models.senet import SEBottleneck, SENet

    blocks = {"layers": (3, 8, 36, 3), "groups": 1, "reduction": 16, "drop_rate": 0.2}
    stem = {"inplanes": 128, "input_3x3": True}
    shortcuts = {"downsample_kernel_size": 3, "downsample_padding": 1}
    network = SENet(SEBottleneck, num_classes=_CLASSES, **blocks, **stem, **shortcuts)
    return network, images(batch_size, 224)


def images(batch_size: int, pixels: int) -> Any:
    """Make a batch of images."""
    return torch.randn(batch_size, 3, pixels, pixels)


GRAPHS = {"BERT_Base": bert_base, "ResNet152": resnet152, "VIT": vit}
"""By the names that the published traces give them; the others are what PyTorch's libraries have."""
