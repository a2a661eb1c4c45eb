"""Imports the libraries that only capture needs."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from g10sim.errors import ConfigError

_INSTALL = "pip install 'g10sim[capture]'"


def require(module: str) -> None:
    """Import a library that only capture needs. Raises ConfigError saying which extra to install."""
    try:
        __import__(module)
    except ImportError as error:
        raise ConfigError(
            f"capture needs {module}, which is not installed ({error}); allowed: {_INSTALL}"
        ) from error


def make_torchvision_importable() -> None:
    """Let a torchvision be imported whose compiled operators do not fit the installed PyTorch.

    A torchvision for CUDA beside a PyTorch for CPUs cannot load them and stops at the declaration of ``nms``,
    which detection needs and classifiers do not. Declaring it is enough.
    """
    if find_spec("torchvision") is None:
        return
    try:
        import torchvision as torchvision
    except RuntimeError:
        _declared_operators()


@cache
def _declared_operators() -> Any:
    """Declare the operators; the result is kept, for the declarations end with it."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
