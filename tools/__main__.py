"""``python -m tools``: fits a GPU's kernel times to the kernels that were measured for the G10 paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml
from typer import Argument, Option

from g10sim.cli.options import names_in
from g10sim.cli.output import exit_code, say, show_table
from g10sim.errors import ConfigError
from g10sim.files import save_text
from tools.calibration import calibrate as run_calibration
from tools.calibration import read_published

app = typer.Typer(help="Work that needs the data of papers' authors.", add_completion=False)


@app.callback()
def tools() -> None:
    """Work that needs the data of papers' authors."""


@app.command()
def calibrate(
    reference: Annotated[Path, Argument(help="Directory with traces/MODEL/BATCH of the published data.")],
    output: Annotated[Path, Option("--output", "-o", help="GPU description to write (.yaml).")],
    gpu: Annotated[str, Option(help="Bundled description to build on.")] = "a100-40g-2023",
    fit: Annotated[
        str, Option(help="Models to fit to; the others are a check.")
    ] = "BERT_Base,ResNet152,SENet154",
) -> None:
    """Fit a GPU's kernel times to measured kernels, and check them on models that were held out."""
    if output.suffix != ".yaml":
        raise ConfigError(f"-o: found '{output}'; allowed: a file NAME.yaml")
    found = run_calibration(read_published(reference), gpu, output.stem, names_in("--fit", fit))
    save_text(output, yaml.safe_dump(found.data, sort_keys=False, width=110))
    rows = []
    for check in found.checks:
        named = check.model, "fit" if check.fitted else "held out", str(check.batch_size)
        seconds = (f"{value:.2f}" for value in (check.measured_seconds, check.described_seconds))
        rows.append((*named, *seconds, f"{check.error:+.1%}"))
    figures = ("batch", "measured (s)", "described (s)", "error")
    show_table(("model", "use"), figures, rows, title="sum of kernel times")
    say(f"{output}: {sum(found.fit.counts.values())} kernels fitted")


if __name__ == "__main__":
    raise SystemExit(exit_code(lambda: app(standalone_mode=False)))
