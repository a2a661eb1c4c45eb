"""Networks of the vDNN paper that no library has: OverFeat, GoogLeNet as published, very deep VGG.

To capture: ``g10sim trace capture g10sim.capture.convnets:overfeat --batch-size 128 --gpu titan-x``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

_CLASSES = 1000
_VGG_GROUPS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and convolutions between poolings: configuration E of Simonyan and Zisserman, arXiv 1409.1556."""

_INCEPTIONS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Inception modules 3, 4 and 5 of GoogLeNet (Szegedy et al., arXiv 1409.4842, table 1, #1x1 to pool proj).
A pooling is between the groups."""


def _convolution(channels: int, filters: int, size: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, filters, size, stride, padding), nn.ReLU(inplace=True))


def _classifier(features: int, *widths: int) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Flatten()]
    for width in widths:
        layers += [nn.Linear(features, width), nn.ReLU(inplace=True)]
        features = width
    return [*layers, nn.Linear(features, _CLASSES)]


def _images(batch_size: int, pixels: int) -> Tensor:
    return torch.zeros(batch_size, 3, pixels, pixels)


def overfeat(batch_size: int = 128) -> tuple[nn.Module, Tensor]:
    """Return the accurate model of OverFeat (Sermanet et al., arXiv 1312.6229, table 3) and its images."""
    network = nn.Sequential(
        _convolution(3, 96, 7, stride=2),
        nn.MaxPool2d(3, 3),
        _convolution(96, 256, 7),
        nn.MaxPool2d(2, 2),
        _convolution(256, 512, 3, padding=1),
        _convolution(512, 512, 3, padding=1),
        _convolution(512, 1024, 3, padding=1),
        _convolution(1024, 1024, 3, padding=1),
        nn.MaxPool2d(3, 3),
        *_classifier(1024 * 5 * 5, 4096, 4096),
    )
    return network, _images(batch_size, 221)


class _Inception(nn.Module):  # type: ignore[misc]
    """Four branches side by side, joined by channel.

    The one with pooling runs first: the last branch to read the input is a convolution, as the bytes that the
    vDNN paper reports for its mode conv show.
    """

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        plain, reduce3, three, reduce5, five, projected = widths
        self.branches = nn.ModuleList(
            [
                nn.Sequential(nn.MaxPool2d(3, 1, 1), _convolution(channels, projected, 1)),
                _convolution(channels, plain, 1),
                nn.Sequential(_convolution(channels, reduce3, 1), _convolution(reduce3, three, 3, padding=1)),
                nn.Sequential(_convolution(channels, reduce5, 1), _convolution(reduce5, five, 5, padding=2)),
            ]
        )

    def forward(self, images: Tensor) -> Tensor:
        projected, *others = (branch(images) for branch in self.branches)
        return torch.cat([*others, projected], 1)


def googlenet(batch_size: int = 128) -> tuple[nn.Module, Tensor]:
    """Return GoogLeNet (arXiv 1409.4842, table 1) and its images.

    It has no normalization (torchvision's has, in batches) and no auxiliary classifiers.
    """
    layers: list[nn.Module] = [
        _convolution(3, 64, 7, stride=2, padding=3),
        nn.MaxPool2d(3, 2, 1),
        _convolution(64, 64, 1),
        _convolution(64, 192, 3, padding=1),
    ]
    channels = 192
    for group in _INCEPTIONS:
        layers.append(nn.MaxPool2d(3, 2, 1))
        for widths in group:
            layers.append(_Inception(channels, widths))
            plain, _, three, _, five, projected = widths
            channels = plain + three + five + projected
    layers += [nn.AvgPool2d(7), *_classifier(channels)]
    return nn.Sequential(*layers), _images(batch_size, 224)


def _deep_vgg(more: int, batch_size: int = 32) -> tuple[nn.Module, Tensor]:
    """VGG with that many more convolutions in each of its five groups (Rhu et al., MICRO 2016, figure 15)."""
    layers: list[nn.Module] = []
    channels = 3
    for filters, convolutions in _VGG_GROUPS:
        for _ in range(convolutions + more):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(inplace=True)]
            channels = filters
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers, *_classifier(512 * 7 * 7, 4096, 4096)), _images(batch_size, 224)


vgg116, vgg216, vgg316, vgg416 = (partial(_deep_vgg, more) for more in (20, 40, 60, 80))
"""Networks with that many convolutions, and their images."""
