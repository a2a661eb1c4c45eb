"""``g10sim trace capture`` and ``recapture``: traces of PyTorch steps, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from g10sim.analysis.footprint import footprint_bytes, peak_live_bytes
from g10sim.capture.gpu import GpuTimingSpec, load_gpu
from g10sim.capture.manifest import (
    MANIFEST,
    Entry,
    Manifest,
    described,
    other_versions,
    read_manifest,
    write_manifest,
)
from g10sim.capture.options import Attention, Autocast, Dtype, Optimizer, OptimizerForm
from g10sim.cli.options import TraceOutput
from g10sim.cli.output import say, show_table, warn
from g10sim.config.problems import check_choice
from g10sim.errors import ConfigError, TraceError
from g10sim.trace.format import save_trace
from g10sim.trace.model import TimeSource, Trace
from g10sim.units import format_bytes

_MS_PER_SECOND = 1000
_GIB = 2**30
_MUCH = 0.01
"""Share of bytes or time that operators of unknown cost may have without a warning."""
_NEEDS_A_GPU = "left: measured on a GPU"


def capture(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="hf:NAME, timm:NAME, torchvision:NAME, or module:function, which returns (model, inputs).",
        ),
    ],
    output: TraceOutput,
    gpu: Annotated[str, typer.Option(help="GPU whose kernel times are modelled: a name, or a YAML file.")],
    batch_size: Annotated[int | None, typer.Option(help="Samples in a step.", show_default="8")] = None,
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens in a sample.", show_default="512, or the model's most")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Height and width of an image in pixels.", show_default="the model's")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set a key of an hf: model's configuration, such as hidden_size=64.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Format of weights and activations.")] = "float32",
    autocast: Annotated[
        Autocast | None,
        typer.Option(help="Mixed precision: weights in float32, products cast to this.", show_default="none"),
    ] = None,
    master_weights: Annotated[
        bool,
        typer.Option("--master-weights", help="The optimizer updates float32 copies of 16-bit weights."),
    ] = False,
    optimizer: Annotated[
        Optimizer | None, typer.Option(help="With PyTorch's settings.", show_default="adamw")
    ] = None,
    optimizer_form: Annotated[
        OptimizerForm | None,
        typer.Option(help="One kernel for all operations, or one for each.", show_default="fused"),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd.", show_default="0")] = None,
    attention: Annotated[Attention, typer.Option(help="How attention runs.")] = "fused",
    activation_checkpointing: Annotated[
        bool,
        typer.Option(
            "--activation-checkpointing", help="Keep inputs of blocks only, and run blocks again in backward."
        ),
    ] = False,
    cudnn_pooling: Annotated[
        bool,
        typer.Option("--cudnn-pooling", help="Max pooling keeps no indices, its gradient reads its output."),
    ] = False,
    inference: Annotated[
        bool, typer.Option("--inference", help="A forward pass in evaluation mode, without gradients.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps in the trace, one after the other.")] = 1,
    workspace: Annotated[
        str | None,
        typer.Option(help="Scratch space of each product, such as '8 MiB'.", show_default="none"),
    ] = None,
    routing: Annotated[
        str | None,
        typer.Option(
            help="Experts of tokens: uniform, zipf:EXPONENT, grouped, or a file.",
            show_default="uniform for hf:, none for one's own",
        ),
    ] = None,
    routing_seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of a routing that is drawn.", show_default="0")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the times on the CUDA device of this computer.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse a step in which operators of unknown cost are more than 1% of bytes or time.",
        ),
    ] = False,
) -> None:
    """Capture a step of a PyTorch model: kernels, tensors, and times modelled for a GPU."""
    from g10sim.capture.source import capture_source

    timing = load_gpu(gpu)
    trace = capture_source(
        source,
        gpu=gpu,
        batch_size=batch_size,
        seq_len=seq_len,
        image_size=image_size,
        settings=settings or (),
        dtype=dtype,
        autocast=autocast,
        master_weights=master_weights,
        optimizer=optimizer,
        optimizer_form=optimizer_form,
        momentum=momentum,
        attention=attention,
        activation_checkpointing=activation_checkpointing,
        cudnn_pooling=cudnn_pooling,
        inference=inference,
        steps=steps,
        workspace=workspace,
        routing=routing,
        routing_seed=routing_seed,
        measure=measure,
    )
    unpriced = _priced_by_bytes(trace)
    if strict and unpriced is not None and unpriced.is_much:
        raise TraceError(
            f"{source}: found operators of unknown cost: {unpriced}; "
            f"allowed with --strict: at most {_MUCH:.0%}"
        )
    save_trace(trace, output)
    _report(trace, timing, output)


@dataclass(frozen=True, slots=True)
class _PricedByBytes:
    """Operators without a cost, and their shares of a trace's moved bytes and of its time."""

    names: str
    of_bytes: float
    of_time: float

    @property
    def is_much(self) -> bool:
        """Tell whether the shares are more than a trace's times can be trusted with."""
        return max(self.of_bytes, self.of_time) > _MUCH

    def __str__(self) -> str:
        return f"{self.names} ({self.of_bytes:.2%} of the bytes, {self.of_time:.2%} of the time or more)"


def _priced_by_bytes(trace: Trace) -> _PricedByBytes | None:
    """Return the operators of a trace that have no cost; None if all have one."""
    found = [kernel for kernel in trace.kernels if kernel.time_source is TimeSource.BYTES]
    if not found:
        return None
    moved = sum(kernel.moved_bytes for kernel in trace.kernels)
    ticks = sum(kernel.duration for kernel in trace.kernels)
    return _PricedByBytes(
        trace.origin["operators_priced_by_bytes"],
        sum(kernel.moved_bytes for kernel in found) / max(moved, 1),
        sum(kernel.duration for kernel in found) / max(ticks, 1),
    )


def _report(trace: Trace, gpu: GpuTimingSpec, output: Path) -> None:
    time_ms = sum(kernel.duration for kernel in trace.kernels) * _MS_PER_SECOND / trace.ticks_per_second
    say(
        f"{output}: {len(trace.kernels)} kernels, {len(trace.tensors)} tensors, "
        f"{time_ms:.1f} ms on {trace.origin.get('device', gpu.name)} ({trace.origin['time_source']})"
    )
    peak = peak_live_bytes(trace)
    say(
        f"footprint {footprint_bytes(trace) / _GIB:.2f} GiB, at most {peak / _GIB:.2f} GiB alive at a time, "
        f"{peak / gpu.memory:.2f} x its {format_bytes(gpu.memory)}"
    )
    if unpriced := _priced_by_bytes(trace):
        (warn if unpriced.is_much else say)(f"no cost known, priced by the bytes they move: {unpriced}")


def recapture(
    manifest: Annotated[Path, typer.Argument(help="MANIFEST.yaml of the traces.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Directory to write to.", show_default="the manifest's, over its files"
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Trace file to make again.", show_default="all")
    ] = None,
) -> None:
    """Make the traces of a manifest again, each with its command, and write what came of it."""
    found = read_manifest(manifest)
    wanted = _wanted(found, only)
    directory = manifest.parent if output is None else output
    if not directory.is_dir():
        raise ConfigError(f"-o: found '{directory}'; allowed: a directory that exists")
    command = typer.Typer()
    command.command()(capture)
    results, made = [], {}
    for entry in wanted:
        if entry.is_measured:
            results.append((entry.file, _NEEDS_A_GPU))
            continue
        path = directory / entry.file
        say(f"{entry.command} -o {path}")
        command([*entry.arguments, "-o", str(path)], standalone_mode=False)
        made[entry.file] = described(entry, path)
        results.append((entry.file, _comparison(entry, made[entry.file])))
    kept = [entry for entry in found.traces if output is None or entry.file in made]
    entries = tuple(made.get(entry.file, entry) for entry in kept)
    write_manifest(Manifest(traces=entries), directory / (manifest.name if output is None else MANIFEST))
    show_table(("trace", "result"), (), results)


def _wanted(manifest: Manifest, only: list[str] | None) -> tuple[Entry, ...]:
    names = [entry.file for entry in manifest.traces]
    for name in only or ():
        check_choice(name, names, "--only: found")
    return tuple(entry for entry in manifest.traces if not only or entry.file in only)


def _comparison(before: Entry, now: Entry) -> str:
    if not before.sha256:
        return "new"
    if before.sha256 == now.sha256:
        return "the same, byte for byte"
    others = other_versions(before)
    return f"changed ({'; '.join(others)})" if others else "changed"
