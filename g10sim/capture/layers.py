"""Follows the modules of networks as a step runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

_NO_SEQUENCE = 2**64 - 1
"""Sequence number of the nodes that accumulate gradients (``AccumulateGrad``): all share it."""


class Layer(NamedTuple):
    """Path of a module in its model and the name of its class."""

    path: str
    kind: str


def below(prefix: str, path: str) -> str:
    """Return the path of a module, or the name of a tensor, in a network, which has a separate name."""
    return f"{prefix}.{path}" if prefix and path else prefix or path


class LayerTracker:
    """Follows the modules of networks as they run.

    In the forward pass the innermost running module owns an operator. Autograd gives each differentiable call
    a sequence number, which its node carries in the backward pass: so an operator there belongs to the module
    that made the node.
    """

    def __init__(self, networks: Mapping[str, Any]) -> None:
        """Track networks; the paths of their modules begin with the names that they have here."""
        modules = [
            (below(name, path), module)
            for name, network in networks.items()
            for path, module in network.named_modules()
        ]
        self._modules = [module for _, module in modules]
        self._layers = {id(module): Layer(path, type(module).__name__) for path, module in modules}
        alone = [type(network).__name__ for network in networks.values()] if len(networks) == 1 else [""]
        self._root = Layer("", alone[0])
        self._owners = {
            id(parameter): self._layers[id(module)]
            for module in self._modules
            for parameter in module.parameters(recurse=False)
        }
        self._running: list[Layer] = []
        self._by_sequence: dict[int, Layer] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the modules while the context is open."""
        with ExitStack() as stack:
            stack.callback(self._running.clear)
            for module in self._modules:
                stack.enter_context(module.register_forward_pre_hook(self._enter, prepend=True))
                stack.enter_context(module.register_forward_hook(self._leave, always_call=True))
            yield

    def current(self) -> Layer:
        """Return the module of the operator being dispatched now; call it for every operator."""
        node = torch._C._current_autograd_node()
        if node is None or self._running:
            layer = self._running[-1] if self._running else self._root
            self._by_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, layer)
            return layer
        sequence = node._sequence_nr()
        if sequence == _NO_SEQUENCE:
            return self._owners.get(id(getattr(node, "variable", None)), self._root)
        return self._by_sequence.get(sequence, self._root)

    def _enter(self, module: Any, _: Any) -> None:
        self._running.append(self._layers.get(id(module), self._root))

    def _leave(self, *_: Any) -> None:
        if self._running:
            self._running.pop()
