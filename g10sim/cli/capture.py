"""``g10sim trace capture``: a trace of a PyTorch step, without a GPU."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from g10sim.analysis.footprint import footprint_bytes, peak_live_bytes
from g10sim.capture.gpu import GpuTimingSpec, load_gpu
from g10sim.trace.format import save_trace
from g10sim.trace.model import Trace
from g10sim.units import format_bytes

_MS_PER_SECOND = 1000
_GIB = 2**30


class Dtype(StrEnum):
    """Number formats of weights and activations."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"


class Autocast(StrEnum):
    """Number formats that mixed precision casts products to."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Optimizer(StrEnum):
    """Optimizers, with PyTorch's default settings."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class OptimizerForm(StrEnum):
    """Forms of an optimizer in PyTorch: one kernel for all its operations, or one for each."""

    FUSED = "fused"
    FOREACH = "foreach"


class Attention(StrEnum):
    """How attention runs: one fused kernel, or scores and softmax as tensors of their own."""

    FUSED = "fused"
    EAGER = "eager"


def capture(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="hf:NAME, timm:NAME, torchvision:NAME, or module:function, which returns (model, inputs).",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Trace file to write (.g10t).")],
    gpu: Annotated[str, typer.Option(help="GPU whose kernel times are modelled: a name, or a YAML file.")],
    batch_size: Annotated[int | None, typer.Option(help="Samples in a step.", show_default="8")] = None,
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens in a sample.", show_default="512, or the model's most")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Height and width of an image in pixels.", show_default="the model's")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Format of weights and activations.")] = Dtype.FLOAT32,
    autocast: Annotated[
        Autocast | None,
        typer.Option(help="Mixed precision: weights in float32, products cast to this.", show_default="none"),
    ] = None,
    optimizer: Annotated[
        Optimizer | None, typer.Option(help="With PyTorch's settings.", show_default="adamw")
    ] = None,
    optimizer_form: Annotated[
        OptimizerForm | None,
        typer.Option(help="One kernel for all operations, or one for each.", show_default="fused"),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd.", show_default="0")] = None,
    attention: Annotated[Attention, typer.Option(help="How attention runs.")] = Attention.FUSED,
    activation_checkpointing: Annotated[
        bool,
        typer.Option(
            "--activation-checkpointing", help="Keep inputs of blocks only, and run blocks again in backward."
        ),
    ] = False,
    inference: Annotated[
        bool, typer.Option("--inference", help="A forward pass in evaluation mode, without gradients.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps in the trace, one after the other.")] = 1,
    workspace: Annotated[
        str | None,
        typer.Option(help="Scratch space of each product, such as '8 MiB'.", show_default="none"),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the times on the CUDA device of this computer.")
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
        dtype=dtype.value,
        autocast=None if autocast is None else autocast.value,
        optimizer=None if optimizer is None else optimizer.value,
        optimizer_form=None if optimizer_form is None else optimizer_form.value,
        momentum=momentum,
        attention=attention.value,
        activation_checkpointing=activation_checkpointing,
        inference=inference,
        steps=steps,
        workspace=workspace,
        measure=measure,
    )
    save_trace(trace, output)
    _report(trace, timing, output)


def _report(trace: Trace, gpu: GpuTimingSpec, output: Path) -> None:
    console = Console(soft_wrap=True, highlight=False)
    time_ms = sum(kernel.duration for kernel in trace.kernels) * _MS_PER_SECOND / trace.ticks_per_second
    console.print(
        f"{escape(str(output))}: {len(trace.kernels)} kernels, {len(trace.tensors)} tensors, "
        f"{time_ms:.1f} ms on {trace.origin.get('device', gpu.name)} ({trace.origin['time_source']})"
    )
    peak = peak_live_bytes(trace)
    console.print(
        f"footprint {footprint_bytes(trace) / _GIB:.2f} GiB, at most {peak / _GIB:.2f} GiB alive at a time, "
        f"{peak / gpu.memory:.2f} x its {format_bytes(gpu.memory)}"
    )
    unpriced = trace.origin.get("operators_priced_by_bytes")
    if unpriced:
        console.print(f"no cost known, priced by the bytes they move: {escape(unpriced)}")
