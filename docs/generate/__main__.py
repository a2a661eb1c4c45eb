"""Writes the pages of the documentation that are made from data: ``python docs/generate --help``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.append(str(Path(__file__).parents[2]))  # where tools/ lies

import benchmarks_page
import bound_page
import claims_page
import columns_page
import commands_page
import configuration_page
import distance_page
import executed_page
import figures_page
import flash_page
import front_page
import kernel_times_page
import measured_page
import moves_page
import mutants_page
import ordering_page
import page_faults_page
import pictures
import policy_parameters
import rates_page
import reliability_page
import tensile_page
import typer
import validation_page
from rich.console import Console

from g10sim.files import save_text

app = typer.Typer(help="Write the generated pages of the documentation.", add_completion=False)

Results = Annotated[Path, typer.Argument(help="Directory of results.")]
Page = Annotated[Path, typer.Option("-o", "--output", help="Page to write.")]


@app.command()
def configuration(output: Page = Path("docs/configuration.md")) -> None:
    """Write the page of the configuration's keys, from the definitions that check it."""
    _write(output, configuration_page.page())


@app.command()
def commands(output: Page = Path("docs/commands.md")) -> None:
    """Write the page of all commands and their options, from their definitions."""
    _write(output, commands_page.page())


@app.command()
def moves(output: Page = Path("docs/policy-interface.md")) -> None:
    """Bring the table of moves in the page of the interface up to date."""
    _write(output, moves_page.page(output.read_text(encoding="utf-8")))


@app.command()
def columns(output: Page = Path("docs/results.md")) -> None:
    """Bring the tables of columns in the page of results up to date."""
    _write(output, columns_page.page(output.read_text(encoding="utf-8")))


@app.command()
def parameters(
    directory: Annotated[Path, typer.Argument(help="Directory of the pages.")] = Path("docs"),
) -> None:
    """Write the tables of policies' parameters, from their declarations, between the marks of their pages."""
    for page in sorted(directory.glob("policies*.md")):
        _write(page, policy_parameters.page(page.read_text(encoding="utf-8")))


@app.command()
def executed(
    first: Annotated[Path, typer.Argument(help="Measured cells of the table.")] = Path(
        "docs/executed/h200.csv"
    ),
    others: Annotated[list[Path], typer.Option(help="Measured cells of other machines.")] = [  # noqa: B006
        Path("docs/executed/h100.csv")
    ],
    output: Page = Path("docs/executing-plans.md"),
) -> None:
    """Bring what is said of executed steps up to date, from measured.csv of ``g10sim execute --measure``."""
    _write(output, executed_page.page(output.read_text(encoding="utf-8"), first, others))


@app.command()
def validation(
    results: Results = Path("results/validation"), output: Page = Path("docs/validation.md")
) -> None:
    """Write the page of the validation, from the validation.csv of ``g10sim validate``."""
    _write(output, validation_page.page(results))


@app.command()
def claims(results: Results = Path("results/claims"), output: Page = Path("docs/claims.md")) -> None:
    """Write the page of published claims, from the files of ``g10sim claims``."""
    _write(output, claims_page.page(results))


@app.command()
def claims_lines(
    page: Annotated[Path, typer.Argument(help="Page with marks.")] = Path("README.md"),
    claims: Annotated[Path, typer.Option(help="Page of published claims.")] = Path("docs/claims.md"),
    output: Annotated[Path, typer.Option("-o", "--output", help="Page to write.")] = Path("README.md"),
) -> None:
    """Bring the lines about published claims on the front page up to date, from the page of claims."""
    texts = (path.read_text(encoding="utf-8") for path in (page, claims))
    _write(output, claims_page.with_lines(*texts))


@app.command()
def measured(
    results: Results = Path("results/measured"),
    output: Page = Path("docs/measured.md"),
    long: Annotated[Path, typer.Option(help="Those of long rows.")] = Path("results/measured_long"),
    order: Annotated[Path, typer.Option(help="Results with uncertainty.")] = Path("results/uncertain_order"),
) -> None:
    """Write the page of measured machines alongside predictions, from the files of ``g10sim measured``."""
    _write(output, measured_page.page(results, long, order))


@app.command()
def widths(
    results: Results = Path("results/measured"),
    output: Page = Path("configs/uncertainty/measured.yaml"),
) -> None:
    """Write ``uncertainty: measured``, from the files of ``g10sim measured``."""
    _write(output, measured_page.widths(results))


@app.command()
def measured_line(
    page: Annotated[Path, typer.Argument(help="Page with marks.")] = Path("README.md"),
    measured: Annotated[Path, typer.Option(help="Page of measured machines.")] = Path("docs/measured.md"),
    output: Annotated[Path, typer.Option("-o", "--output", help="Page to write.")] = Path("README.md"),
) -> None:
    """Bring the line about measured machines on the front page up to date, from their page."""
    texts = (path.read_text(encoding="utf-8") for path in (page, measured))
    _write(output, measured_page.with_line(*texts))


@app.command("front-page")
def front(
    page: Annotated[Path, typer.Argument(help="Page with marks.")] = Path("README.md"),
    output: Annotated[Path, typer.Option("-o", "--output", help="Page to write.")] = Path("README.md"),
) -> None:
    """Bring numbers and designs on the front page up to date, from other pages and the registry."""
    sources = (page, Path("docs/validation.md"), Path("docs/benchmarks.md"))
    _write(output, front_page.with_numbers(*(source.read_text(encoding="utf-8") for source in sources)))


@app.command()
def flash(
    tables: Annotated[Path, typer.Argument(help="Directory of tables measured with MQSim.")],
    output: Page = Path("docs/flash.md"),
) -> None:
    """Write the page of the flash model and its agreement with MQSim."""
    _write(output, flash_page.page(tables))


@app.command()
def bounds(output: Page = Path("docs/bound.md")) -> None:
    """Bring the table of bounds of the bundled traces up to date."""
    _write(output, bound_page.page(output.read_text(encoding="utf-8"), Path("traces")))


@app.command()
def distances(results: Results = Path("results/bound"), output: Page = Path("docs/bound.md")) -> None:
    """Bring tables and picture of how close policies come to their bounds up to date."""
    pictures.save(distance_page.picture(results), output.parent / "images" / "bound.png")
    _write(output, distance_page.page(output.read_text(encoding="utf-8"), results))


@app.command()
def benchmarks(
    results: Results = Path("results/benchmarks"), output: Page = Path("docs/benchmarks.md")
) -> None:
    """Write the page of speed and memory, from the files of ``python -m benchmarks``."""
    _write(output, benchmarks_page.page(results))


@app.command()
def figures(results: Results = Path("results/paper"), output: Page = Path("docs/figures.md")) -> None:
    """Write the page of the paper's figures and their pictures, from results of ``g10sim reproduce``."""
    figures_page.draw(results, output.parent / "images")
    _write(output, figures_page.page())


@app.command()
def ordering(results: Results = Path("results/ordering"), output: Page = Path("docs/ordering.md")) -> None:
    """Write the page of how policies order without ``compat``, from results of configs/ordering.yaml."""
    _write(output, ordering_page.page(results))


@app.command("page-faults")
def page_faults(
    results: Results = Path("results/page_faults"), output: Page = Path("docs/page-faults.md")
) -> None:
    """Write the page of what page faults cost, from results of configs/page_faults.yaml."""
    _write(output, page_faults_page.page(results))


@app.command()
def rates(results: Results = Path("results/rates"), output: Page = Path("docs/rates.md")) -> None:
    """Write the page of what measured link rates change, from results of configs/rates.yaml."""
    _write(output, rates_page.page(results))


@app.command()
def tensile(
    single: Annotated[Path, typer.Argument(help="Results of experiments/savings.yaml.")] = Path(
        "results/savings"
    ),
    shared: Annotated[Path, typer.Argument(help="Results of experiments/savings_jobs.yaml.")] = Path(
        "results/savings_jobs"
    ),
    output: Page = Path("docs/tensile.md"),
) -> None:
    """Write the page of TENSILE and what it saves, and its pictures."""
    pictures.draw("savings", single, output.parent / "images")
    pictures.draw("savings_jobs", shared, output.parent / "images")
    _write(output, tensile_page.page(single, shared))


@app.command()
def pools(
    results: Annotated[Path, typer.Argument(help="Results of experiments/pools.yaml.")] = Path(
        "results/pools"
    ),
    swaps: Annotated[Path, typer.Argument(help="Results of experiments/swaps.yaml.")] = Path("results/swaps"),
    images: Annotated[Path, typer.Option("-o", "--output", help="Directory of pictures.")] = Path(
        "docs/images"
    ),
) -> None:
    """Draw the pictures of the page of pools and swaps."""
    pictures.draw("pools", results, images)
    pictures.draw("swaps", swaps, images)


@app.command("kernel-times")
def kernel_times(
    reference: Annotated[Path, typer.Argument(help="Directory with traces/MODEL/BATCH.")],
    output: Page = Path("docs/kernel-times.md"),
) -> None:
    """Write the page of modelled and measured kernel times; captures the five models (needs PyTorch)."""
    _write(output, kernel_times_page.page(reference))


@app.command()
def footprints(
    reference: Annotated[Path, typer.Argument(help="Directory with traces/MODEL/BATCH.")],
    output: Page = Path("docs/footprints.md"),
) -> None:
    """Write the page of captured and published memory; captures the five models (needs PyTorch)."""
    import footprint_page  # needs PyTorch

    _write(output, footprint_page.page(reference))


@app.command()
def reliability(
    results: Results = Path("results/reliability"), output: Page = Path("docs/reliability.md")
) -> None:
    """Write the page of hard use, from the files of ``python tests/fuzz``."""
    _write(output, reliability_page.page(results))


@app.command()
def mutants(results: Results = Path("results/benchmarks"), output: Page = Path("docs/mutants.md")) -> None:
    """Write the page of mutants, from the mutants.csv of ``python -m benchmarks mutants``."""
    _write(output, mutants_page.page(results))


def _write(path: Path, text: str) -> None:
    save_text(path, text)
    Console(soft_wrap=True, highlight=False).print(f"{path}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    app()
