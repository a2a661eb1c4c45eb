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


def calibrate(reference: Path, base: str, name: str, models: Sequence[str]) -> Calibrated:
    """Fit the description called ``base`` to the published kernels of some models; check it on all.

    Raises ConfigError for an unknown model or GPU, TraceError for traces that cannot be read.
    """
    gpu = load_gpu(base)
    traces = [measured_kernels(directory) for directory in published_traces(reference)]
    known = sorted({trace.model for trace, _ in traces})
    for model in models:
        if model not in known:
            raise ConfigError(
                f"--fit: found unknown model '{model}'{nearest(model, known)}; allowed: {choices_text(known)}"
            )
    fit = Calibration(
        gpu, [kernel for _, kernels in traces for kernel in kernels if kernel.model in models]
    ).fit()
    chosen = ", ".join(sorted(models))
    data = description(fit, base, name, f"measured kernels of {chosen} in {PUBLISHED}, float32")
    calibrated = read_gpu(Document(data, name))
    checks = tuple(
        Check(
            trace.model,
            trace.batch_size,
            trace.model in models,
            sum(kernel.duration for kernel in trace.kernels) / trace.ticks_per_second,
            total_seconds(calibrated, kernels),
        )
        for trace, kernels in traces
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
