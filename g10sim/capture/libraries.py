"""Models of the libraries that only capture needs, built with random weights and nothing downloaded."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from g10sim.capture.options import Sizes, StepOptions
from g10sim.errors import ConfigError
from g10sim.registry import nearest

_INSTALL = "pip install 'g10sim[capture]'"
_DEFAULT_PIXELS = 224
_AUXILIARY_SHARE = 0.4
"""Weight of the loss of an auxiliary classifier, as in PyTorch's tutorial on fine-tuning Inception-v3, after
Szegedy et al., Going Deeper with Convolutions, arXiv 1409.4842, section 5 (0.3 there)."""


def require(module: str) -> None:
    """Import a library that only capture needs. Raises ConfigError saying what to install."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"capture needs {module}, which is not installed ({error}); allowed: {_INSTALL}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"capture needs {module}, which cannot be imported: {_with_versions(module, error)}; "
            f"allowed: releases that fit, as {_INSTALL} chooses"
        ) from error


def _with_versions(module: str, error: Exception) -> str:
    """Return why a library cannot be imported, with its release and that of PyTorch."""
    try:
        releases = f"{module} {version(module)} does not fit torch {version('torch')}"
    except PackageNotFoundError:
        releases = "it does not fit the other libraries"
    return f"{releases} ({' '.join(str(error).split())[:300]})"


@cache
def torchvision_misfit() -> str | None:
    """Return why the installed torchvision does not fit PyTorch; None if it does, or if there is none."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except Exception as error:
        return _with_versions("torchvision", error)
    return None


def make_torchvision_importable() -> None:
    """Let a torchvision be imported whose compiled operators do not fit the installed PyTorch.

    A torchvision for CUDA cannot load them with a PyTorch for CPUs and stops at the declaration of ``nms``,
    which detection needs and classifiers do not. Declaring it is enough.
    """
    if torchvision_misfit() is not None:
        _declared_operators()


@cache
def _declared_operators() -> Any:
    """Declare the operators; the result is kept, for the declarations end with it."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def timm_builder(name: str, sizes: Sizes, _: StepOptions, __: Sequence[str] = ()) -> Callable[[], Any]:
    """Return a function that builds a classifier of timm and a batch of images.

    ``image_size`` defaults to the one of the model's published weights. Raises ConfigError for a name that
    timm does not have.
    """
    import timm

    source = f"timm:{name}"
    if not timm.is_model(name):
        raise ConfigError(_unknown(source, name, timm.list_models(), "timm.list_models()"))
    sizes.check(source, "images")
    try:
        published: Any = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise ConfigError(f"{source}: {error} allowed: the name without what follows the dot") from error
    channels, pixels = published.input_size[0], sizes.image_size or published.input_size[-1]

    def network() -> Any:
        fixed = {"img_size": pixels} if published.fixed_input_size and sizes.image_size else {}
        return timm.create_model(name, pretrained=False, **fixed)

    return partial(_classifier, network, sizes.batch_size, channels, pixels)


def torchvision_builder(name: str, sizes: Sizes, _: StepOptions, __: Sequence[str] = ()) -> Callable[[], Any]:
    """Return a function that builds a classifier of torchvision and a batch of images.

    ``image_size`` defaults to the one of the model's published weights. Raises ConfigError for a name that
    is no classifier of torchvision.
    """
    from torchvision import models

    source = f"torchvision:{name}"
    known = models.list_models(module=models)
    if name not in known:
        raise ConfigError(_unknown(source, name, known, "torchvision.models.list_models(torchvision.models)"))
    sizes.check(source, "images")
    published = models.get_model_weights(name).DEFAULT.transforms.keywords
    pixels = sizes.image_size or published.get("crop_size", _DEFAULT_PIXELS)

    def network() -> Any:
        # Models with learned positions are built for one size; no other builder knows the keyword.
        fixed = {} if sizes.image_size is None else {"image_size": pixels}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The default weight initialization", FutureWarning)
            try:
                return models.get_model(name, weights=None, **fixed)
            except TypeError:
                return models.get_model(name, weights=None)

    return partial(_classifier, network, sizes.batch_size, 3, pixels)


def _unknown(source: str, name: str, known: list[str], listing: str) -> str:
    plain = name.removesuffix(f".{name.partition('.')[2]}")
    return (
        f"{source}: found no such classifier in the installed library, and nothing is downloaded"
        f"{nearest(plain, known)}; allowed: the {len(known)} names of {listing}"
    )


def _classifier(network: Callable[[], Any], batch_size: int, channels: int, pixels: int) -> Any:
    import torch

    from g10sim.capture.workload import Model

    images = torch.zeros(batch_size, channels, pixels, pixels)
    targets = torch.zeros(batch_size, dtype=torch.int64)
    return Model(network(), (images,), _cross_entropy, targets)


def _cross_entropy(output: Any, targets: Any) -> Any:
    """Loss of a classifier; of one with auxiliary classifiers, theirs in part."""
    from torch.nn.functional import cross_entropy

    logits, *auxiliary = output if isinstance(output, tuple) else (output,)
    loss = cross_entropy(logits, targets)
    for other in auxiliary:
        if other is not None:
            loss = loss + _AUXILIARY_SHARE * cross_entropy(other, targets)
    return loss
