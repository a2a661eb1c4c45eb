"""``g10sim execute``: run a step under a plan or a policy, and compare it with the plain step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from g10sim.cli import options
from g10sim.cli.output import say, show_table, warn
from g10sim.display import rounded_bytes, rounded_seconds
from g10sim.errors import ConfigError
from g10sim.files import write_csv

Guide = Annotated[
    str | None, Option(help="Policy that plans and decides while the step runs.", show_default="on demand")
]
Budget = Annotated[
    str, Option(help="Bytes on the device, such as 12GiB, or a share of the step's peak: 60%.")
]
_LIVE_HELP = "The policy decides while the step runs, or the moves of its simulation are carried out."
Live = Annotated[bool, Option("--live/--as-simulated", help=_LIVE_HELP)]


@options.with_step_options(
    "dtype",
    "autocast",
    "optimizer",
    "optimizer_form",
    "momentum",
    "attention",
    "activation_checkpointing",
    "channels_last",
    "inference",
)
def execute(
    source: options.Source,
    plan: Annotated[Path | None, Option(help="Saved plan (.g10p) for the step's trace.")] = None,
    policy: Guide = None,
    budget: Budget = "60%",
    steps: Annotated[int, Option(min=1, help="Steps that are executed.")] = 3,
    device: Annotated[str, Option(help="cpu (an account of bytes in main memory) or cuda.")] = "cpu",
    gpu: options.Gpu = "a100-40g",
    system: Annotated[
        str, Option(help="System that policies plan for and that is simulated.")
    ] = options.DEFAULT_SYSTEM,
    check: Annotated[
        bool, Option("--check/--no-check", help="Compare all values with the plain step's.")
    ] = True,
    output: Annotated[Path | None, options.output_to("CSV with a row for each kernel.", "none")] = None,
    live: Live = True,
    measure: Annotated[
        bool, Option("--measure", help="SOURCE is a YAML file of models, budgets and policies to measure.")
    ] = False,
    **step: Any,
) -> None:
    """Run a PyTorch step with tensors moved as a plan or a policy says, within a budget of bytes.

    The step is recorded, simulated, and run on the device; every operator is checked against the recording.
    """
    from g10sim.capture.source import require

    require("torch")
    if measure:
        _measure(Path(source), device, output)
        return
    from g10sim.execute.running import execute_source, open_source

    if plan is not None and policy is not None:
        raise ConfigError("--plan: found with --policy; allowed: one of them")
    done = execute_source(
        open_source(source, device=device, **step),
        budget=_budget(budget),
        plan=plan,
        policy=policy,
        steps=steps,
        gpu=gpu,
        system=system,
        live=live,
        check=check,
    )
    _report(source, done)
    if output is not None:
        rows = done.kernel_rows()
        write_csv(output, list(rows[0]), rows)


def _measure(cells: Path, device: str, output: Path | None) -> None:
    from g10sim.execute.measuring import measure_cells

    if output is None:
        raise ConfigError("--measure: found no -o; allowed: -o with a directory for what is measured")
    for line in measure_cells(cells, device, output):
        say(line)


def _budget(text: str) -> int | float:
    """Return bytes, or a share of the peak. Raises ConfigError."""
    if not text.endswith("%"):
        return options.sizes("--budget", [text])[0]
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < float("inf"):
        raise ConfigError(f"--budget: found '{text}'; allowed: a size such as 12GiB, or a share such as 60%")
    return share


def _report(source: str, done: Any) -> None:
    trace = done.script.trace
    size = f"{len(done.script.calls)} operators, {len(trace.kernels)} kernels, {len(trace.tensors)} tensors"
    say(f"{source}: {size}; budget {rounded_bytes(done.system.gpu.memory)}")
    figures = ("faults", "in", "out", "peak", "time")
    rows = []
    for number, report in enumerate(done.reports, 1):
        moved = map(rounded_bytes, (report.in_bytes, report.out_bytes, report.peak_bytes))
        rows.append((f"step {number}", str(report.faults), *moved, rounded_seconds(report.seconds)))
    if done.predicted is not None:
        into, out, peak = done.simulated_bytes()
        rows.append(("simulated", "", *map(rounded_bytes, (into, out, peak)), ""))
    show_table(("",), figures, rows)
    if done.values is not None:
        from g10sim.execute.running import Comparison

        (say if done.values is Comparison.EQUAL else warn)(f"weights, states and buffers {done.values}")
        if done.values is Comparison.DIFFERENT:
            raise typer.Exit(1)
