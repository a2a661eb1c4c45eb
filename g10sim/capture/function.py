"""Builds a model with a function of the user's own."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from g10sim.capture.refusal import refusal
from g10sim.capture.sizes import flag
from g10sim.errors import ConfigError, G10SimError
from g10sim.registry import choices_text, nearest

_SIZES = ("batch_size", "seq_len", "image_size")


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Let modules of the working directory be imported."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def function_builder(source: str, options: dict[str, Any]) -> Callable[[], tuple[Any, Any]]:
    """Return a function that calls ``module:function`` with those of the options that it has parameters for.

    Raises ConfigError for a source that is no such function, or a size (``batch_size``, ``seq_len``,
    ``image_size``) that it has no parameter for.
    """
    function = _function(source)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: found no signature ({error}); allowed: a Python function") from error
    for name in _SIZES:
        if options[name] is not None and name not in parameters:
            raise ConfigError(
                f"{flag(name)}: found {options[name]}, but {source} has no parameter '{name}'; "
                f"allowed: {choices_text(set(options) & set(parameters)) or 'no such option'}"
            )
    given = {name: value for name, value in options.items() if value is not None and name in parameters}

    def build() -> tuple[Any, Any]:
        made = function(**given)
        if not isinstance(made, tuple) or len(made) != 2 or not hasattr(made[0], "named_parameters"):
            raise ConfigError(
                f"{source}: found {type(made).__name__}; allowed: a pair (torch.nn.Module, inputs)"
            )
        return made

    return build


def _function(source: str) -> Callable[..., Any]:
    module_name, colon, function_name = source.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(
            f"found source '{source}'; allowed: hf:NAME, timm:NAME, torchvision:NAME or module:function"
        )
    with importing_from_here():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{source}: {error}; allowed: a module that can be imported from here"
            ) from error
        except G10SimError:
            raise
        except Exception as error:
            raise refusal(error, source, "importing the module") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        found = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(
            f"{source}: found no function '{function_name}'{nearest(function_name, found)}; "
            f"allowed: {choices_text(found) or 'a module with a function'}"
        )
    return function  # type: ignore[no-any-return]
