"""``g10sim trace``: make trace files from foreign ones, look at them, check them, fit kernel times."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table
from typer import Option

from g10sim.analysis.footprint import footprint_bytes, live_bytes, working_set_bytes
from g10sim.analysis.timeline import Integers, kernel_starts
from g10sim.analysis.vitality import each_inactive_period, live_ranges
from g10sim.analysis.work_check import check_work, unjudged
from g10sim.cli import trace_facts
from g10sim.cli.capture import capture, recapture
from g10sim.cli.options import Json, TraceFile, TraceFiles, output_to, sizes
from g10sim.cli.output import console, say, say_json, show_table, warn
from g10sim.cli.trace_imports import block, export_app, import_app, models, place, reorder, retime, stages
from g10sim.config.presets import load_system, system_names
from g10sim.display import rounded_bytes, rounded_seconds
from g10sim.files import write_csv
from g10sim.grouping import grouped
from g10sim.importers.account import account_of
from g10sim.results.pools import caching_pool_bytes, compare_pools
from g10sim.trace.check import cut_durations, untimed
from g10sim.trace.format import load_trace, trace_hash
from g10sim.trace.model import Trace

app = typer.Typer(help="Make, look at and check trace files.", no_args_is_help=True, add_completion=False)
app.add_typer(import_app, name="import")
app.add_typer(export_app, name="export")
for command in (capture, recapture, models, retime, reorder, place, stages, block):
    app.command()(command)

_SYSTEM_HELP = "Hardware preset or YAML file to compare with; may be repeated."
_GPU_MEMORY_HELP = "GPU memory to compare with, such as '40 GiB'; may be repeated."
_BUCKETS_SECONDS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@app.command()
def pools(
    files: TraceFiles,
    output: Annotated[Path | None, output_to("Write the table as CSV, in bytes.")] = None,
) -> None:
    """Let every memory pool serve the allocations of a trace: load, footprint and what SmartPool saves."""
    rows, records = [], []
    for file in files:
        trace = load_trace(file)
        first, *others = compare_pools(trace)
        for use in (first, *others):
            ratio, reduction = use.ratio, use.reduction(first)
            sizes_used = map(rounded_bytes, (use.load_bytes, use.footprint_bytes))
            name = file.stem if use is first else ""
            rows.append((name, use.pool, *sizes_used, f"{ratio:.4f}", f"{reduction:.2%}"))
            named = {"trace": str(file), "model": trace.model, "batch_size": trace.batch_size}
            records.append({**named, **asdict(use), "ratio": ratio, "reduction": reduction})
    if output is not None:
        write_csv(output, list(records[0]), records)
    figures = ("load", "footprint", "footprint / load", "less than the default pool")
    show_table(("trace", "pool"), figures, rows)
    if output is not None:
        say(f"table written to {output}")


@app.command()
def check(file: TraceFile) -> None:
    """Check that a trace file is whole, unchanged since it was written and keeps every rule."""
    trace = load_trace(file)
    check_work(trace, str(file))
    say(f"{file}: good; {trace_facts.summary(trace)}; sha256 {trace_hash(trace)}")
    if note := unjudged(trace):
        say(f"note: {note}")


@app.command()
def info(
    file: TraceFile,
    system: Annotated[list[str] | None, Option(help=_SYSTEM_HELP, show_default="all presets")] = None,
    gpu_memory: Annotated[list[str] | None, Option(help=_GPU_MEMORY_HELP)] = None,
    json: Json = False,
) -> None:
    """Show footprint, work, working sets, lifetimes, and by how much the trace oversubscribes GPU memory."""
    trace = load_trace(file)
    names = system or (() if gpu_memory else system_names())
    systems = {name: load_system(name) for name in names}
    memories = [(name, found.gpu.memory, found.gpu.beside_tensors) for name, found in systems.items()]
    memories += [("", size_bytes, 0) for size_bytes in sizes("--gpu-memory", gpu_memory or ())]
    pool = caching_pool_bytes(trace) if len(trace.kernels) <= _MOST_POOLED else None
    if json:
        say_json(trace_facts.facts(trace, memories, pool))
        return
    account = account_of(trace)
    console().print(_overview(file, trace, pool))
    if account is not None:
        trace_facts.show_account(account)
    by_kind = (
        (kind, str(count), rounded_bytes(together), rounded_bytes(largest))
        for kind, (count, together, largest) in trace_facts.kinds(trace).items()
    )
    for title, (name, *figures), rows in (
        ("Tensors", ("kind", "tensors", "together", "largest"), by_kind),
        ("Kernel times", trace_facts.PRICED_COLUMNS, trace_facts.priced_rows(trace)),
        (_LIFETIMES, _LIFETIME_COLUMNS, _lifetimes(trace)),
        ("Oversubscription", trace_facts.MEMORY_COLUMNS, trace_facts.memory_rows(trace, memories, pool)),
    ):
        say("")
        show_table((name,), figures, rows, title=title)
    durations = [kernel.duration for kernel in trace.kernels]
    clocks = sorted({found.gpu.clock for found in systems.values()})
    warnings = (cut_durations(durations, trace.ticks_per_second, clock) for clock in clocks)
    if warning := untimed(trace) or next(filter(None, warnings), ""):
        warn(f"{file}: {warning}")
    for text in [] if account is None else account.warnings():
        warn(f"{file}: {text}")


_MOST_POOLED = 100_000
"""Kernels of a trace whose allocations are replayed; more take minutes."""


def _overview(file: Path, trace: Trace, pool: int | None) -> Table:
    table = Table(title=escape(str(file)), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    live, needed = live_bytes(trace), working_set_bytes(trace)
    on_cpu = sum(kernel.duration for kernel in trace.cpu_kernels)
    on_gpu = sum(kernel.duration for kernel in trace.kernels) - on_cpu
    steps = sum(kernel.parameters for kernel in trace.cpu_kernels)
    seconds = on_gpu / trace.ticks_per_second
    persistent = sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent)
    phases = Counter(kernel.phase.value for kernel in trace.kernels)
    by_phase = ", ".join(f"{count} {name}" for name, count in phases.items())
    rows = [
        ("model", f"{trace.model}, batch size {trace.batch_size}"),
        ("kernels", f"{len(trace.kernels)} ({by_phase})"),
        ("compute time", rounded_seconds(seconds) if trace.is_timed else "not recorded"),
        *([("on the CPU", f"{rounded_seconds(on_cpu / trace.ticks_per_second)}")] if on_cpu else ()),
        *([("updated on the CPU", f"{steps:,} parameters")] if steps else ()),
        ("footprint (all tensors)", rounded_bytes(footprint_bytes(trace))),
        ("most alive at a time", _at_kernel(trace, live)),
        *([] if pool is None else [("in PyTorch's caching pool", f"at most {rounded_bytes(pool)}")]),
        ("largest working set", _at_kernel(trace, needed)),
        ("median working set", rounded_bytes(int(np.median(needed)))),
        ("persistent tensors", rounded_bytes(persistent)),
        *trace_facts.work_rows(trace),
        ("sha256", trace_hash(trace)),
        *trace_facts.origin_rows(trace),
    ]
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    return table


def _at_kernel(trace: Trace, sizes_bytes: Integers) -> str:
    kernel = trace.kernels[int(sizes_bytes.argmax())]
    where = f"{kernel.name}, {kernel.phase.value}{' of ' if kernel.layer else ''}{kernel.layer}"
    return f"{rounded_bytes(int(sizes_bytes[kernel.id]))} (at kernel {kernel.id}, {where})"


_LIFETIMES = "Lifetimes of tensors that are not persistent, and inactive periods of all"
_LIFETIME_COLUMNS = ("duration", "tensors living", "bytes", "inactive periods", "bytes")


def _lifetimes(trace: Trace) -> Iterator[tuple[str, ...]]:
    starts = kernel_starts(trace, trace.ticks_per_second)
    passing = (live for live in live_ranges(trace) if not trace.lasting[live.tensor])
    lives = ((live.tensor, int(starts[live.death] - starts[live.birth])) for live in passing)
    periods = ((period.tensor, period.cycles(starts)) for period in each_inactive_period(trace))
    names = [f"up to {limit * 1000:g} ms" for limit in _BUCKETS_SECONDS] + ["longer"]
    rows = zip(names, _histogram(trace, lives), _histogram(trace, periods), strict=True)
    return ((name, *lived, *unused) for name, lived, unused in rows)


def _histogram(trace: Trace, durations: Iterable[tuple[int, int]]) -> list[tuple[str, str]]:
    """Count and bytes of the tensors in each bucket, for pairs of (tensor, ticks)."""
    limits = [seconds * trace.ticks_per_second for seconds in _BUCKETS_SECONDS]
    sizes = ((bisect_left(limits, ticks), trace.tensors[tensor].size_bytes) for tensor, ticks in durations)
    found = grouped(sizes)
    buckets = (found.get(number, []) for number in range(len(limits) + 1))
    return [(str(len(bucket)), rounded_bytes(sum(bucket))) for bucket in buckets]
