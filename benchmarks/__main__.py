"""Commands of the benchmarks: ``cells`` measures ordinary cells, ``long`` and ``decode`` very long traces.

``planning`` measures how long policies plan, ``floor`` compares cells with a loop in C, ``sweep`` measures a
sweep of tiny cells, ``start`` how long the program takes to start, ``reproduce`` all figures of the G10
paper in one go, ``mutants`` the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from typer import Option

from benchmarks import floor as least
from benchmarks import processes, report
from benchmarks import reproduce as whole
from benchmarks.cells import (
    BUNDLED,
    DECODE,
    DEFAULT_SYSTEM,
    LONG,
    PLANNING,
    PUBLISHED,
    Cell,
    bundled_cells,
    decode_cells,
    long_cells,
    planners,
    planning_cells,
    published_cells,
)
from benchmarks.measure import Measurement
from benchmarks.yardstick import yardstick_seconds
from g10sim.cli.output import exit_code, say

REFERENCE_VARIABLE = "G10SIM_REFERENCE"

app = typer.Typer(
    help="Speed and memory of the simulator itself.", add_completion=False, pretty_exceptions_enable=False
)

Repeats = Annotated[int, Option("--repeats", min=1, help="Runs of each cell; the median counts.")]
Output = Annotated[Path, Option("-o", "--output", help="Directory of the CSV files.")]


@app.command()
def cells(
    groups: Annotated[str, Option(help=f"Only these groups, comma-separated: {PUBLISHED}, {BUNDLED}.")] = "",
    models: Annotated[str, Option(help="Only these models (bundled: files), comma-separated.")] = "",
    batch_sizes: Annotated[str, Option(help="Only these batch sizes, comma-separated.")] = "",
    policies: Annotated[str, Option(help="Only these policies, comma-separated.")] = "",
    reference_plans: Annotated[
        bool, Option("--reference-plans", help="Also with the published plans of our own policies.")
    ] = False,
    repeats: Repeats = 3,
    output: Output = Path("results/benchmarks"),
) -> None:
    """Measure published cells (where G10SIM_REFERENCE names their data) and bundled traces."""
    everything = [*_published(reference_plans), *bundled_cells()]
    wanted = {"group": groups, "model": models, "batch_size": batch_sizes, "policy": policies}
    chosen = [
        cell
        for cell in everything
        if all(not names or str(getattr(cell, key)) in names.split(",") for key, names in wanted.items())
    ]
    if not chosen:
        raise typer.BadParameter(f"no cell has these names; {len(everything)} cells are known")
    _run("cells", chosen, repeats, output)


@app.command("long")
def long_traces(
    kernels: Annotated[list[int] | None, Option(min=1, help="Kernels of the trace; repeatable.")] = None,
    policies: Annotated[str, Option(help="Policies, comma-separated.")] = "base_uvm,deepum",
    repeats: Repeats = 1,
    output: Output = Path("results/benchmarks"),
) -> None:
    """Measure synthetic traces of very many kernels: cost must grow with their number only."""
    counts = kernels or [20_000, 200_000]
    _run(LONG, list(long_cells(counts, policies.split(","))), repeats, output)


@app.command("decode")
def decode_steps(
    steps: Annotated[list[int] | None, Option(min=1, help="Steps of 1,000 kernels each; repeatable.")] = None,
    policies: Annotated[
        str, Option(help="Policies, comma-separated.")
    ] = "ideal,base_uvm,deepum,g10,pressure",
    repeats: Repeats = 1,
    output: Output = Path("results/benchmarks"),
) -> None:
    """Measure traces whose files hold a block once that occurs up to a thousand times."""
    counts = steps or [1, 10, 100, 1000]
    _run(DECODE, list(decode_cells(counts, policies.split(","))), repeats, output)


@app.command()
def planning(
    kernels: Annotated[
        list[int] | None, Option(min=3, help="Kernels of a training chain; repeatable.")
    ] = None,
    traces: Annotated[list[str] | None, Option(help="Trace files instead of chains; repeatable.")] = None,
    policies: Annotated[str, Option(help="Only these policies, comma-separated.")] = "",
    system: Annotated[str, Option(help="Preset of the machine.")] = str(DEFAULT_SYSTEM["preset"]),
    share: Annotated[float, Option(min=0.01, help="GPU memory over what is alive at most.")] = 0.6,
    repeats: Repeats = 1,
    output: Output = Path("results/benchmarks"),
) -> None:
    """Measure how long policies plan, trial iterations included: cost must grow with the kernels only."""
    counts = kernels or ([] if traces else [1_000, 3_000, 10_000, 30_000])
    chosen = policies.split(",") if policies else planners()
    rows = _measured(planning_cells(counts, traces or [], chosen, system, share), repeats)
    report.show_planning(rows, counts)
    say(f"{len(rows)} rows in {report.write(output, PLANNING, rows)}")


@app.command()
def reproduce(
    figures: Annotated[str, Option(help="Only these figures, comma-separated.")] = "",
    workers: Annotated[int, Option("-j", "--workers", min=1, help="Cells simulated at a time.")] = 2,
    output: Output = Path("results/benchmarks"),
) -> None:
    """Measure how long it takes to simulate and draw the figures of the G10 paper."""
    rows = whole.measure(figures, workers)
    total = rows[-1]
    say(
        f"{total['wall_seconds']} s with {workers} workers: {total['cells']} cells, "
        f"{total['new_cells']} of them different, {total['cpu_seconds']} s of CPU time"
    )
    say(f"{len(rows)} rows in {report.write(output, 'reproduce', rows)}")


@app.command()
def sweep(
    cells: Annotated[int, Option("--cells", min=1, help="Values of the swept key.")] = 10_000,
    workers: Annotated[int, Option("-j", "--workers", min=1, help="Cells simulated at a time.")] = 2,
    output: Output = Path("results/benchmarks"),
) -> None:
    """Measure a sweep of tiny cells: cells a second, memory of the process that starts them, and resuming."""
    row = processes.measure_sweep(cells, workers)
    memory = "" if row["memory_bytes"] is None else f", {row['memory_bytes'] / 1e6:.0f} MB"
    say(
        f"{cells} cells in {row['seconds']} s with {workers} workers ({row['cells_per_second']} a second"
        f"{memory}); resumed in {row['resume_seconds']} s"
    )
    say(f"1 rows in {report.write(output, 'sweep', [row])}")


@app.command()
def floor(repeats: Repeats = 5, output: Output = Path("results/benchmarks")) -> None:
    """Measure cells of Base UVM and a loop in C that gives the same cycles (G10SIM_REFERENCE names it)."""
    rows = least.measure(Path(os.environ.get(REFERENCE_VARIABLE, "")), repeats)
    for row in rows:
        say(f"{row['trace']}: {row['ratio']} times the CPU time of the loop ({row['cpu_seconds']} s)")
    say(f"{len(rows)} rows in {report.write(output, 'floor', rows)}")


@app.command()
def start(repeats: Repeats = 5, output: Output = Path("results/benchmarks")) -> None:
    """Measure how long the program takes to start: its help, and the run of one tiny cell."""
    rows = processes.measure_start(repeats)
    for row in rows:
        say(f"{row['command']}: {row['cpu_seconds']} s of CPU time")
    say(f"{len(rows)} rows in {report.write(output, 'start', rows)}")


@app.command()
def mutants(
    count: Annotated[int, Option("--count", min=1, help="How many mutants to draw, about.")] = 420,
    seed: Annotated[int, Option("--seed", help="Other mutants are drawn with another seed.")] = 1,
    modules: Annotated[str, Option(help="Modules or packages of g10sim to change, comma-separated.")] = "",
    tests: Annotated[str, Option(help="Files or directories of tests, comma-separated.")] = "",
    budget: Annotated[
        float, Option("--budget", min=1, help="CPU seconds of tests that a mutant meets, at most.")
    ] = 10.0,
    workers: Annotated[int, Option("-j", "--workers", min=1, help="Mutants met at a time.")] = 2,
    survivors: Annotated[
        bool, Option("--survivors", help="Only those that no test noticed the last time, and new ones.")
    ] = False,
    output: Output = Path("results/benchmarks"),
) -> None:
    """Change the program in small ways, one at a time, and count the changes that no test notices."""
    from benchmarks import noticed  # needs the libraries of the tests

    chosen = tests.split(",") if tests else noticed.TESTS
    changed = modules.split(",") if modules else noticed.MODULES
    plan = noticed.Plan(count, seed, changed, chosen, budget, workers)

    def write(rows: list[noticed.Row]) -> None:
        report.write(output, "mutants", rows)

    rows = noticed.measure(plan, output, survivors=survivors, tell=write)
    total = noticed.score(rows)
    say(
        f"{total.killed} of {total.mutants - total.equivalent} mutants noticed: {total.share:.1%}; "
        f"{total.equivalent} more are equivalent to the program"
    )
    say(f"{len(rows)} rows in {report.write(output, 'mutants', rows)}")


def _published(reference_plans: bool) -> list[Cell]:
    reference = os.environ.get(REFERENCE_VARIABLE)
    if not reference:
        say(f"{REFERENCE_VARIABLE} is not set: no published cells")
        return []
    return list(published_cells(Path(reference) / "gpg", reference_plans=reference_plans))


def _run(name: str, chosen: Iterable[Cell], repeats: int, output: Path) -> None:
    rows = _measured(chosen, repeats)
    for group in dict.fromkeys(row["group"] for row in rows):
        report.show(group, [row for row in rows if row["group"] == group])
    say(f"{len(rows)} rows in {report.write(output, name, rows)}")


def _measured(chosen: Iterable[Cell], repeats: int) -> list[dict[str, Any]]:
    todo = list(chosen)
    rows = []
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("measuring", total=len(todo) * repeats)
        before = yardstick_seconds()
        for cell in todo:
            runs = []
            for _ in range(repeats):
                runs.append(_in_a_process(cell))
                progress.advance(bar)
            after = yardstick_seconds()
            rows.append(report.summarize(cell, runs, (before, after)))
            before = after
    return rows


def _in_a_process(cell: Cell) -> Measurement:
    command = [sys.executable, "-m", "benchmarks.measure", json.dumps(cell.task())]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{cell.model} {cell.batch_size} {cell.policy} failed:\n{ended.stderr}")
    return Measurement(**json.loads(ended.stdout))


if __name__ == "__main__":
    sys.exit(exit_code(lambda: app(standalone_mode=False)))
