"""``g10sim trace calibrate``: fits a GPU's kernel times to measured ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from g10sim.cli.output import say, show_table
from g10sim.errors import ConfigError
from g10sim.files import write_text

_SUFFIX = ".yaml"
_WIDTH = 110
_DEFAULT_FIT = "BERT_Base,ResNet152,SENet154"


def calibrate(
    reference: Annotated[
        Path,
        typer.Argument(help="Directory with traces/MODEL/BATCH of the published data.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="GPU description to write (.yaml).")],
    gpu: Annotated[str, typer.Option(help="Bundled description to build on.")] = "a100-40g",
    fit: Annotated[str, typer.Option(help="Models to fit to; the others are a check.")] = _DEFAULT_FIT,
) -> None:
    """Fit a GPU's kernel times to measured kernels, and check them on models that were held out."""
    from g10sim.experiment.calibrated import calibrate as run_calibration
    from g10sim.experiment.calibrated import read_published

    if output.suffix != _SUFFIX:
        raise ConfigError(f"-o: found '{output}'; allowed: a file NAME.yaml")
    models = [name.strip() for name in fit.split(",") if name.strip()]
    found = run_calibration(read_published(reference), gpu, output.stem, models)
    text = yaml.safe_dump(found.data, sort_keys=False, width=_WIDTH)
    try:
        write_text(output, text)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror}") from error
    show_table(
        ("model", "use"),
        ("batch", "measured (s)", "described (s)", "error"),
        (
            (
                check.model,
                "fit" if check.fitted else "held out",
                str(check.batch_size),
                f"{check.measured_seconds:.2f}",
                f"{check.described_seconds:.2f}",
                f"{check.error:+.1%}",
            )
            for check in found.checks
        ),
        title="sum of kernel times",
    )
    say(f"{output}: {sum(found.fit.counts.values())} kernels fitted")
