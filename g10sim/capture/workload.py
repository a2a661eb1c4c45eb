"""A captured workload: a model, its inputs, its loss and its optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from g10sim.capture.devices import as_written, is_compiled
from g10sim.capture.moved import tensors_of
from g10sim.capture.options import StepOptions
from g10sim.capture.recording import Parts
from g10sim.errors import ConfigError

_OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_LEARNING_RATE = 1e-3
"""PyTorch's default; no value of it changes which kernels run."""


@dataclass(frozen=True, slots=True)
class Model:
    """A network, the inputs it is called with and, for ``loss(output, targets)``, what to compare with.

    Without ``loss`` it is the output's own ``loss``, or the sum of its tensors that have a gradient.
    ``after_last_use`` says that tensors are gone after their last use, also those that PyTorch keeps longer:
    for graphs of another system.
    """

    network: Any
    inputs: Any
    loss: Callable[[Any, Any], Any] | None = None
    targets: Any = None
    after_last_use: bool = False


def positional(inputs: Any) -> Sequence[Any]:
    """Return inputs that are no mapping as arguments."""
    return inputs if isinstance(inputs, (tuple, list)) else (inputs,)


def input_tensors(inputs: Any) -> dict[str, Any]:
    """Tensors among the inputs, by name or position."""
    named = inputs if isinstance(inputs, Mapping) else dict(enumerate(positional(inputs)))
    return {str(name): value for name, value in named.items() if isinstance(value, torch.Tensor)}


def untold_sizes(model: Model, options: StepOptions) -> dict[str, str]:
    """Return the numbers of parameters and tokens where the tensors of a trace do not tell them.

    They do where all parameters have the format of the step, and tokens are the ``input_ids``, in int64.
    """
    found = {}
    weights = list(model.network.parameters())
    if any(weight.dtype is not getattr(torch, options.dtype) for weight in weights):
        found["parameters"] = str(sum(weight.numel() for weight in weights))
    for name, tensor in input_tensors(model.inputs).items():
        if tensor.dtype in (torch.int64, torch.int32) and tensor.dim() > 1:
            if name != "input_ids" or tensor.dtype is torch.int32:
                found["tokens"] = str(tensor.numel())
            break
    return found


def _found_loss(output: Any, _: Any) -> Any:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is not None:
        return loss
    summed = [tensor.sum() for tensor in tensors_of(output) if tensor.requires_grad]
    if not summed:
        raise ConfigError(
            "the model's output holds no tensor with a gradient; allowed: a loss, or such tensors"
        )
    return sum(summed[1:], start=summed[0])


_IMAGE_DIMENSIONS = 4


def _channels_last(tensor: Any) -> Any:
    """Return an image (or a batch of them) with its channels last in memory, anything else as it is."""
    is_image = tensor.dim() == _IMAGE_DIMENSIONS
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor


def _lay_channels_last(network: Any) -> None:
    """Put parameters in place of those of four dimensions that have their channels last in memory."""
    laid: dict[Any, Any] = {}
    for module in network.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.dim() == _IMAGE_DIMENSIONS:
                if weight not in laid:
                    made = weight.detach().contiguous(memory_format=torch.channels_last)
                    laid[weight] = torch.nn.Parameter(made, weight.requires_grad)
                module._parameters[name] = laid[weight]


class Step:
    """One step: forward, loss, backward, optimizer, gradients dropped; in inference forward only."""

    def __init__(self, model: Model, options: StepOptions) -> None:
        self.model = model
        self.is_compiled = is_compiled(model.network)
        self.network = as_written(model.network)
        self.inputs = model.inputs
        self.optimizer: Any = None
        self._masters: dict[Any, Any] = {}
        self._options = options
        self._loss = model.loss or _found_loss
        self.network.train(not options.inference)
        if options.channels_last:
            _lay_channels_last(self.network)
            self.inputs = tree_map_only(torch.Tensor, _channels_last, self.inputs)
        if options.inference:
            return
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        if not trained:
            raise ConfigError(
                "the model has no parameter to train; allowed: at least one that requires a gradient"
            )
        if options.activation_checkpointing:
            _checkpoint_blocks(self.network)
        # Both forms work on lists of tensors, as on CUDA devices; the default of CPUs is a loop over tensors.
        settings: dict[str, Any] = {"lr": _LEARNING_RATE, options.optimizer_form or "fused": True}
        if options.momentum is not None:
            settings["momentum"] = options.momentum
        if options.master_weights:
            self._masters = {weight: weight.detach().to(torch.float32, copy=True) for weight in trained}
        updated = list(self._masters.values()) or trained
        self.optimizer = _OPTIMIZERS[options.trained_with](updated, **settings)

    def warm_up(self) -> None:
        """Run the step once, so that the optimizer's states exist."""
        self.run()

    def run(self) -> None:
        """Run the step once."""
        if self._options.inference:
            with torch.no_grad(), self._casting():
                self._output()
            return
        with self._casting():
            loss = self._loss(self._output(), self.model.targets)
        loss.backward()
        del loss
        for weight, master in self._masters.items():
            self._update(weight, master)
        if not self._masters:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def _update(self, weight: Any, master: Any) -> None:
        """Update a weight by its float32 master: one gradient at a time is cast, which frees the original.

        With Adam 2 + 2 + 4 + 4 + 4 bytes a parameter (Rajbhandari et al., ZeRO, arXiv 1910.02054, section
        3.1), and the cast gradient of one weight.
        """
        if weight.grad is None:
            return
        master.grad, weight.grad = weight.grad.float(), None
        self.optimizer.step()  # leaves out masters without a gradient
        master.grad = None
        with torch.no_grad():
            weight.copy_(master)

    def _casting(self) -> Any:
        if self._options.autocast is None:
            return nullcontext()
        return torch.autocast(torch.get_default_device().type, dtype=getattr(torch, self._options.autocast))

    def _output(self) -> Any:
        if isinstance(self.inputs, Mapping):
            return self.network(**self.inputs)
        return self.network(*positional(self.inputs))

    @property
    def batch_size(self) -> int:
        """Return the first dimension of the first input that has one, also in lists and mappings, else 1."""
        shapes = (tensor.shape for tensor in tensors_of(self.inputs) if tensor.dim())
        return next((int(shape[0]) for shape in shapes), 1)

    def said(self) -> dict[str, str]:
        """Return the options in force, and the sizes that the tensors of a trace do not tell."""
        given = {name: str(value) for name, value in self._options.given().items()}
        return given | untold_sizes(self.model, self._options)

    def parts(self) -> Parts:
        """Return what the step is made of."""
        # A training loop holds on to a step's inputs until the next step: their memory is never free.
        inputs = input_tensors(self.inputs) | {"targets": self.model.targets}
        held = {f"input.{name}": value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        optimizers = () if self.optimizer is None else (self.optimizer,)
        return Parts({"": self.network}, optimizers, held, self._masters)


def _checkpoint_blocks(network: Any) -> None:
    """Make each block keep its inputs only and run again in the backward pass.

    One rule for every model: a block is a member of a list or sequence of modules that has members
    itself, and at least one sibling of its class (an encoder layer, a bottleneck); the outermost such modules
    count. A model without them is checkpointed at the top: each child that has children.

    PyTorch's own form of it (``torch.utils.checkpoint``, non-reentrant; Chen et al., Training Deep Nets with
    Sublinear Memory Cost, arXiv 1604.06174). The state of the random generator is not kept: that takes a copy
    of 16 bytes from a CUDA device. Raises ConfigError for a model without blocks.
    """
    found = list(_repeated(network)) or [
        child
        for child in network.children()
        if next(child.children(), None) is not None and not isinstance(child, torch.nn.ModuleList)
    ]
    if not found:
        raise ConfigError(
            "activation checkpointing: found no block to run again in the model; allowed: a model with "
            "repeated blocks in lists or sequences of modules, or with children that have children"
        )
    for block in found:
        block.forward = _checkpointed(block.forward)


_ROWS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)


def _repeated(module: Any) -> Iterator[Any]:
    classes = Counter(map(type, module.children()))
    for child in module.children():
        is_composite = next(child.children(), None) is not None and not isinstance(child, _ROWS)
        if isinstance(module, _ROWS) and is_composite and classes[type(child)] > 1:
            yield child
        else:
            yield from _repeated(child)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run
