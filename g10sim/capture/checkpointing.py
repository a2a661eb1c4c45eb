"""Activation checkpointing: which parts of a model are run again in the backward pass.

One rule for every model: a block is a member of a list or sequence of modules that has members of its
own and at least one sibling of its class (an encoder layer, a bottleneck); the outermost such modules count.
A model without them is checkpointed at the top: each of its children that has children of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from g10sim.errors import ConfigError


def checkpoint_blocks(network: Any) -> list[str]:
    """Make each block keep its inputs only and run again in the backward pass; return the blocks' paths.

    PyTorch's own form of it (``torch.utils.checkpoint``, non-reentrant; Chen et al., Training Deep Nets with
    Sublinear Memory Cost, arXiv 1604.06174). The state of the random generator is not kept: that takes a copy
    of 16 bytes from a CUDA device. Raises ConfigError for a model without blocks.
    """
    found = dict(_repeated(network, "")) or dict(_composite_children(network))
    if not found:
        raise ConfigError(
            "activation checkpointing: found no block to run again in the model; allowed: a model with "
            "repeated blocks in lists or sequences of modules, or with children that have children"
        )
    for block in found.values():
        block.forward = _checkpointed(block.forward)
    return list(found)


def _repeated(module: Any, path: str) -> Iterator[tuple[str, Any]]:
    is_row = isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict))
    classes = Counter(type(child) for child in module.children())
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        is_composite = next(child.children(), None) is not None
        is_container = isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict))
        if is_row and is_composite and not is_container and classes[type(child)] > 1:
            yield below, child
        else:
            yield from _repeated(child, below)


def _composite_children(network: Any) -> Iterator[tuple[str, Any]]:
    for name, child in network.named_children():
        if next(child.children(), None) is not None and not isinstance(child, torch.nn.ModuleList):
            yield name, child


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run
