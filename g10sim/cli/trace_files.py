"""``g10sim trace export``, ``models``, and commands that write another trace."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from g10sim.analysis.footprint import live_bytes_by_kind, peak_live_bytes, visited_weight_bytes
from g10sim.analysis.gpus import load_gpu
from g10sim.analysis.kernel_times import retimed
from g10sim.capture.known_models import known_models
from g10sim.cli.options import TraceFile, TraceOutput, names_in, output_to
from g10sim.cli.output import say, show_table
from g10sim.display import rounded_bytes, rounded_seconds
from g10sim.errors import ConfigError, TraceError
from g10sim.files import writing
from g10sim.trace.batches import block_of
from g10sim.trace.chakra import save_chakra
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import TensorKind, Trace
from g10sim.trace.order import delayed_optimizer
from g10sim.trace.order import vertical as by_block
from g10sim.trace.pipeline import pipeline_stages
from g10sim.trace.placing import on_cpu
from g10sim.trace.repetition import each

_STAGE_FACTS = "kernels", "computing", "footprint"

export_app = typer.Typer(help="Write a trace file in the form of other tools.", no_args_is_help=True)


@export_app.command()
def chakra(file: TraceFile, output: Annotated[Path, output_to("File to write (.et).")]) -> None:
    """Write a trace as a Chakra execution trace in protobuf."""
    trace = load_trace(file)
    save_chakra(trace, output)
    say(f"{output}: {len(trace.kernels)} nodes")


def reorder(
    file: TraceFile,
    output: TraceOutput,
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
    file: TraceFile,
    output: TraceOutput,
    layers: Annotated[str, Option(help="Layers, such as 0-23 or 5: the first number in a module's path.")],
    modules: Annotated[
        str,
        Option(help="Other modules, comma-separated: parts of paths, such as lm_head.", show_default="none"),
    ] = "",
    device: Annotated[Literal["cpu"], Option(help="Processor that runs them.")] = "cpu",
) -> None:
    """Write a captured trace with some layers on the CPU, as fast as it reads and writes their data."""
    first, _, last = layers.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and int(first) <= int(last or first)):
        raise ConfigError(f"--layers: found '{layers}'; allowed: a number, or two such as 0-23")
    numbers = range(int(first), int(last or first) + 1)
    trace = on_cpu(load_trace(file), numbers, str(file), modules=names_in(modules))
    save_trace(trace, output)
    say(f"{output}: {len(trace.cpu_kernels)} of {len(trace.kernels)} kernels on the {device.upper()}")


def retime(
    file: TraceFile,
    output: TraceOutput,
    gpu: Annotated[str, Option(help="GPU whose kernel times are modelled: a name, or a YAML file.")],
) -> None:
    """Write a captured trace with the kernel times of another GPU: no capture, no PyTorch."""
    given = load_trace(file)
    found = load_gpu(gpu)
    trace = retimed(given, found, str(file))
    save_trace(trace, output)
    before, after = (each(one.kernels, attrgetter("duration")) for one in (given, trace))
    was = rounded_seconds(sum(before) / given.ticks_per_second)
    say(
        f"{output}: {len(trace.kernels)} kernels, {rounded_seconds(sum(after) / trace.ticks_per_second)} on "
        f"{found.name} (before: {was} on {given.origin.get('device', given.origin.get('gpu', 'another'))})"
    )


def stages(
    file: TraceFile,
    output: Annotated[Path, output_to("Directory to write stage0.g10t and so on in.")],
    begin: Annotated[
        list[str], Option("--begin", help="Block that a stage after the first begins with; once for each.")
    ],
) -> None:
    """Write the stages of a pipeline, a trace for each GPU, with micro-batches in 1F1B order."""
    found = pipeline_stages(load_trace(file), begin, str(file))
    with writing(output, TraceError):
        output.mkdir(parents=True, exist_ok=True)
    for number, trace in enumerate(found):
        path = output / f"stage{number}.g10t"
        save_trace(trace, path)
        sent = sum(kernel.moved_bytes for kernel in trace.link_kernels if kernel.inputs)
        facts = ", ".join(
            f"{what} {value}" for what, value in trace.display().items() if what in _STAGE_FACTS
        )
        say(f"{path}: {facts}, sends {rounded_bytes(sent)}")


def block(
    file: TraceFile,
    output: TraceOutput,
    batches: Annotated[int, Option(min=2, help="Batches that share the weights.")],
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
