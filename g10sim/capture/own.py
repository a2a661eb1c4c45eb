"""A step of the user's own: a callable without arguments, or a generator that yields after every step."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from g10sim.capture.devices import is_compiled, known_values
from g10sim.capture.options import TRAINING_ONLY, StepOptions, flag
from g10sim.capture.recording import Parts
from g10sim.capture.refusal import refuse_engines
from g10sim.errors import ConfigError


def is_step(made: Any) -> bool:
    """Return True if an object is a step, and no model with inputs."""
    return inspect.isgenerator(made) or (callable(made) and not isinstance(made, torch.nn.Module))


@dataclass(frozen=True, slots=True)
class Steps:
    """A step, or a generator of steps, and the samples in each."""

    made: Any
    batch_size: int = 1


class OwnStep:
    """Runs a user's step and finds the networks, optimizers and inputs that it uses.

    They are what the variables of the step refer to (of a generator its local ones, of a function those of
    the functions around it, its defaults and globals, of an object its attributes), and networks and
    optimizers that run in it all the same.
    """

    def __init__(self, steps: Steps, options: StepOptions) -> None:
        """Prepare a step. Raises ConfigError for options that say what the step itself says."""
        made = steps.made
        for name in _ITS_OWN:
            if found := getattr(options, name):
                allowed = f"only what {', '.join(map(flag, _TAKEN))} say"
                raise ConfigError.at(flag(name), f"{found}, but {place(made)} is a step of its own", allowed)
        self.batch_size = steps.batch_size
        self._made = made
        self._options = options
        self._done = 0
        self._networks: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}
        self._shapes: list[str] = []

    def run(self) -> None:
        """Run the step once, and note the shape of the first tensor that its first network is called with.

        Raises ConfigError where a generator has ended.
        """
        done = len(self._shapes)

        def call(_: Any, given: tuple[Any, ...]) -> None:
            tensor = next((one for one in given if isinstance(one, torch.Tensor)), None)
            if tensor is not None and len(self._shapes) == done:
                self._shapes.append(" x ".join(map(str, tensor.shape)))

        with register_module_forward_pre_hook(call):
            if not inspect.isgenerator(self._made):
                self._made()
            elif next(self._made, _ENDED) is _ENDED:
                found = f"a generator that ended after {self._done} steps"
                each = f"after each of {self._options.steps + 1} steps (the first is not recorded)"
                raise ConfigError.at(place(self._made), found, f"one that yields {each}")
        self._done += 1

    @property
    def is_compiled(self) -> bool:
        """Return True if the step uses what ``torch.compile`` made."""
        return any(map(is_compiled, (*_variables(self._made).values(), *self._networks.values())))

    def warm_up(self) -> None:
        """Run the step once and note the networks and optimizers that it runs.

        A generator builds its networks first, so that values which follow from numbers alone are known.
        """

        def call(network: Any, *_: Any) -> None:
            self._networks[id(network)] = network

        def update(optimizer: Any, *_: Any) -> None:
            self._optimizers[id(optimizer)] = optimizer

        builds = inspect.isgenerator(self._made)
        if not builds:
            refuse_engines(place(self._made), _variables(self._made).values())
        with (
            register_module_forward_pre_hook(call),
            register_optimizer_step_pre_hook(update),
            known_values() if builds else nullcontext(),
        ):
            self.run()

    def said(self) -> dict[str, str]:
        """Return the options in force, and the number of parameters."""
        given = self._options.given()
        found = {name: str(given[name]) for name in _TAKEN if name in given}
        parts = self.parts()
        groups = (group for optimizer in parts.optimizers for group in optimizer.param_groups)
        updated = [weight for group in groups for weight in group["params"]]
        counted = {id(weight): weight for weight in updated or [weight for _, weight in parts.weights()]}
        first, *recorded = self._shapes or [""]
        if recorded:
            found["inputs"] = ", ".join(dict.fromkeys(recorded))
        if set(recorded) - {first}:
            found["inputs_of_the_first_step"] = first
        return found | {"parameters": str(sum(weight.numel() for weight in counted.values()))}

    def parts(self) -> Parts:
        """Return what the step is made of, once it has run."""
        variables = _variables(self._made)
        refuse_engines(place(self._made), [*variables.values(), *self._networks.values()])
        found = dict(_named(variables))
        optimizers = (value for value in found.values() if isinstance(value, torch.optim.Optimizer))
        updating = {id(value): value for value in (*optimizers, *self._optimizers.values())}
        networks = self._all_networks(found)
        owned = {id(part) for value in networks.values() for part in (*value.parameters(), *value.buffers())}
        tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
        inputs = {name: value for name, value in tensors.items() if id(value) not in owned}
        return Parts(networks, tuple(updating.values()), inputs)

    def _all_networks(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return networks by name, none of them part of another; the only one with weights needs no name."""
        named = {name: value for name, value in found.items() if isinstance(value, torch.nn.Module)}
        known = {id(value) for value in named.values()}
        named |= {
            f"{type(value).__name__}{number or ''}": value
            for number, value in enumerate(self._networks.values())
            if id(value) not in known
        }
        inside = {id(part) for value in named.values() for part in value.modules() if part is not value}
        outer = {name: value for name, value in named.items() if id(value) not in inside}
        unique = {id(value): name for name, value in reversed(outer.items())}
        outer = {name: value for name, value in outer.items() if unique[id(value)] == name}
        weighty = [name for name, value in outer.items() if next(value.parameters(), None) is not None]
        return {"" if [name] == weighty else name: value for name, value in outer.items()}


_ENDED = object()
_TAKEN = ("dtype", "attention", "steps", "workspace", "tf32", "cuda_graph")
_ITS_OWN = ("autocast", *TRAINING_ONLY, "channels_last", "inference")


def place(made: Any) -> str:
    """Return the file and the line where a step is written."""
    code = made.gi_code if inspect.isgenerator(made) else getattr(_function(made), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else type(made).__name__


def _function(made: Any) -> Any:
    if isinstance(made, partial):
        return _function(made.func)
    if isinstance(made, (FunctionType, MethodType)):
        return made
    return type(made).__call__


def _variables(made: Any) -> dict[str, Any]:
    """Return the variables that a step can use, by name."""
    if inspect.isgenerator(made):
        frame: FrameType | None = made.gi_frame
        if frame is None:
            return {}
        used = {name: frame.f_globals[name] for name in made.gi_code.co_names if name in frame.f_globals}
        found = used | frame.f_locals
        if sys.version_info < (3, 13):
            frame.f_locals.clear()  # a copy, which would keep what the step drops
        return found
    if isinstance(made, partial):
        arguments = {f"argument{number}": value for number, value in enumerate(made.args)}
        return _variables(made.func) | arguments | made.keywords
    if isinstance(made, MethodType):
        return _variables(made.__func__) | vars(made.__self__)
    if isinstance(made, FunctionType):
        return _of_function(made)
    return dict(getattr(made, "__dict__", {})) | _variables(type(made).__call__)


def _of_function(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.getclosurevars(function)
    inner = [value for value in found.nonlocals.values() if isinstance(value, FunctionType)]
    nested = [item for value in inner if value is not function for item in _of_function(value).items()]
    signature = inspect.signature(function).parameters.items()
    defaults = {name: value.default for name, value in signature if value.default is not value.empty}
    return {**found.globals, **dict(nested), **found.nonlocals, **defaults}


def _named(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield networks, optimizers and tensors among variables, and those in lists and mappings of them."""
    for name, value in variables.items():
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from _named({f"{name}.{number}": part for number, part in enumerate(value)})
        elif isinstance(value, dict):
            yield from _named({f"{name}.{key}": part for key, part in value.items()})
