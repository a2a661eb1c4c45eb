"""``g10sim trace import``, ``export`` and ``models``, and commands that make another trace of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field
from typer import Argument, Option

from g10sim.analysis.footprint import live_bytes_by_kind, peak_live_bytes, visited_weight_bytes
from g10sim.analysis.gpus import load_gpu, retimed
from g10sim.capture.known_models import known_models
from g10sim.capture.options import Otherwise, flag
from g10sim.cli import options
from g10sim.cli.output import say, show_table, warn
from g10sim.cli.trace_facts import show_account, summary
from g10sim.config.quantities import Spec
from g10sim.display import rounded_bytes
from g10sim.errors import ConfigError, TraceError
from g10sim.files import writing
from g10sim.importers.account import account_of
from g10sim.importers.execution_trace import import_execution_trace
from g10sim.importers.gpg import import_gpg
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile
from g10sim.importers.nsight import import_nsight, read_report
from g10sim.importers.operations import ByHand
from g10sim.importers.snapshot import import_snapshot, read_snapshot, replay
from g10sim.trace.batches import block_of, on_cpu
from g10sim.trace.chakra import save_chakra
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import TensorKind, Trace
from g10sim.trace.order import delayed_optimizer
from g10sim.trace.order import vertical as by_block
from g10sim.trace.pipeline import pipeline_stages

import_app = typer.Typer(help="Make a trace file from files of other tools.", no_args_is_help=True)
_LONGEST_RANGE, _MOST_NUMBERS = 20, 10**6
_STAGE_FACTS = "kernels", "computing", "footprint"

export_app = typer.Typer(help="Write a trace file in the form of other tools.", no_args_is_help=True)


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


def _with_options(*names: str) -> Callable[[options.Command], options.Command]:
    """Give a command options of imports, those named or all, instead of its ``**options``."""
    return options.with_parameters(*options.parameters(_ImportOptions, *names))


@import_app.command()
@_with_options("gaps", "partial", "model", "batch_size")
def nsight(
    file: Annotated[Path, Argument(help="Report, exported to SQLite.")],
    output: options.TraceOutput,
    device: Annotated[int | None, Option(min=0, help="Device, if several ran kernels.")] = None,
    process: Annotated[int | None, Option(min=0, help="Process, if several ran kernels.")] = None,
    **given: Any,
) -> None:
    """Import kernels and allocations of a report of Nsight Systems, and tell its copies."""
    report = read_report(file, device, process)
    keep_gaps = given.pop("gaps") == "keep"
    _save(import_nsight(report, keep_gaps=keep_gaps, **given), output)
    for copies in report.copies:
        if copies.duration_ns:  # bytes a nanosecond are gigabytes a second
            rate = f", {copies.size_bytes / copies.duration_ns:.2f} GB/s while copying"
            say(f"{copies.direction}: {copies.count} copies, {copies.size_bytes} bytes{rate}")


@import_app.command()
@_with_options()
def kineto(
    file: Annotated[Path, Argument(help="Profile (JSON, plain or .gz) with shapes and memory events.")],
    output: options.TraceOutput,
    process: Annotated[str | None, Option(help="Process, if several are in the file.")] = None,
    **given: Any,
) -> None:
    """Import a step of a profile of PyTorch, as export_chrome_trace writes it."""
    _save(import_kineto(read_profile(file), process=process, **_of_steps(given)), output)


@import_app.command()
@_with_options()
def chakra(
    file: Annotated[Path, Argument(help="Execution trace (JSON, plain or .gz).")],
    output: options.TraceOutput,
    profile: Annotated[Path | None, Option(help="Profile of the same run, for the times.")] = None,
    gpu: Annotated[str | None, Option(help="Without a profile: GPU whose times kernels take.")] = None,
    **given: Any,
) -> None:
    """Import a step of an execution trace of PyTorch, as ExecutionTraceObserver writes it."""
    if (profile is None) == (gpu is None):
        found = "neither" if profile is None else "both"
        raise ConfigError(f"--profile, --gpu: found {found}; allowed: one of them, for the times")
    times = None if profile is None else read_profile(profile)
    price = None if gpu is None else load_gpu(gpu).duration_ns
    _save(import_execution_trace(file, profile=times, price=price, **_of_steps(given)), output)


def _of_steps(given: dict[str, Any]) -> dict[str, Any]:
    """Return options of imports as the functions take them that choose a step."""
    by_hand = ByHand(*(_numbers(flag(name), given.pop(name)) for name in ("weights", "inputs")))
    return {"keep_gaps": given.pop("gaps") == "keep", "by_hand": by_hand, **given}


def _numbers(option: str, text: str) -> frozenset[int]:
    """Read numbers of tensors, such as 3,7-9. Raises ConfigError."""
    found: set[int] = set()
    for part in filter(None, (one.strip() for one in text.split(","))):
        numbers = _range(part)
        if not numbers:
            raise ConfigError(f"{option}: found '{part}'; allowed: numbers of tensors, such as 3,7-9")
        found.update(numbers[: _MOST_NUMBERS + 1])
    return frozenset(found)


def _range(text: str) -> range:
    """Return the numbers that a text such as 5 or 0-23 stands for; none for any other text."""
    first, sign, last = text.partition("-")
    ends = first, last if sign else first
    is_range = all(map(str.isdecimal, ends)) and len(text) <= _LONGEST_RANGE
    return range(int(ends[0]), int(ends[1]) + 1) if is_range else range(0)


@import_app.command()
@_with_options("model", "batch_size")
def snapshot(
    file: Annotated[Path, Argument(help="Snapshot (pickle, or exported as JSON).")],
    output: options.TraceOutput,
    device: Annotated[int | None, Option(min=0, help="Device, if several have a history.")] = None,
    **given: Any,
) -> None:
    """Import the lifetimes of a memory snapshot of PyTorch, and replay it through g10sim's caching pool."""
    found = read_snapshot(file, device)
    result = replay(found)
    _save(import_snapshot(found, **given), output)
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
    output: options.TraceOutput,
    model: Annotated[str | None, Option(help="Name of the model, instead of the upper directory's.")] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Batch size, instead of the directory's name.")
    ] = None,
) -> None:
    """Import a trace of the published G10 simulator, with its fault profiles where they lie next to it."""
    _save(import_gpg(directory, model, batch_size), output)


def _save(trace: Trace, output: Path) -> None:
    """Write an imported trace and say what is in it, with its account and every warning of that."""
    save_trace(trace, output)
    say(f"{output}: {summary(trace)}")
    if account := account_of(trace):
        show_account(account)
        say(*account.facts)
        for text in account.warnings():
            warn(f"{output}: {text}")


@export_app.command("chakra")
def export_chakra(
    file: options.TraceFile, output: Annotated[Path, options.output_to("File to write (.et).")]
) -> None:
    """Write a trace as a Chakra execution trace in protobuf."""
    trace = load_trace(file)
    save_chakra(trace, output)
    say(f"{output}: {len(trace.kernels)} nodes")


def reorder(
    file: options.TraceFile,
    output: options.TraceOutput,
    vertical: Annotated[
        bool, Option("--vertical", help="Run all micro-batches of a block before the next block.")
    ] = False,
    delay_optimizer: Annotated[
        bool, Option("--delay-optimizer", help="Update weights right before they are needed again.")
    ] = False,
) -> None:
    """Write a training step with its kernels in another order that computes the same."""
    if not (vertical or delay_optimizer):
        raise ConfigError("--vertical, --delay-optimizer: found neither; allowed: one of them or both")
    given = load_trace(file)
    trace = by_block(given, str(file)) if vertical else given
    trace = delayed_optimizer(trace, str(file)) if delay_optimizer else trace
    save_trace(trace, output)
    say(f"{output}: {len(trace.kernels)} kernels, {len(trace.tensors)} tensors")
    for what, measure in (
        ("most alive at a time", peak_live_bytes),
        ("most activations alive at a time", _peak_activations),
        ("weights to bring in, with those of one block kept", visited_weight_bytes),
    ):
        before, after = (rounded_bytes(measure(one)) for one in (given, trace))
        say(f"{what}: {after} (before: {before})")


def place(
    file: options.TraceFile,
    output: options.TraceOutput,
    layers: Annotated[str, Option(help="Layers, such as 0-23 or 5: the first number in a module's path.")],
    modules: Annotated[
        str,
        Option(help="Other modules, comma-separated: parts of paths, such as lm_head.", show_default="none"),
    ] = "",
    device: Annotated[Literal["cpu"], Option(help="Processor that runs them.")] = "cpu",
) -> None:
    """Write a captured trace with some layers on the CPU, as fast as it reads and writes their data."""
    numbers = _range(layers)
    if not numbers:
        raise ConfigError(f"--layers: found '{layers}'; allowed: a number, or two such as 0-23")
    others = options.names_in("--modules", modules or None)
    trace = on_cpu(load_trace(file), numbers, str(file), modules=others)
    save_trace(trace, output)
    say(f"{output}: {len(trace.cpu_kernels)} of {len(trace.kernels)} kernels on the {device.upper()}")


def retime(file: options.TraceFile, output: options.TraceOutput, gpu: options.Gpu) -> None:
    """Write a captured trace with the kernel times of another GPU: no capture, no PyTorch."""
    given = load_trace(file)
    found = load_gpu(gpu)
    trace = retimed(given, found, str(file))
    save_trace(trace, output)
    was, now = (one.display()["computing"] for one in (given, trace))
    former = given.origin.get("device", given.origin.get("gpu", "another"))
    say(f"{output}: {len(trace.kernels)} kernels, {now} on {found.name} (before: {was} on {former})")


def stages(
    file: options.TraceFile,
    output: Annotated[Path, options.output_to("Directory to write stage0.g10t and so on in.")],
    begin: Annotated[
        list[str], Option("--begin", help="Block that a stage after the first begins with; once for each.")
    ],
) -> None:
    """Write the stages of a pipeline, a trace for each GPU, with micro-batches in 1F1B order."""
    found = pipeline_stages(load_trace(file), begin, str(file))
    for number, trace in enumerate(found):  # all of them or none are written
        check_trace(trace, f"{file}: stage {number}")
    with writing(output, TraceError):
        output.mkdir(parents=True, exist_ok=True)
    for number, trace in enumerate(found):
        path = output / f"stage{number}.g10t"
        save_trace(trace, path)
        sent = sum(kernel.moved_bytes for kernel in trace.link_kernels if kernel.inputs)
        shown = trace.display()
        facts = ", ".join(f"{what} {shown[what]}" for what in shown if what in _STAGE_FACTS)
        say(f"{path}: {facts}, sends {rounded_bytes(sent)}")


def block(
    file: options.TraceFile,
    output: options.TraceOutput,
    batches: Annotated[int, Option(min=2, max=1024, help="Batches that share the weights.")],
) -> None:
    """Write the inference of several batches, all of which run a layer before the next one."""
    given = load_trace(file)
    trace = block_of(given, batches, str(file))
    save_trace(trace, output)
    say(f"{output}: {len(trace.kernels)} kernels, {len(trace.tensors)} tensors")


def _peak_activations(trace: Trace) -> int:
    return int(max(live_bytes_by_kind(trace).get(TensorKind.ACTIVATION, [0])))


def models() -> None:
    """List the models whose configurations `trace capture` knows by name."""
    rows = (
        (f"{source}:{name}", family.family, model.source, f"{model.parameters:,}" if model.parameters else "")
        for source, folder in (("hf", "models"), ("diffusers", "diffusion"))
        for name, (family, model) in known_models(folder).items()
    )
    show_table(("model", "family", "published at"), ("parameters",), rows)
