"""Options of ``g10sim trace capture`` and of what else captures a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, TypeAlias

from pydantic.fields import FieldInfo
from typer import Argument, Option

from g10sim.capture.options import Otherwise, StepOptions, flag
from g10sim.config.quantities import descriptions

Command: TypeAlias = Callable[..., None]

Source = Annotated[
    str,
    Argument(
        metavar="SOURCE",
        help="hf:NAME, diffusers:NAME, timm:NAME, torchvision:NAME, or module:function, which returns "
        "(model, inputs), a step or a generator of steps.",
    ),
]
Gpu = Annotated[str, Option(help="GPU whose kernel times are modelled: a name, or a YAML file.")]
Measure = Annotated[bool, Option("--measure", help="Measure the times on the CUDA device of this computer.")]
Strict = Annotated[
    bool,
    Option(
        "--strict", help="Refuse a step in which operators of unknown cost are more than 1% of bytes or time."
    ),
]
_OF_SOURCE: dict[str, tuple[object, object]] = {
    "batch_size": (Annotated[int | None, Option(help="Samples in a step.", show_default="8")], None),
    "seq_len": (
        Annotated[int | None, Option(help="Tokens in a sample.", show_default="512, or the model's most")],
        None,
    ),
    "image_size": (
        Annotated[
            int | None, Option(help="Height and width of an image in pixels.", show_default="the model's")
        ],
        None,
    ),
    "settings": (
        Annotated[
            list[str],
            Option(
                "--set",
                help="Set a key of an hf: model's configuration, such as hidden_size=64.",
                metavar="KEY=VALUE",
            ),
        ],
        (),
    ),
}
"""Options of the sources of steps, each with its type and its default."""


def with_step_options(*names: str) -> Callable[[Command], Command]:
    """Give a command options of the source and of the step instead of its ``**options``.

    Of the step they are those named, or all.
    """

    def decorated(command: Command) -> Command:
        @wraps(command)
        def called(**given: Any) -> None:
            command(**given)

        own = signature(command, eval_str=True)
        kept = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in _OF_SOURCE.items()
        ]
        added += [
            _parameter(name, StepOptions.model_fields[name]) for name in names or StepOptions.model_fields
        ]
        called.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in (*kept, *added)}
        return called

    return decorated


def _parameter(name: str, field: FieldInfo) -> Parameter:
    """Return the parameter of a command that stands for a field."""
    words = next((one.words for one in field.metadata if isinstance(one, Otherwise)), True)
    declared = [flag(name)] if field.annotation is bool else []  # no option that says no
    option = Option(*declared, help=descriptions(StepOptions)[name], show_default=words)
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[field.annotation, option]
    )
