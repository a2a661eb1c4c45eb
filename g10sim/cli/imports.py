"""``g10sim trace import kineto`` and ``chakra``: traces made of what PyTorch records about itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from g10sim.analysis.footprint import footprint_bytes
from g10sim.capture.gpu import load_gpu
from g10sim.capture.operator_kinds import KernelCost, OperatorClass
from g10sim.cli.output import say
from g10sim.cli.text import rounded_bytes
from g10sim.errors import ConfigError
from g10sim.importers.execution_trace import Price, import_execution_trace
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile
from g10sim.trace.format import save_trace
from g10sim.trace.model import Trace

Output = Annotated[Path, typer.Option("-o", "--output", help="Trace file to write (.g10t).")]
Model = Annotated[
    str | None, typer.Option(help="Name of the model, instead of the file's.", show_default=False)
]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples in the step; such files do not tell.")]


def kineto(
    file: Annotated[Path, typer.Argument(help="Profile (JSON, plain or .gz) with shapes and memory events.")],
    output: Output,
    model: Model = None,
    batch_size: BatchSize = 1,
) -> None:
    """Import the last step of a profile of PyTorch, as export_chrome_trace writes it."""
    _save(import_kineto(read_profile(file), model=model, batch_size=batch_size), output)


def chakra(
    file: Annotated[Path, typer.Argument(help="Execution trace (JSON, plain or .gz).")],
    output: Output,
    profile: Annotated[
        Path | None, typer.Option(help="Profile of the same run, for the times.", show_default=False)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Without a profile: GPU to price bytes on.", show_default=False)
    ] = None,
    model: Model = None,
    batch_size: BatchSize = 1,
) -> None:
    """Import the last step of an execution trace of PyTorch, as ExecutionTraceObserver writes it."""
    if (profile is None) == (gpu is None):
        found = "neither" if profile is None else "both"
        raise ConfigError(f"--profile, --gpu: found {found}; allowed: one of them, for the times")
    trace = import_execution_trace(
        file,
        profile=None if profile is None else read_profile(profile),
        price=None if gpu is None else _price(gpu),
        model=model,
        batch_size=batch_size,
    )
    _save(trace, output)


def _price(gpu: str) -> Price:
    timing = load_gpu(gpu)
    return lambda moved: timing.duration_ns(KernelCost("", OperatorClass.OTHER, moved_bytes=moved))


def _save(trace: Trace, output: Path) -> None:
    save_trace(trace, output)
    size = f"{len(trace.kernels)} kernels, {len(trace.tensors)} tensors"
    footprint = rounded_bytes(footprint_bytes(trace))
    say(f"{output}: {trace.model}, batch size {trace.batch_size}: {size}, footprint {footprint}")
