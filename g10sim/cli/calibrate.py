"""``g10sim calibrate``: descriptions of machines made from measurements of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer
import yaml
from typer import Argument, Option

from g10sim.cli.options import DEFAULT_SYSTEM, chosen, output_to
from g10sim.cli.output import say, warn
from g10sim.errors import ConfigError
from g10sim.files import save_text
from g10sim.importers.nvbandwidth import Engine, read_link

app = typer.Typer(
    help="Make descriptions of machines from measurements of them.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def calibrate() -> None:
    """Make descriptions of machines from measurements of them."""


@app.command()
def links(
    file: Annotated[Path, Argument(help="What nvbandwidth -j printed.")],
    output: Annotated[Path | None, output_to("System to write (.yaml).", "standard output")] = None,
    preset: Annotated[
        str, Option(help="System that everything but the link is taken from: a preset, or a YAML file.")
    ] = DEFAULT_SYSTEM,
    engine: Annotated[
        str, Option(help="Copies by copy engines (copy) or by kernels (sm).", metavar="copy|sm")
    ] = "copy",
    gpu_index: Annotated[
        int | None, Option(min=0, help="GPU whose values count.", show_default="median of all")
    ] = None,
) -> None:
    """Make a system whose link to host memory is as fast as NVIDIA's nvbandwidth measured."""
    if output is not None and output.suffix != ".yaml":
        raise ConfigError(f"-o: found '{output}'; allowed: a file NAME.yaml")
    if output is not None and output.resolve() == Path(preset).resolve():
        raise ConfigError(f"-o: found '{output}', the file of --preset; allowed: another")
    link = read_link(file, chosen("--engine", engine, get_args(Engine)), gpu_index)
    for warning in link.warnings:
        warn(warning)
    data = link.preset(preset, "measured" if output is None else output.stem)
    text = yaml.safe_dump(data, sort_keys=False, width=110)
    if output is None:
        say(text.rstrip())
        return
    save_text(output, text)
    found = link.to_device.value, link.from_device.value
    say(f"{output}: {preset}, with {found[0]:g} GB/s to the GPU and {found[1]:g} GB/s from it")
