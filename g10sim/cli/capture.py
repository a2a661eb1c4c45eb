"""``g10sim trace capture`` and ``recapture``: traces of PyTorch steps, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from g10sim.analysis.footprint import footprint_bytes, peak_live_bytes
from g10sim.analysis.gpus import GpuTimingSpec, load_gpu
from g10sim.analysis.throughput import throughput
from g10sim.capture import manifest as manifests
from g10sim.capture.source import torchvision_misfit
from g10sim.cli import options
from g10sim.cli.output import say, show_table, warn
from g10sim.config.problems import among
from g10sim.display import rounded_bytes
from g10sim.errors import ConfigError, TraceError
from g10sim.trace.format import save_trace
from g10sim.trace.model import TimeSource, Trace
from g10sim.units import format_bytes

_MUCH = 0.01
"""Share of bytes or time that operators of unknown cost may have without a warning."""
_NEEDS_A_GPU = "left: measured on a GPU"


@options.with_step_options()
def capture(
    source: options.Source,
    output: options.TraceOutput,
    gpu: options.Gpu,
    measure: options.Measure = False,
    strict: options.Strict = False,
    **step: Any,
) -> None:
    """Capture a step of a PyTorch model: kernels, tensors, and times modelled for a GPU."""
    from g10sim.capture.source import capture_source

    trace = capture_source(source, gpu=gpu, measure=measure, **step)
    unpriced, is_much = _priced_by_bytes(trace)
    if strict and is_much:
        problem = f"{source}: found operators of unknown cost: {unpriced}"
        raise TraceError(f"{problem}; allowed with --strict: at most {_MUCH:.0%}")
    save_trace(trace, output)
    if source.startswith("torchvision:") and (misfit := torchvision_misfit()):
        warn(f"{misfit}: captured without torchvision's compiled operators, which classifiers do not use")
    _report(trace, load_gpu(gpu), output, unpriced, is_much=is_much)


def _priced_by_bytes(trace: Trace) -> tuple[str, bool]:
    """Return the operators of a trace without a cost, with their shares, and whether these are much.

    That is more than a trace's times can be trusted with. The text is empty if all have a cost.
    """
    found = [kernel for kernel in trace.kernels if kernel.time_source is TimeSource.BYTES]
    if not found:
        return "", False
    moved = sum(kernel.moved_bytes for kernel in trace.kernels)
    ticks = sum(kernel.duration for kernel in trace.kernels)
    of_bytes = sum(kernel.moved_bytes for kernel in found) / max(moved, 1)
    of_time = sum(kernel.duration for kernel in found) / max(ticks, 1)
    shares = f"{of_bytes:.2%} of the bytes, {of_time:.2%} of the time or more"
    return f"{trace.origin['operators_priced_by_bytes']} ({shares})", max(of_bytes, of_time) > _MUCH


def _report(trace: Trace, gpu: GpuTimingSpec, output: Path, unpriced: str, *, is_much: bool) -> None:
    time = f"{trace.display()['computing']} on {trace.origin.get('device', gpu.name)}"
    size = f"{len(trace.kernels)} kernels, {len(trace.tensors)} tensors"
    say(f"{output}: {size}, {time} ({trace.origin['time_source']})")
    footprint, peak = footprint_bytes(trace), peak_live_bytes(trace)
    share = f"{peak / gpu.memory:.2f} x its {format_bytes(gpu.memory)}"
    say(f"footprint {rounded_bytes(footprint)}, at most {rounded_bytes(peak)} alive at a time, {share}")
    if unpriced:
        (warn if is_much else say)(f"no cost known, priced by the bytes they move: {unpriced}")
    if "torch_compile" in trace.origin:
        say(f"torch.compile: {trace.origin['torch_compile']}")
    if first := trace.origin.get("inputs_of_the_first_step"):
        warn(f"steps differ: the first has inputs of {first}, captured is one with {trace.origin['inputs']}")
    say(f"captured: {_sizes(trace)}")


def _sizes(trace: Trace) -> str:
    """Return format, batch size and length of what was captured, as far as it is known."""
    work = throughput(trace)
    found = [trace.origin.get("dtype", "")]
    found += [f"autocast {trace.origin['autocast']}"] if "autocast" in trace.origin else []
    found.append(f"batch size {trace.batch_size}")
    if work.tokens is not None:
        found.append(f"length {work.tokens // work.samples}")
    found += [f"inputs {trace.origin['inputs']}"] if "inputs" in trace.origin else []
    return ", ".join(filter(None, found))


def recapture(
    manifest: Annotated[Path, Argument(help="MANIFEST.yaml of the traces.")],
    output: Annotated[
        Path | None, options.output_to("Directory to write to.", "the manifest's, over its files")
    ] = None,
    only: Annotated[list[str] | None, Option(help="Trace file to make again.", show_default="all")] = None,
    gpu: Annotated[str | None, Option(help="GPU in place of those of the commands, with -o.")] = None,
) -> None:
    """Make the traces of a manifest again, each with its command, and write what came of it."""
    found = manifests.read_manifest(manifest)
    if gpu is not None:
        if output is None or output.resolve() == manifest.parent.resolve():
            raise ConfigError("--gpu: found without -o; allowed: with -o and another directory")
        load_gpu(gpu)
        found = manifests.Manifest(traces=tuple(entry.on(gpu) for entry in found.traces))
    wanted = among(found.traces, [entry.file for entry in found.traces], only or (), "--only: found")
    directory = manifest.parent if output is None else output
    if not directory.is_dir():
        raise ConfigError(f"-o: found '{directory}'; allowed: a directory that exists")
    results, made = [], {}
    for entry in wanted:
        if entry.is_measured:
            results.append((entry.file, _NEEDS_A_GPU))
            continue
        path = directory / entry.file
        say(f"{entry.command} -o {path}")
        capture_words(entry.arguments, path)
        made[entry.file] = manifests.described(entry, path)
        results.append((entry.file, _comparison(entry, made[entry.file])))
    kept = [entry for entry in found.traces if output is None or entry.file in made]
    written = manifests.Manifest(traces=tuple(made.get(entry.file, entry) for entry in kept))
    name = manifest.name if output is None else manifests.MANIFEST
    manifests.write_manifest(written, directory / name)
    show_table(("trace", "result"), (), results)


def capture_words(words: Sequence[str], path: Path) -> None:
    """Capture a step as the words of ``g10sim trace capture`` say, except for ``-o``, which is the path."""
    command = typer.Typer()
    command.command()(capture)
    command([*words, "-o", str(path)], standalone_mode=False)


def _comparison(before: manifests.Entry, now: manifests.Entry) -> str:
    if not before.sha256:
        return "new"
    if before.sha256 == now.sha256:
        return "the same, byte for byte"
    others = manifests.other_versions(before)
    return f"changed ({'; '.join(others)})" if others else "changed"
