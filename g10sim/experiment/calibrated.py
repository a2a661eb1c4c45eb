"""Makes a GPU description of measured kernels, and compares its times with the measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g10sim.capture.gpu import NANOSECONDS_PER_SECOND, GpuTimingSpec, load_gpu, read_gpu
from g10sim.capture.operator_kinds import COMPUTING
from g10sim.config.document import Document
from g10sim.errors import ConfigError
from g10sim.experiment.calibration import Calibration, Fit, duration_text
from g10sim.experiment.published_kernels import MeasuredKernel, measured_kernels, published_traces
from g10sim.registry import choices_text, nearest

PUBLISHED = "the traces published with G10 (Zhang et al., MICRO 2023)"


@dataclass(frozen=True)
class MeasuredTrace:
    """A published trace: the sum of its kernels' times, and the kernels that are operators of PyTorch."""

    model: str
    batch_size: int
    seconds: float
    kernels: tuple[MeasuredKernel, ...]


@dataclass(frozen=True)
class Check:
    """Sum of the times of one measured trace: measured, and by the description."""

    model: str
    batch_size: int
    fitted: bool
    measured_seconds: float
    described_seconds: float

    @property
    def error(self) -> float:
        """Relative error of the description."""
        return self.described_seconds / self.measured_seconds - 1


@dataclass(frozen=True)
class Calibrated:
    """Data of a GPU description as in its YAML file, the same checked, and how well it fits."""

    data: dict[str, Any]
    gpu: GpuTimingSpec
    fit: Fit
    checks: tuple[Check, ...]


def read_published(reference: Path) -> tuple[MeasuredTrace, ...]:
    """Read all traces under ``traces/MODEL/BATCH``. Raises TraceError for what cannot be read."""
    return tuple(_measured(directory) for directory in published_traces(reference))


def _measured(directory: Path) -> MeasuredTrace:
    trace, kernels = measured_kernels(directory)
    ticks = sum(kernel.duration for kernel in trace.kernels)
    return MeasuredTrace(trace.model, trace.batch_size, ticks / trace.ticks_per_second, tuple(kernels))


def calibrate(traces: Sequence[MeasuredTrace], base: str, name: str, models: Sequence[str]) -> Calibrated:
    """Fit the description called ``base`` to the kernels of some models; check it on all.

    Raises ConfigError for an unknown model or GPU.
    """
    gpu = load_gpu(base)
    known = sorted({trace.model for trace in traces})
    if not models:
        raise ConfigError(f"--fit: found no model; allowed: {choices_text(known)}")
    for model in models:
        if model not in known:
            raise ConfigError(
                f"--fit: found unknown model '{model}'{nearest(model, known)}; allowed: {choices_text(known)}"
            )
    fit = Calibration(gpu, [kernel for one in traces if one.model in models for kernel in one.kernels]).fit()
    data = description(
        fit, base, name, f"measured kernels of {', '.join(sorted(models))} in {PUBLISHED}, float32"
    )
    calibrated = read_gpu(Document(data, name))
    checks = tuple(
        Check(
            trace.model,
            trace.batch_size,
            trace.model in models,
            trace.seconds,
            total_seconds(calibrated, trace.kernels),
        )
        for trace in traces
    )
    return Calibrated(data, calibrated, fit, checks)


def description(fit: Fit, base: str, name: str, source: str) -> dict[str, Any]:
    """Make the data of a GPU description that builds on a bundled one, with a source for every number."""
    tables: dict[str, dict[str, Any]] = {"compute_efficiency": {}, "bandwidth_efficiency": {}}
    for kind, share in fit.shares.items():
        tables["compute_efficiency" if kind in COMPUTING else "bandwidth_efficiency"][kind.value] = share
    tables["startup"] = {kind.value: duration_text(value) for kind, value in fit.startups.items()}
    tables["operators"] = {
        entry: refinement.model_dump(mode="json", exclude_none=True)
        for entry, refinement in fit.operators.items()
    }
    sources = {
        f"{table}.{key}": f"fit to {fit.counts[key]} {source}"
        for table, found in tables.items()
        for key in found
    }
    text = f"{load_gpu(base).description}, times as in {PUBLISHED}"
    return {"preset": base, "name": name, "description": text, **tables, "sources": sources}


def total_seconds(gpu: GpuTimingSpec, kernels: Iterable[MeasuredKernel]) -> float:
    """Sum the times that a description gives to kernels, in seconds. Raises ConfigError as the GPU does."""
    return sum(gpu.duration_ns(kernel.cost) for kernel in kernels) / NANOSECONDS_PER_SECOND
