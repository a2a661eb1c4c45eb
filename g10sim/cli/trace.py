"""``g10sim trace``: make trace files from foreign ones, look at them, check them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from g10sim.analysis.footprint import footprint_bytes, live_bytes, peak_live_bytes
from g10sim.analysis.timeline import Integers, kernel_starts
from g10sim.analysis.vitality import inactive_periods, live_ranges
from g10sim.analysis.working_set import working_set_bytes
from g10sim.cli.calibrate import calibrate
from g10sim.cli.imports import chakra, kineto
from g10sim.cli.pools import pools
from g10sim.cli.text import rounded_bytes, rounded_seconds
from g10sim.config.presets import load_system, system_names
from g10sim.errors import ConfigError
from g10sim.importers.gpg import import_gpg
from g10sim.trace.format import load_trace, save_trace, trace_hash
from g10sim.trace.model import Trace
from g10sim.units import format_bytes, parse_bytes

app = typer.Typer(help="Make, look at and check trace files.", no_args_is_help=True)
import_app = typer.Typer(help="Make a trace file from files of other tools.", no_args_is_help=True)
app.add_typer(import_app, name="import")
app.command()(pools)
app.command()(calibrate)
import_app.command()(kineto)
import_app.command()(chakra)

_BUCKETS_SECONDS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@import_app.command("gpg")
def import_published(
    directory: Annotated[Path, typer.Argument(help="Directory of kernels.config and tensors.config.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Trace file to write (.g10t).")],
    model: Annotated[
        str | None,
        typer.Option(help="Name of the model, instead of the upper directory's.", show_default=False),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Batch size, instead of the directory's name.", show_default=False),
    ] = None,
) -> None:
    """Import a trace of the published G10 simulator, with its fault profiles where they lie beside it."""
    trace = import_gpg(directory, model, batch_size)
    save_trace(trace, output)
    _say(f"{output}: {_summary(trace)}")


@app.command()
def check(file: Annotated[Path, typer.Argument(help="Trace file.")]) -> None:
    """Check that a trace file is whole, unchanged since it was written and keeps every rule."""
    trace = load_trace(file)
    _say(f"{file}: good; {_summary(trace)}; sha256 {trace_hash(trace)}")


@app.command()
def info(
    file: Annotated[Path, typer.Argument(help="Trace file.")],
    system: Annotated[
        list[str] | None,
        typer.Option(help="Hardware preset or YAML file to compare with.", show_default="all presets"),
    ] = None,
    gpu_memory: Annotated[
        list[str] | None,
        typer.Option(help="GPU memory to compare with, such as '40 GiB'.", show_default=False),
    ] = None,
) -> None:
    """Show footprint, working sets, lifetimes, and by how much the trace oversubscribes GPU memory."""
    trace = load_trace(file)
    memories = list(_memories(system, gpu_memory))
    console = Console()
    for table in (
        _overview(file, trace),
        _kinds(trace),
        _lifetimes(trace),
        _oversubscription(trace, memories),
    ):
        console.print(table)


def _say(text: str) -> None:
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def _summary(trace: Trace) -> str:
    size = f"{len(trace.kernels)} kernels, {len(trace.tensors)} tensors"
    footprint = rounded_bytes(footprint_bytes(trace))
    return f"{trace.model}, batch size {trace.batch_size}: {size}, footprint {footprint}"


def _memories(systems: list[str] | None, gpu_memories: list[str] | None) -> Iterable[tuple[str, int]]:
    if not systems and not gpu_memories:
        systems = list(system_names())
    for name in systems or ():
        yield name, load_system(name).gpu.memory
    for text in gpu_memories or ():
        try:
            size_bytes = parse_bytes(text)
        except ValueError as error:
            raise ConfigError(f"--gpu-memory: {error}") from None
        if size_bytes == 0:
            raise ConfigError(f"--gpu-memory: found {text!r}; allowed: more than zero")
        yield "", size_bytes


def _overview(file: Path, trace: Trace) -> Table:
    table = Table(title=escape(str(file)), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    live, needed = live_bytes(trace), working_set_bytes(trace)
    seconds = sum(kernel.duration for kernel in trace.kernels) / trace.ticks_per_second
    persistent = sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent)
    phases = Counter(kernel.phase.value for kernel in trace.kernels)
    rows = [
        ("model", f"{trace.model}, batch size {trace.batch_size}"),
        (
            "kernels",
            f"{len(trace.kernels)} ({', '.join(f'{count} {name}' for name, count in phases.items())})",
        ),
        ("compute time", rounded_seconds(seconds)),
        ("footprint (all tensors)", rounded_bytes(footprint_bytes(trace))),
        ("most alive at a time", _at_kernel(trace, live)),
        ("largest working set", _at_kernel(trace, needed)),
        ("median working set", rounded_bytes(int(np.median(needed)))),
        ("persistent tensors", rounded_bytes(persistent)),
        ("sha256", trace_hash(trace)),
        *((f"origin: {key}", value) for key, value in sorted(trace.origin.items())),
    ]
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    return table


def _at_kernel(trace: Trace, sizes_bytes: Integers) -> str:
    kernel = trace.kernels[int(sizes_bytes.argmax())]
    return f"{rounded_bytes(int(sizes_bytes[kernel.id]))} (at kernel {kernel.id}, {kernel.name})"


def _kinds(trace: Trace) -> Table:
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for tensor in trace.tensors:
        sizes[tensor.kind.value].append(tensor.size_bytes)
    table = Table("kind", "tensors", "together", "largest", title="Tensors", title_justify="left")
    for kind, found in sorted(sizes.items(), key=lambda item: -sum(item[1])):
        table.add_row(kind, str(len(found)), rounded_bytes(sum(found)), rounded_bytes(max(found)))
    return _right_aligned(table)


def _lifetimes(trace: Trace) -> Table:
    starts = kernel_starts(trace, trace.ticks_per_second)
    table = Table(
        "duration",
        "tensors living",
        "bytes",
        "inactive periods",
        "bytes",
        title="Lifetimes of tensors that are not persistent, and inactive periods of all",
        title_justify="left",
    )
    lives = [
        (live.tensor, int(starts[live.death] - starts[live.birth]))
        for live in live_ranges(trace)
        if not trace.tensors[live.tensor].persistent
    ]
    periods = [(period.tensor, period.cycles(starts)) for period in inactive_periods(trace)]
    names = [f"up to {limit * 1000:g} ms" for limit in _BUCKETS_SECONDS] + ["longer"]
    lived, unused = _histogram(trace, lives), _histogram(trace, periods)
    for bucket, (lives_here, periods_here) in enumerate(zip(lived, unused, strict=True)):
        table.add_row(names[bucket], *_count_and_bytes(lives_here), *_count_and_bytes(periods_here))
    return _right_aligned(table)


def _histogram(trace: Trace, durations: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Sizes of the tensors in each bucket, for pairs of (tensor, ticks)."""
    limits = [seconds * trace.ticks_per_second for seconds in _BUCKETS_SECONDS]
    buckets: list[list[int]] = [[] for _ in range(len(limits) + 1)]
    for tensor, ticks in durations:
        buckets[int(np.searchsorted(limits, ticks))].append(trace.tensors[tensor].size_bytes)
    return buckets


def _count_and_bytes(sizes: list[int]) -> tuple[str, str]:
    return str(len(sizes)), rounded_bytes(sum(sizes))


def _oversubscription(trace: Trace, memories: list[tuple[str, int]]) -> Table:
    footprint, peak = footprint_bytes(trace), peak_live_bytes(trace)
    needed = int(working_set_bytes(trace).max())
    table = Table("system", "GPU memory", "footprint / memory", "most alive / memory", "working sets")
    table.title = "Oversubscription"
    table.title_justify = "left"
    for name, size_bytes in memories:
        fits = "fit" if needed <= size_bytes else f"largest takes {needed / size_bytes:.2f} of it"
        shares = (f"{size / size_bytes:.2f}" for size in (footprint, peak))
        table.add_row(escape(name), format_bytes(size_bytes), *shares, fits)
    return _right_aligned(table)


def _right_aligned(table: Table) -> Table:
    for column in table.columns[1:]:
        column.justify = "right"
    return table
