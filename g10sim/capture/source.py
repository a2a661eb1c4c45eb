"""Captures what a command line names: a model of a library, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from shlex import quote
from typing import Any

from g10sim.capture.function import function_builder, importing_from_here
from g10sim.capture.gpu import load_gpu
from g10sim.capture.hugging_face import hugging_face_builder
from g10sim.capture.libraries import make_torchvision_importable, require
from g10sim.capture.options import StepOptions
from g10sim.capture.sizes import Sizes, flag
from g10sim.capture.vision import timm_builder, torchvision_builder
from g10sim.errors import ConfigError
from g10sim.trace.model import Trace

Builder = Callable[[str, Sizes, StepOptions], Callable[[], Any]]

LIBRARIES: Mapping[str, tuple[str, Builder]] = {
    "hf": ("transformers", hugging_face_builder),
    "timm": ("timm", timm_builder),
    "torchvision": ("torchvision", torchvision_builder),
}
"""By what stands before the colon: the library and what builds its models."""

_DEFAULT_BATCH_SIZE = 8


def capture_source(
    source: str,
    *,
    gpu: str,
    batch_size: int | None = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    measure: bool = False,
    **options: Any,
) -> Trace:
    """Capture a step of ``hf:NAME``, ``timm:NAME``, ``torchvision:NAME`` or ``module:function``.

    The function returns a model and its inputs; of ``batch_size``, ``seq_len``, ``image_size`` and ``dtype``
    it is given those that it has parameters for. ``batch_size`` defaults to 8 for models of libraries and to
    the function's own otherwise. ``options`` are those of ``StepOptions``. Raises ConfigError for a wrong
    option and TraceError for a step that cannot be captured. With ``measure`` times are those that the CUDA
    device of this computer takes.
    """
    timing = load_gpu(gpu)
    require("torch")
    make_torchvision_importable()
    from g10sim.capture.step import capture_step

    sizes = {"batch_size": batch_size, "seq_len": seq_len, "image_size": image_size}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ConfigError(f"{flag(name)}: found {value}; allowed: at least 1")
    how = StepOptions(**options)
    origin = {"command": _command(source, gpu, {**sizes, **how.given()}, measure=measure)}
    prefix, colon, name = source.partition(":")
    if colon and prefix in LIBRARIES:
        library, builder = LIBRARIES[prefix]
        batch_size = _DEFAULT_BATCH_SIZE if batch_size is None else batch_size
        build = builder(name, Sizes(batch_size, seq_len, image_size), how)
        model, origin[library] = name, version(library)
    else:
        build = function_builder(source, {**sizes, "dtype": how.dtype})
        model = source
    with importing_from_here():
        return capture_step(
            build,
            gpu=timing,
            model=model,
            batch_size=batch_size,
            origin=origin,
            measure=measure,
            **options,
        )


def _command(source: str, gpu: str, options: Mapping[str, Any], *, measure: bool) -> str:
    given = [
        flag(name) if value is True else f"{flag(name)} {quote(str(value))}"
        for name, value in options.items()
        if value is not None
    ]
    given += ["--measure"] if measure else []
    return " ".join(["g10sim trace capture", source, *given, "--gpu", gpu])
