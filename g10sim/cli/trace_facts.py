"""Facts of a trace's work for ``g10sim trace info``: parameters, throughput, sources of prices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np

from g10sim.analysis.footprint import footprint_bytes, live_bytes, peak_live_bytes, working_set_bytes
from g10sim.analysis.throughput import Throughput, known_gpu, throughput, utilisation
from g10sim.cli.output import show_table
from g10sim.display import rounded_bytes, rounded_seconds
from g10sim.grouping import grouped
from g10sim.importers.account import KEY, Account, account_of
from g10sim.trace.format import trace_hash
from g10sim.trace.model import TensorKind, Trace
from g10sim.trace.repetition import each
from g10sim.units import format_bytes

PRICED_COLUMNS = ("class of operators", "priced by", "kernels", "time", "of time", "of FLOPs", "of bytes")
MEMORY_COLUMNS = (
    *("system", "GPU memory", "footprint / memory", "most alive / memory"),
    *("nvidia-smi would show", "working sets"),
)
_PER_TERA = 1e12
_FORMATS = ("dtype", "autocast")
_MOST_SHOWN = 1000


def summary(trace: Trace) -> str:
    """Describe a trace in a few words."""
    size = f"{len(trace.kernels)} kernels, {len(trace.tensors)} tensors"
    footprint = rounded_bytes(footprint_bytes(trace))
    return f"{trace.model}, batch size {trace.batch_size}: {size}, footprint {footprint}"


def work_rows(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield names and values of a trace's work, as far as the trace tells."""
    work = throughput(trace)
    formats = [f"{name} {trace.origin[name]}" for name in _FORMATS if name in trace.origin]
    if formats:
        yield "formats", ", ".join(formats)
    if work.parameters is not None:
        yield "parameters", f"{work.parameters:,}"
        yield "bytes a parameter", _bytes_a_parameter(work)
    if work.seconds and trace.is_timed:
        yield "throughput", _rates(work)
    if count := max(each(trace.kernels, attrgetter("micro_batch")), default=0):
        yield "micro-batches", f"{count} for each update of the weights"
    if work.model_flops:
        again = f", and {_flops(work.recomputed_flops)} computed again" if work.recomputed_flops else ""
        yield "FLOPs of the model", _flops(work.model_flops) + again
    share, gpu = utilisation(trace) if trace.is_timed else None, known_gpu(trace)
    if share is not None and gpu is not None:
        yield "model FLOPs utilisation", f"{share:.1%} of {gpu.name}'s peak"


def _bytes_a_parameter(work: Throughput) -> str:
    per = work.bytes_per_parameter
    parts = f"{per[TensorKind.WEIGHT]:.2f} weights, {per[TensorKind.GRADIENT]:.2f} gradients"
    return f"{parts}, {per[TensorKind.OPTIMIZER_STATE]:.2f} optimizer, together {sum(per.values()):.2f}"


def _rates(work: Throughput) -> str:
    samples = f"{work.samples / work.seconds:,.1f} samples/s"
    return samples if work.tokens is None else f"{samples}, {work.tokens / work.seconds:,.1f} tokens/s"


def _flops(count: int) -> str:
    return f"{count / _PER_TERA:,.2f} TFLOP"


def priced_rows(trace: Trace) -> Iterator[tuple[str, ...]]:
    """Yield the classes of operators by time, with where their times come from and their shares."""
    classes = prices(trace)
    whole = sum(classes.values(), Counter[str]())
    for (name, source), sums in classes.items():
        shares = (f"{sums[key] / whole[key]:.1%}" if whole[key] else "-" for key in _PRICED[1:])
        time = rounded_seconds(sums["duration"] / trace.ticks_per_second)
        yield name, source, str(sums["kernels"]), time, *shares


def prices(trace: Trace) -> dict[tuple[str, str], Counter[str]]:
    """Return kernels, ticks, FLOPs and bytes by class of operators and source of times, the slowest first."""
    classes: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (name, source, *amounts), times in Counter(each(trace.kernels, _PRICE)).items():
        pairs = zip(_PRICED, (1, *amounts), strict=True)
        classes[name or "not told", source.value].update({key: times * amount for key, amount in pairs})
    return dict(sorted(classes.items(), key=lambda item: -item[1]["duration"]))


_PRICED = ("kernels", "duration", "flops", "moved_bytes")
_PRICE = attrgetter("operator_class", "time_source", *_PRICED[1:])


def kinds(trace: Trace) -> dict[str, tuple[int, int, int]]:
    """Return number, bytes together and bytes of the largest of tensors by kind, the most bytes first."""
    by_kind = grouped(each(trace.tensors, attrgetter("kind.value", "size_bytes")))
    found = {kind: (len(sizes), sum(sizes), max(sizes)) for kind, sizes in by_kind.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def facts(trace: Trace, memories: Sequence[tuple[str, int, int]], pool: int | None) -> dict[str, object]:
    """Return what ``trace info`` says in bytes, ticks and FLOPs; arguments are those of ``memory_rows``."""
    live, needed, work = live_bytes(trace), working_set_bytes(trace), throughput(trace)
    return {
        "model": trace.model,
        "batch_size": trace.batch_size,
        "sha256": trace_hash(trace),
        "ticks_per_second": trace.ticks_per_second,
        "kernels": Counter(each(trace.kernels, attrgetter("phase.value"))),
        "compute_seconds": work.seconds if trace.is_timed else None,
        "footprint_bytes": footprint_bytes(trace),
        "most_alive": {"bytes": int(live.max()), "kernel": int(live.argmax())},
        "caching_pool_bytes": pool,
        "largest_working_set": {"bytes": int(needed.max()), "kernel": int(needed.argmax())},
        "median_working_set_bytes": int(np.median(needed)),
        "parameters": work.parameters,
        "samples": work.samples,
        "tokens": work.tokens,
        "model_flops": work.model_flops,
        "recomputed_flops": work.recomputed_flops,
        "tensors": {
            kind: dict(zip(("tensors", "bytes", "largest_bytes"), found, strict=True))
            for kind, found in kinds(trace).items()
        },
        "kernel_times": [
            {"class": name, "priced_by": source, **sums} for (name, source), sums in prices(trace).items()
        ],
        "systems": [
            {
                "system": name,
                "gpu_memory_bytes": size,
                "process_bytes": None if pool is None else pool + beside,
            }
            for name, size, beside in memories
        ],
        "origin": dict(trace.origin),
    }


def memory_rows(
    trace: Trace, memories: Sequence[tuple[str, int, int]], pool: int | None
) -> Iterator[tuple[str, ...]]:
    """Yield a trace's bytes and memories of systems: name, bytes, and bytes that a process takes besides.

    ``pool`` is what a caching allocator holds, None where that is not known.
    """
    footprint, peak = footprint_bytes(trace), peak_live_bytes(trace)
    needed = int(working_set_bytes(trace).max())
    for name, size_bytes, beside in memories:
        process = "-" if pool is None else rounded_bytes(pool + beside)
        fits = "fit" if needed <= size_bytes else f"largest takes {needed / size_bytes:.2f} of it"
        shares = (f"{size / size_bytes:.2f}" for size in (footprint, peak))
        yield name, format_bytes(size_bytes), *shares, process, fits


def show_account(account: Account) -> None:
    """Write the tables of an account: device time by part, and bytes where the file records any."""
    if account.step_ns:
        times = ((row.part, f"{row.time_ns / 1000:,.3f}", row.share) for row in account.rows())
        show_table(("part",), ("us", "share"), times, title="Device time")
    if account.memory:
        rows = []
        for one in account.memory:
            sizes = map(rounded_bytes, (one.recorded_bytes, one.imported_bytes))
            rows.append((one.what, *sizes, f"{one.difference:+.1%}"))
        show_table(("bytes",), ("file", "trace", "difference"), rows, title="Memory")


def origin_rows(trace: Trace) -> list[tuple[str, str]]:
    """Return what a trace says of its making, long texts (tokens of every expert) cut.

    The account of an import has its own tables.
    """
    left_out = KEY if account_of(trace) is not None else None
    told = ((key, value) for key, value in sorted(trace.origin.items()) if key != left_out)
    return [(f"origin: {key}", _cut(value)) for key, value in told]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"
