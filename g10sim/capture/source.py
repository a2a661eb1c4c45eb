"""Captures what a command line names: a well-known model, or a function of the user's own."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from g10sim.capture.gpu import load_gpu
from g10sim.capture.models import hugging_face_builder
from g10sim.capture.refusal import refusal, require
from g10sim.errors import ConfigError, G10SimError
from g10sim.registry import choices_text, nearest
from g10sim.trace.model import Trace

_HUGGING_FACE = "hf:"
_DEFAULT_BATCH_SIZE = 8


def capture_source(
    source: str,
    *,
    gpu: str,
    batch_size: int | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    dtype: str = "float32",
    optimizer: str = "adamw",
    attention: str = "fused",
) -> Trace:
    """Capture a training step of ``hf:NAME`` or ``module:function``.

    The function returns a model and its inputs; of ``batch_size``, ``seq_len``, ``image_size`` and ``dtype``
    it is given those that it has parameters for. ``batch_size`` defaults to 8 for ``hf:`` and to the
    function's own otherwise. Raises ConfigError for a wrong option and TraceError for a step that cannot be
    captured.
    """
    timing = load_gpu(gpu)
    require("torch")
    from g10sim.capture.step import capture_step

    sizes = {"batch_size": batch_size, "seq_len": seq_len, "image_size": image_size}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ConfigError(f"{_flag(name)}: found {value}; allowed: at least 1")
    training = {"dtype": dtype, "optimizer": optimizer, "attention": attention}
    origin = {"command": _command(source, gpu, {**sizes, **training})}
    if source.startswith(_HUGGING_FACE):
        batch_size = _DEFAULT_BATCH_SIZE if batch_size is None else batch_size
        build = hugging_face_builder(
            source.removeprefix(_HUGGING_FACE),
            batch_size=batch_size,
            seq_len=seq_len,
            image_size=image_size,
            attention=attention,
        )
        origin["transformers"] = version("transformers")
    else:
        build = _users_builder(source, {**sizes, "dtype": dtype})
    model = source.removeprefix(_HUGGING_FACE)
    with _importing_from_here():
        return capture_step(build, gpu=timing, model=model, batch_size=batch_size, origin=origin, **training)


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _command(source: str, gpu: str, options: dict[str, Any]) -> str:
    given = [f"{_flag(name)} {value}" for name, value in options.items() if value is not None]
    return " ".join(["g10sim trace capture", source, *given, "--gpu", gpu])


@contextmanager
def _importing_from_here() -> Iterator[None]:
    """Let modules of the working directory be imported."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _users_builder(source: str, options: dict[str, Any]) -> Callable[[], tuple[Any, Any]]:
    function = _users_function(source)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: found no signature ({error}); allowed: a Python function") from error
    for name in ("batch_size", "seq_len", "image_size"):
        if options[name] is not None and name not in parameters:
            raise ConfigError(
                f"{_flag(name)}: found {options[name]}, but {source} has no parameter '{name}'; "
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


def _users_function(source: str) -> Callable[..., Any]:
    module_name, colon, function_name = source.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(f"found source '{source}'; allowed: hf:NAME or module:function")
    with _importing_from_here():
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
