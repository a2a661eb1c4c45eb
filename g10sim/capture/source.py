"""Captures what a command line names: a model of a library, or a function of the user's own.

Models have random weights; nothing is downloaded.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import resolve_name
from shlex import quote
from typing import Any, NamedTuple

from g10sim.analysis.gpus import load_gpu
from g10sim.capture.options import GROUPED, SizeOptions, Sizes, StepOptions, flag, step_options
from g10sim.capture.refusal import refusal, refuse_engines
from g10sim.errors import ConfigError, choices_text, nearest
from g10sim.trace.model import Trace

_INSTALL = "pip install 'g10sim[capture]'"
_DEFAULT_PIXELS = 224
_AUXILIARY_SHARE = 0.4
"""Weight of the loss of an auxiliary classifier, as in PyTorch's tutorial on fine-tuning Inception-v3, after
Szegedy et al., Going Deeper with Convolutions, arXiv 1409.4842, section 5 (0.3 there)."""
LIBRARIES: Mapping[str, tuple[str, str]] = {
    "hf": ("transformers", "hugging_face:build_hugging_face"),
    "diffusers": ("diffusers", "diffusion:build_diffusers"),
    "timm": ("timm", "source:timm_builder"),
    "torchvision": ("torchvision", "source:torchvision_builder"),
}
"""By what stands before the colon: the library, and the function of capture that builds its models."""

_CONFIGURED = ("hf", "diffusers")
_DEFAULT_BATCH_SIZE = 8
SIZES = tuple(SizeOptions.model_fields)
"""Options of the sizes of a model's inputs."""


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
        fixed = {"image_size": pixels} if sizes.image_size else {}
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


def capture_source(
    source: str,
    *,
    gpu: str,
    batch_size: int | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    settings: Sequence[str] = (),
    measure: bool = False,
    **options: Any,
) -> Trace:
    """Capture a step of a model of a library (``hf:NAME``, for example) or of ``module:function``.

    The function returns a model and its inputs, or a step: see ``capture_step``. Of ``batch_size``,
    ``seq_len``, ``image_size`` and ``dtype`` it is given those that it has parameters for. ``batch_size``
    defaults to 8 for models of libraries and to the function's own otherwise. ``settings`` (``KEY=VALUE``)
    change the configuration of an ``hf:`` or ``diffusers:`` model. ``options`` are those of ``StepOptions``.
    Raises ConfigError for a wrong option and TraceError for a step that cannot be captured. With ``measure``
    times are those that the CUDA device of this computer takes.
    """
    timing = load_gpu(gpu)
    require("torch")
    make_torchvision_importable()
    from g10sim.capture.step import capture_step

    if measure and options.get("routing") is None:
        options["routing"] = GROUPED  # on a device the model chooses experts by itself
    how = step_options(options)
    if measure and how.routing != GROUPED:
        raise ConfigError(f"--routing: found {how.routing} with --measure; allowed: {GROUPED}")
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "image_size": image_size}
    found = find_source(source, how, settings, **sizes)
    with importing_from_here():
        trace = capture_step(**found._asdict(), gpu=timing, measure=measure, **options)
    # A step of one's own leaves options out that say what it says itself.
    given = {name: value for name, value in how.given().items() if name in trace.origin}
    command = _command(source, gpu, {**sizes, **given, "measure": measure or None}, settings)
    return replace(trace, origin={"command": command, **trace.origin})


class Found(NamedTuple):
    """The step that a source names, as ``capture_step`` takes it: its maker, the trace's name and origin."""

    build: Callable[[], Any]
    model: str
    batch_size: int | None
    origin: Mapping[str, str]


def find_source(source: str, how: StepOptions, settings: Sequence[str] = (), **sizes: int | None) -> Found:
    """Find what a source names: arguments as those of ``capture_source``. Raises ConfigError."""
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ConfigError(f"{flag(name)}: found {value}; allowed: at least 1")
    prefix, colon, name = source.partition(":")
    if settings and prefix not in _CONFIGURED:
        raise ConfigError(f"--set: found {settings[0]} for {source}; allowed: models of hf: and diffusers:")
    if colon and prefix in LIBRARIES:
        library, function = LIBRARIES[prefix]
        batch_size = sizes["batch_size"] or _DEFAULT_BATCH_SIZE
        require(library)
        builder = resolve_name(f"g10sim.capture.{function}")
        given = Sizes(batch_size, sizes["seq_len"] or 0, sizes["image_size"] or 0)
        build = builder(name, given, how, settings)
        model = "-".join(filter(None, (name, how.precision)))
        return Found(build, model, batch_size, {library: version(library)})
    splits_experts = how.routing not in (None, GROUPED)
    build = _function_builder(source, {**sizes, "dtype": how.dtype}, splits_experts=splits_experts)
    return Found(build, source, sizes["batch_size"], {})


def _command(source: str, gpu: str, options: Mapping[str, Any], settings: Sequence[str]) -> str:
    given = [
        flag(name) if value is True else f"{flag(name)} {quote(str(value))}"
        for name, value in options.items()
        if value is not None
    ]

    given += [f"--set {quote(setting)}" for setting in settings]
    return " ".join(["g10sim trace capture", source, *given, "--gpu", gpu])


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Let modules of the working directory be imported."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _function_builder(source: str, options: dict[str, Any], *, splits_experts: bool) -> Callable[[], Any]:
    """Return a function that calls ``module:function`` with those of the options that it has parameters for.

    Raises ConfigError for a source that is no such function, or a size (``batch_size``, ``seq_len``,
    ``image_size``) that it has no parameter for.
    """
    function = _function(source)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: found no signature ({error}); allowed: a Python function") from error
    for name in SIZES:
        if options[name] is not None and name not in parameters:
            found = f"{options[name]}, but {source} has no parameter '{name}'"
            allowed = choices_text(set(options) & set(parameters)) or "no such option"
            raise ConfigError.at(flag(name), found, allowed)
    given = {name: value for name, value in options.items() if value is not None and name in parameters}
    default = parameters["batch_size"].default if "batch_size" in parameters else 1

    def build() -> Any:
        from g10sim.capture.own import Steps, is_step
        from g10sim.capture.routing import split_experts
        from g10sim.capture.workload import Model

        made = function(**given)
        refuse_engines(source, made if isinstance(made, tuple) else (made,))
        is_pair = isinstance(made, tuple) and len(made) == 2 and hasattr(made[0], "named_parameters")
        is_model = is_pair or isinstance(made, Model)
        if not is_model and not is_step(made):
            raise ConfigError(
                f"{source}: found {type(made).__name__}; allowed: a pair (torch.nn.Module, inputs), a step "
                "that can be called, or a generator that yields after every step"
            )
        if is_model and splits_experts:
            made = Model(*made) if is_pair else made
            split_experts(made.network)
        return made if is_model else Steps(made, given.get("batch_size", default))

    return build


def _function(source: str) -> Callable[..., Any]:
    module_name, colon, function_name = source.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(
            f"found source '{source}'; allowed: hf:NAME, diffusers:NAME, timm:NAME, torchvision:NAME or "
            "module:function"
        )
    with importing_from_here():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{source}: {error}; allowed: a module that can be imported from here"
            ) from error
        except Exception as error:
            raise refusal(error, source, "importing the module") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        found = f"no function '{function_name}'{nearest(function_name, names)}"
        raise ConfigError.at(source, found, choices_text(names) or "a module with a function")
    return function  # type: ignore[no-any-return]
