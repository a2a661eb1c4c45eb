"""Which layers offload their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from g10sim.policies.vdnn_planning.layers import Layer, LayerKind

Offload = Literal["none", "conv", "alternate", "all"]


def heavy_kind(layers: Sequence[Layer]) -> LayerKind:
    """Return the kind of layer that computes long enough to hide copies.

    vDNN knows convolutional networks only, where it is the convolution. In a network of more matrix products
    than convolutions (a transformer), those take their place.
    """
    kinds = [layer.kind for layer in layers]
    more_matrices = kinds.count(LayerKind.MATRIX) > kinds.count(LayerKind.CONVOLUTION)
    return LayerKind.MATRIX if more_matrices else LayerKind.CONVOLUTION


def managed_layers(layers: Sequence[Layer], heavy: LayerKind) -> tuple[Layer, ...]:
    """Return the layers of feature extraction: those before the classifier.

    The classifier of a convolutional network begins with the first matrix product after the last
    convolution, that of any other with the last matrix product. Matrix products of a convolutional network
    stay (vDNN section III-A), and so do activations, which work in place.
    """
    heavies = [layer.index for layer in layers if layer.kind is heavy]
    last = heavies[-1] if heavies else -1
    if heavy is LayerKind.CONVOLUTION:
        matrices = (layer.index for layer in layers if layer.kind is LayerKind.MATRIX and layer.index > last)
        end = next(matrices, len(layers))
        left_out = {LayerKind.MATRIX, LayerKind.ACTIVATION}
    else:
        end = last
        left_out = {LayerKind.ACTIVATION}
    working = [layer.index for layer in layers if layer.kind is not LayerKind.ACTIVATION]
    end = min(end, working[-1] if working else 0)
    return tuple(layer for layer in layers[: max(0, end)] if layer.kind not in left_out)


def offloading_layers(managed: Sequence[Layer], heavy: LayerKind, offload: Offload) -> tuple[Layer, ...]:
    """Return the managed layers that offload: all, the heavy ones, every second of them, or none."""
    if offload == "none":
        return ()
    chosen = managed if offload == "all" else [layer for layer in managed if layer.kind is heavy]
    if offload == "alternate":
        chosen = chosen[::2]
    return tuple(layer for layer in chosen if layer.inputs)
