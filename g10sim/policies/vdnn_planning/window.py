"""What is prefetched when: the search window of vDNN (Rhu et al., MICRO 2016, figure 10)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from g10sim.policies.vdnn_planning.layers import Layer, LayerKind


def prefetches(layers: Sequence[Layer], offloading: Collection[int], closing: LayerKind) -> dict[int, int]:
    """Return, for each layer whose backward pass prefetches, the layer that it prefetches X of.

    The layers before the current one are looked at in turn, down to the first: the first one that was
    offloaded and not yet prefetched is it; a layer of the ``closing`` kind (vDNN: convolution) ends the
    search. Each layer of the backward pass searches once, when its backward kernels start.
    """
    waiting = set(offloading)
    found: dict[int, int] = {}
    order = sorted((layer for layer in layers if layer.backward), key=lambda layer: layer.backward[0])
    for current in order:
        for candidate in reversed(layers[: current.index]):
            if candidate.index in waiting:
                waiting.remove(candidate.index)
                found[current.index] = candidate.index
                break
            if candidate.kind is closing:
                break
    return found
