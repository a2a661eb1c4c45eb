"""Follows a step: the module and the phase of every operator.

They are found from hooks of modules, autograd and optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple, Protocol
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from g10sim.trace.model import Phase

_NO_SEQUENCE = 2**64 - 1
"""Sequence number of the nodes that accumulate gradients (``AccumulateGrad``): all share it."""


class Layer(NamedTuple):
    """Path of a module in its model and the name of its class."""

    path: str
    kind: str


def named(networks: Mapping[str, Any], parts: str) -> Iterator[tuple[str, Any]]:
    """Yield the ``modules``, ``parameters`` or ``buffers`` of networks with their names.

    These begin with the name of their network.
    """
    for name, network in networks.items():
        for path, part in getattr(network, f"named_{parts}")():
            yield ".".join(filter(None, (name, path))), part


class LayerTracker:
    """Follows the modules of networks as they run.

    In the forward pass the innermost running module owns an operator. Autograd gives each differentiable call
    a sequence number, which its node carries in the backward pass: so an operator there belongs to the module
    that made the node.
    """

    def __init__(self, networks: Mapping[str, Any]) -> None:
        """Track networks; the paths of their modules begin with the names that they have here."""
        modules = list(named(networks, "modules"))
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


class Phased(Protocol):
    """A storage or a kernel: both belong to a phase."""

    phase: Any


@dataclass(slots=True)
class _Gap:
    """Work after a backward pass or an optimizer's step of which what follows says the phase.

    ``sequence`` is the number of nodes that autograd had made before it.
    """

    sequence: int
    updated: bool
    found: list[Phased] = field(default_factory=list)


class PhaseTracker:
    """Follows a step through its phases, however it is written.

    Operators inside ``backward`` or ``torch.autograd.grad``, and all that autograd's nodes run, are the
    backward pass; those inside ``step`` of a ``torch.optim`` optimizer are the optimizer. Between a backward
    pass and the next forward pass are clipping, unscaling, an update by hand and averages of weights: they
    are the optimizer, too, if one has run there or a weight has been written, or if the step ends there;
    otherwise they belong to the forward pass that follows. That begins where a module is called, or
    autograd notes an operation.
    """

    def __init__(self, before_update: Callable[[], None]) -> None:
        """Track a step; ``before_update`` is called when gradients are there and nothing has used them."""
        self.passes = 0
        self._before_update = before_update
        self._inside: list[Phase] = []
        self._nodes_before_update = 0
        self._gap: _Gap | None = None

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow autograd, modules and optimizers while the context is open."""
        with ExitStack() as stack:
            for name, accumulates in (("backward", True), ("grad", False)):
                function = self._backward_pass(getattr(torch.autograd, name), accumulates)
                stack.enter_context(mock.patch.object(torch.autograd, name, function))
            stack.enter_context(register_optimizer_step_pre_hook(self._begin_update))
            stack.enter_context(register_optimizer_step_post_hook(self._end_update))
            stack.enter_context(register_module_forward_pre_hook(self._call_module))
            yield

    def begin_step(self) -> None:
        """Begin the next step: what is undecided belongs to the optimizer of the one before."""
        self._gap = None

    def current(self) -> Phase:
        """Return the phase of the operator being dispatched now; call it for every operator."""
        if self._inside and self._inside[-1] is Phase.OPTIMIZER:
            # A closure, which an optimizer calls for the loss, may be differentiated; an update is not.
            is_closure = torch.is_grad_enabled() and _nodes_made() != self._nodes_before_update
            return Phase.FORWARD if is_closure else Phase.OPTIMIZER
        if self._inside or torch._C._current_autograd_node() is not None:
            return Phase.BACKWARD
        if self._gap is not None and self._gap.sequence != _nodes_made():
            self._begin_forward()
        return Phase.FORWARD if self._gap is None else Phase.OPTIMIZER

    def note(self, found: Phased, *, updates_weights: bool = False) -> None:
        """Note what has been made of an operator, for its phase may be known only later."""
        if self._gap is not None and not self._inside:
            self._gap.found.append(found)
            self._gap.updated |= updates_weights

    def _backward_pass(self, run: Callable[..., Any], accumulates: bool) -> Callable[..., Any]:
        @wraps(run)
        def tracked(*args: Any, **kwargs: Any) -> Any:
            if not self._inside:
                self._begin_forward()
            self._inside.append(Phase.BACKWARD)
            try:
                return run(*args, **kwargs)
            finally:
                self._inside.pop()
                if Phase.BACKWARD not in self._inside:
                    self.passes += accumulates
                    self._before_update()
                if not self._inside:
                    self._gap = _Gap(_nodes_made(), updated=False)

        return tracked

    def _begin_update(self, *_: Any) -> None:
        self._before_update()
        self._nodes_before_update = _nodes_made()
        self._inside.append(Phase.OPTIMIZER)

    def _end_update(self, *_: Any) -> None:
        self._inside.pop()
        if self._inside:
            return
        found = [] if self._gap is None else self._gap.found
        self._gap = _Gap(_nodes_made(), updated=True, found=found)

    def _call_module(self, *_: Any) -> None:
        if self._gap is not None and not self._inside and torch._C._current_autograd_node() is None:
            self._begin_forward()

    def _begin_forward(self) -> None:
        gap, self._gap = self._gap, None
        if gap is not None and not gap.updated:
            for found in gap.found:
                found.phase = Phase.FORWARD


def _nodes_made() -> int:
    return int(torch._C._autograd._get_sequence_nr())
