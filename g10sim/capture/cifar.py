"""Networks of the SmartPool and AutoSwap authors for images of CIFAR-10, 32 x 32 pixels.

From their public code (junzhezhang/incubator-singa, examples/cifar10/vgg3.py and resnet3.py). To capture:
``g10sim trace capture g10sim.capture.cifar:vgg11 --batch-size 100 --gpu titan-x``.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

_CLASSES = 10
_CHANNELS = (64, 128, 256, 512, 512)
_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
_STRIDES = (1, 1, 2, 2)

Network = tuple[nn.Module, Tensor]
"""A network and its images."""


def _convolution(
    channels: int, filters: int, *, size: int = 3, stride: int = 1, rectified: bool = True
) -> list[nn.Module]:
    """Return a convolution with its normalization and ReLU, none of them in place, as in SINGA."""
    layers = [nn.Conv2d(channels, filters, size, stride, size // 2), nn.BatchNorm2d(filters)]
    return [*layers, nn.ReLU()] if rectified else layers


class _Dropout(nn.Module):  # type: ignore[misc]
    """Dropout by a product with a mask of numbers, which stays for the backward pass, as in SINGA."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, features: Tensor) -> Tensor:
        kept = torch.empty_like(features).bernoulli_(1 - self.rate)
        return features * kept.div_(1 - self.rate)


def _images(batch_size: int) -> Tensor:
    return torch.zeros(batch_size, 3, 32, 32)


def _vgg(depth: int, batch_size: int = 100) -> Network:
    """VGG with a dropout after every convolution but the last before a pooling, and one hidden layer."""
    layers: list[nn.Module] = []
    channels = 3
    for group, (filters, convolutions) in enumerate(zip(_CHANNELS, _CONVOLUTIONS[depth], strict=True)):
        for number in range(convolutions):
            if number:
                layers.append(_Dropout(0.4 if group else 0.3))
            layers += _convolution(channels, filters)
            channels = filters
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.Flatten(), _Dropout(0.5), nn.Linear(channels, 512), nn.BatchNorm1d(512), nn.ReLU()]
    return nn.Sequential(*layers, _Dropout(0.5), nn.Linear(512, _CLASSES)), _images(batch_size)


class _Block(nn.Module):  # type: ignore[misc]
    """Two convolutions (three from 50 layers on), added to their input; no ReLU behind the sum.

    The input is projected where its shape changes; the authors' code leaves that out in the second group,
    where only channels do.
    """

    def __init__(self, channels: int, filters: int, stride: int, convolutions: int) -> None:
        super().__init__()
        layers = _convolution(channels, filters, stride=stride)
        for number in range(1, convolutions):
            layers += _convolution(filters, filters, rectified=number < convolutions - 1)
        self.inner = nn.Sequential(*layers)
        changes = channels != filters or stride > 1
        projection = _convolution(channels, filters, size=1, stride=stride, rectified=False)
        self.shortcut = nn.Sequential(*projection) if changes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images) + self.shortcut(images)


def _resnet(depth: int, batch_size: int = 100) -> Network:
    """ResNet whose first two groups keep 32 x 32 pixels; every convolution of a block is 3 x 3."""
    layers = _convolution(3, 64)
    channels = 64
    for filters, blocks, stride in zip(_CHANNELS, _BLOCKS[depth], _STRIDES, strict=False):
        for number in range(blocks):
            layers.append(_Block(channels, filters, 1 if number else stride, 2 if depth < 50 else 3))
            channels = filters
    layers += [nn.AvgPool2d(8, 8), nn.Flatten(), nn.Linear(channels, _CLASSES)]
    return nn.Sequential(*layers), _images(batch_size)


class _Bottleneck(nn.Module):  # type: ignore[misc]
    """A 3 x 3 convolution between two of 1 x 1, added to the input, with normalization and ReLU behind."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        wide = 4 * filters
        inner = [*_convolution(channels, filters, size=1), *_convolution(filters, filters, stride=stride)]
        self.inner = nn.Sequential(*inner, nn.Conv2d(filters, wide, 1))
        changes = channels != wide
        self.shortcut = nn.Conv2d(channels, wide, 1, stride) if changes else nn.Identity()
        self.end = nn.Sequential(nn.BatchNorm2d(wide), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        return self.end(self.inner(images) + self.shortcut(images))


def resnet50_bottleneck(batch_size: int = 100) -> Network:
    """Return ResNet-50 with bottlenecks, commented out in the authors' file, and its images."""
    layers = _convolution(3, 64)
    channels = 64
    for group, (filters, blocks) in enumerate(zip(_CHANNELS, _BLOCKS[50], strict=False)):
        for number in range(blocks):
            layers.append(_Bottleneck(channels, filters, 2 if group and not number else 1))
            channels = 4 * filters
    layers += [nn.AvgPool2d(4, 4), nn.Flatten(), nn.Linear(channels, _CLASSES)]
    return nn.Sequential(*layers), _images(batch_size)


vgg11, vgg13, vgg16, vgg19 = (partial(_vgg, depth) for depth in _CONVOLUTIONS)
resnet18, resnet34, resnet50, resnet101 = (partial(_resnet, depth) for depth in _BLOCKS)
