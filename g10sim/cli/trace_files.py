"""``g10sim trace import nsight``, ``export`` and ``models``: further forms of traces, and known models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from g10sim.capture.known_models import known_models
from g10sim.cli.options import TraceFile, TraceOutput
from g10sim.cli.output import say, show_table
from g10sim.importers.nsight import Report, import_nsight, read_report
from g10sim.trace.chakra import save_chakra
from g10sim.trace.format import load_trace, save_trace

export_app = typer.Typer(help="Write a trace file in the form of other tools.", no_args_is_help=True)


def nsight(
    file: Annotated[Path, typer.Argument(help="Report, exported to SQLite.")],
    output: TraceOutput,
    device: Annotated[
        int | None, typer.Option(min=0, help="Device, if several ran kernels.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model, instead of the file's.", show_default=False)
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in the step; such files do not tell.")] = 1,
) -> None:
    """Import kernels and allocations of a report of Nsight Systems, and tell its copies."""
    report = read_report(file, device)
    trace = import_nsight(report, model=model, batch_size=batch_size)
    save_trace(trace, output)
    say(f"{output}: {len(trace.kernels)} kernels, {len(trace.tensors)} tensors")
    _tell_copies(report)


def _tell_copies(report: Report) -> None:
    for copies in report.copies:
        if copies.duration_ns:  # bytes a nanosecond are gigabytes a second
            rate = f", {copies.size_bytes / copies.duration_ns:.2f} GB/s while copying"
            say(f"{copies.direction}: {copies.count} copies, {copies.size_bytes} bytes{rate}")


@export_app.command()
def chakra(
    file: TraceFile, output: Annotated[Path, typer.Option("-o", "--output", help="File to write (.et).")]
) -> None:
    """Write a trace as a Chakra execution trace in protobuf."""
    trace = load_trace(file)
    save_chakra(trace, output)
    say(f"{output}: {len(trace.kernels)} nodes")


def models() -> None:
    """List the models that `trace capture hf:NAME` knows."""
    rows = (
        (name, family.family, model.source, f"{model.parameters:,}" if model.parameters else "")
        for name, (family, model) in known_models().items()
    )
    show_table(("model", "family", "published at"), ("parameters",), rows)
