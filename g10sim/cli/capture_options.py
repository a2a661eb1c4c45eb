"""Options of ``g10sim trace capture`` and of what else captures a step."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import Annotated

from typer import Argument, Option

from g10sim.capture.options import SizeOptions, StepOptions
from g10sim.cli.options import Command, parameters, with_parameters

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
_Settings = Annotated[
    list[str],
    Option(
        "--set",
        help="Set a key of an hf: model's configuration, such as hidden_size=64.",
        metavar="KEY=VALUE",
    ),
]


def with_step_options(*names: str) -> Callable[[Command], Command]:
    """Give a command options of the source and of the step instead of its ``**options``.

    Of the step they are those named, or all.
    """
    settings = Parameter("settings", Parameter.KEYWORD_ONLY, default=(), annotation=_Settings)
    return with_parameters(*parameters(SizeOptions), settings, *parameters(StepOptions, *names))
