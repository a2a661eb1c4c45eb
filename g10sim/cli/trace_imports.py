"""``g10sim trace import``: make trace files from files of other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field
from typer import Argument, Option

from g10sim.analysis.gpus import load_gpu
from g10sim.capture.options import Otherwise, flag
from g10sim.cli.options import Command, TraceOutput, parameters, with_parameters
from g10sim.cli.output import say, warn
from g10sim.cli.trace_facts import show_account, summary
from g10sim.config.quantities import Spec
from g10sim.errors import ConfigError
from g10sim.importers.account import account_of
from g10sim.importers.execution_trace import Price, import_execution_trace
from g10sim.importers.gpg import import_gpg
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile
from g10sim.importers.nsight import import_nsight, read_report
from g10sim.importers.operations import ByHand
from g10sim.importers.snapshot import import_snapshot, read_snapshot, replay
from g10sim.trace.format import save_trace
from g10sim.trace.model import Trace
from g10sim.trace.work import KernelCost, OperatorClass

import_app = typer.Typer(help="Make a trace file from files of other tools.", no_args_is_help=True)
_LONGEST_RANGE, _MOST_NUMBERS = 20, 10**6


class _ImportOptions(Spec):
    """Options of imports, each an option of some commands."""

    model: str | None = None
    """Name of the model, instead of the file's."""
    batch_size: int = Field(default=1, ge=1)
    """Samples in the step; such files do not tell."""
    step: Annotated[int | None, Field(ge=0), Otherwise("the last whole one")] = None
    """Number of the step (ProfilerStep#N)."""
    device: str | None = None
    """Device, if several did work."""
    weights: Annotated[str, Otherwise("as they are used")] = ""
    """Numbers of tensors from before the step that last, such as 3,7-9."""
    inputs: Annotated[str, Otherwise("as they are used")] = ""
    """Numbers of tensors from before the step that are fed again."""
    gaps: Literal["drop", "keep"] = "drop"
    """Time in which the device waited: left out, or kept as idle time of its host."""
    partial: bool = False
    """Import even if more than 20 % of the step's device time is left out."""


def _with_options(*names: str) -> Callable[[Command], Command]:
    """Give a command options of imports, those named or all, instead of its ``**options``."""
    return with_parameters(*parameters(_ImportOptions, *names))


@import_app.command()
@_with_options("gaps", "partial", "model", "batch_size")
def nsight(
    file: Annotated[Path, Argument(help="Report, exported to SQLite.")],
    output: TraceOutput,
    device: Annotated[int | None, Option(min=0, help="Device, if several ran kernels.")] = None,
    process: Annotated[int | None, Option(min=0, help="Process, if several ran kernels.")] = None,
    **options: Any,
) -> None:
    """Import kernels and allocations of a report of Nsight Systems, and tell its copies."""
    report = read_report(file, device, process)
    keep_gaps = options.pop("gaps") == "keep"
    _save(import_nsight(report, keep_gaps=keep_gaps, **options), output)
    for copies in report.copies:
        if copies.duration_ns:  # bytes a nanosecond are gigabytes a second
            rate = f", {copies.size_bytes / copies.duration_ns:.2f} GB/s while copying"
            say(f"{copies.direction}: {copies.count} copies, {copies.size_bytes} bytes{rate}")


@import_app.command()
@_with_options()
def kineto(
    file: Annotated[Path, Argument(help="Profile (JSON, plain or .gz) with shapes and memory events.")],
    output: TraceOutput,
    process: Annotated[str | None, Option(help="Process, if several are in the file.")] = None,
    **options: Any,
) -> None:
    """Import a step of a profile of PyTorch, as export_chrome_trace writes it."""
    _save(import_kineto(read_profile(file), process=process, **_of_steps(options)), output)


@import_app.command()
@_with_options()
def chakra(
    file: Annotated[Path, Argument(help="Execution trace (JSON, plain or .gz).")],
    output: TraceOutput,
    profile: Annotated[Path | None, Option(help="Profile of the same run, for the times.")] = None,
    gpu: Annotated[str | None, Option(help="Without a profile: GPU to price bytes on.")] = None,
    **options: Any,
) -> None:
    """Import a step of an execution trace of PyTorch, as ExecutionTraceObserver writes it."""
    if (profile is None) == (gpu is None):
        found = "neither" if profile is None else "both"
        raise ConfigError(f"--profile, --gpu: found {found}; allowed: one of them, for the times")
    trace = import_execution_trace(
        file,
        profile=None if profile is None else read_profile(profile),
        price=None if gpu is None else _price(gpu),
        **_of_steps(options),
    )
    _save(trace, output)


def _of_steps(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of imports as the functions take them that choose a step."""
    by_hand = ByHand(*(_numbers(flag(name), options.pop(name)) for name in ("weights", "inputs")))
    return {"keep_gaps": options.pop("gaps") == "keep", "by_hand": by_hand, **options}


def _numbers(option: str, text: str) -> frozenset[int]:
    """Read numbers of tensors, such as 3,7-9. Raises ConfigError."""
    found: set[int] = set()
    for part in filter(None, (one.strip() for one in text.split(","))):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and len(part) <= _LONGEST_RANGE):
            raise ConfigError(f"{option}: found '{part}'; allowed: numbers of tensors, such as 3,7-9")
        found.update(range(int(first), min(int(last or first), int(first) + _MOST_NUMBERS) + 1))
    return frozenset(found)


@import_app.command()
@_with_options("model", "batch_size")
def snapshot(
    file: Annotated[Path, Argument(help="Snapshot (pickle, or exported as JSON).")],
    output: TraceOutput,
    device: Annotated[int | None, Option(min=0, help="Device, if several have a history.")] = None,
    **options: Any,
) -> None:
    """Import the lifetimes of a memory snapshot of PyTorch, and replay it through g10sim's caching pool."""
    found = read_snapshot(file, device)
    result = replay(found)
    _save(import_snapshot(found, **options), output)
    for what, peak, end in (
        ("recorded", result.recorded_peak_bytes, result.recorded_end_bytes),
        ("replayed", result.peak_bytes, result.end_bytes),
    ):
        say(f"{what}: at most {peak} bytes reserved, {end} at the end")
    if found.is_expandable:
        say("recorded with expandable segments, replayed without them")
    if result.blocks_before:
        say(f"{result.blocks_before} blocks are from before the history: where they lay is not recorded")


@import_app.command("gpg")
def import_published(
    directory: Annotated[Path, Argument(help="Directory of kernels.config and tensors.config.")],
    output: TraceOutput,
    model: Annotated[str | None, Option(help="Name of the model, instead of the upper directory's.")] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Batch size, instead of the directory's name.")
    ] = None,
) -> None:
    """Import a trace of the published G10 simulator, with its fault profiles where they lie next to it."""
    _save(import_gpg(directory, model, batch_size), output)


def _price(gpu: str) -> Price:
    timing = load_gpu(gpu)
    return lambda moved: timing.duration_ns(KernelCost("", OperatorClass.OTHER, moved_bytes=moved))


def _save(trace: Trace, output: Path) -> None:
    """Write an imported trace and say what is in it, with its account and every warning of that."""
    save_trace(trace, output)
    say(f"{output}: {summary(trace)}")
    if account := account_of(trace):
        show_account(account)
        for fact in account.facts:
            say(fact)
        for text in account.warnings():
            warn(f"{output}: {text}")
