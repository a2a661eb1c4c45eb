"""Fits a GPU description to measured kernels, and compares its times with the measured ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from g10sim.analysis.efficiency import PeakRate, Refinement
from g10sim.analysis.gpus import NANOSECONDS_PER_SECOND, GpuTimingSpec, load_gpu, read_gpu
from g10sim.config.document import Document
from g10sim.config.problems import check_choice
from g10sim.errors import ConfigError, choices_text
from g10sim.trace.model import Phase
from g10sim.trace.work import COMPUTING, KernelCost, OperatorClass
from g10sim.units import PICOSECONDS_PER_SECOND, format_duration, format_rate
from tools.published_kernels import MeasuredKernel, MeasuredTrace, measured_trace, published_traces

_DIGITS = 2
_STARTUP_SECONDS = 0.05
_STARTUP_FACTOR = 20
"""A kernel of a library spends its time on loading code if it takes this long and as many times its roofline:
measured convolutions take at most 0.02 s, or 13 times theirs, or else at least 0.1 s whatever their size."""

LONG_SUM = 2560
"""Products of an element from which no measured convolution loads code (49 in four models); below, 60% do."""

PUBLISHED = "the traces published with G10 (Zhang et al., MICRO 2023)"

Reals = NDArray[np.float64]

_work = attrgetter(*(one.name for one in fields(KernelCost)))
"""Attributes that a kernel's time depends on; a model has many kernels that are alike."""


@dataclass(frozen=True)
class Entry:
    """Kernels that are fitted together, and the numbers that are fitted for them."""

    covers: Refinement
    fitted: tuple[str, ...] = ("startup",)


def _backward(*operators: str) -> Refinement:
    return Refinement(operators=operators, phase=Phase.BACKWARD)


_CONVOLUTIONS = {
    "convolution": "convolution",
    "gradient of a convolution's input": "convolution_backward_input",
    "gradient of a convolution's weight": "convolution_backward_weight",
}
_LIMITS = {"computing": PeakRate.COMPUTE, "memory": PeakRate.MEMORY}

ENTRIES: Mapping[str, Entry] = {
    "convolution with long sums": Entry(
        Refinement(operators=("convolution",), least_products=LONG_SUM), ("startup",)
    ),
    **{
        f"{name} limited by {limit}": Entry(Refinement(operators=(operator,), bound=bound))
        for name, operator in _CONVOLUTIONS.items()
        for limit, bound in _LIMITS.items()
    },
    "gradient of a linear layer's input": Entry(
        Refinement(operator_class=OperatorClass.MATMUL, phase=Phase.BACKWARD, reads_weight=True),
        ("share", "weight_bandwidth"),
    ),
    "batch normalization": Entry(Refinement(operators=("native_batch_norm",))),
    "gradient of batch normalization": Entry(_backward("native_batch_norm_backward")),
    "gradient of softmax": Entry(_backward("_softmax_backward_data")),
    "layer normalization": Entry(Refinement(operators=("native_layer_norm",)), ("startup", "share")),
    "gradient of layer normalization": Entry(_backward("native_layer_norm_backward"), ("startup", "share")),
    "gradient of adaptive pooling": Entry(
        Refinement(layer_types=("AdaptiveAvgPool2d",), phase=Phase.BACKWARD)
    ),
    "gradient of pooling": Entry(_backward("max_pool2d_with_indices_backward", "avg_pool2d_backward")),
}
"""Operators that the published simulator's measurement sets apart from their class."""


CLASSES = (
    OperatorClass.MATMUL,
    OperatorClass.BATCHED_MATMUL,
    OperatorClass.CONVOLUTION,
    OperatorClass.ELEMENTWISE,
    OperatorClass.REDUCTION,
    OperatorClass.INDEXING,
    OperatorClass.OPTIMIZER,
)
"""Classes that are fitted; normalizations are all set apart, and the sizes of copies are wrong."""


@dataclass
class Fit:
    """Numbers of a fit: shares by class, startups by class (seconds), and entries for single operators."""

    shares: dict[OperatorClass, float] = field(default_factory=dict)
    startups: dict[OperatorClass, float] = field(default_factory=dict)
    operators: dict[str, Refinement] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class Calibration:
    """Measured kernels with the time that a GPU needs at least for each (its roofline at peak rates)."""

    def __init__(self, gpu: GpuTimingSpec, kernels: Iterable[MeasuredKernel]) -> None:
        self._gpu = gpu
        self._seconds: dict[tuple[object, ...], float] = {}
        groups: dict[str, list[MeasuredKernel]] = {}
        for kernel in kernels:
            # Sizes that a kernel cannot have moved in its time are not those that were measured.
            if kernel.seconds >= self._least(kernel.cost):
                groups.setdefault(self._group(kernel.cost), []).append(kernel)
        self._groups = groups

    def _least(self, cost: KernelCost) -> float:
        work = _work(cost)
        if work not in self._seconds:
            self._seconds[work] = float(max(self._gpu.least_seconds(cost)))
        return self._seconds[work]

    def _group(self, cost: KernelCost) -> str:
        """Name of the entry, or else the class, that a kernel is fitted with."""
        bound = self._gpu.bound(cost)
        for name, entry in ENTRIES.items():
            if entry.covers.covers(cost, bound):
                return name
        return cost.operator_class.value

    def fit(self) -> Fit:
        """Fit classes first: operators that are set apart may keep the share of their class."""
        found = Fit(counts={name: len(group) for name, group in self._groups.items()})
        for kind in CLASSES:
            self._fit_class(kind, found)
        for name, entry in ENTRIES.items():
            if name in self._groups:
                found.operators[name] = self._fit_entry(entry, self._groups[name], found)
        return found

    def _fit_class(self, kind: OperatorClass, found: Fit) -> None:
        if kind is OperatorClass.CONVOLUTION:
            quick = self._quick_convolutions()
            if quick:
                least = sum(self._least(kernel.cost) for kernel in quick)
                found.shares[kind] = _rounded(least / sum(kernel.seconds for kernel in quick))
                found.counts[kind.value] = len(quick)
            return
        group = self._groups.get(kind.value)
        if group:
            startup, share, _ = self._affine(group, ("startup", "share"))
            found.shares[kind] = _rounded(share)
            found.startups[kind] = self._beside_launch(startup)

    def _quick_convolutions(self) -> list[MeasuredKernel]:
        """Convolutions without the time of loading code, limited by computing."""
        names = [name for name, entry in ENTRIES.items() if entry.covers.bound is PeakRate.COMPUTE]
        kernels = [kernel for name in names for kernel in self._groups.get(name, ())]
        return [
            kernel
            for kernel in kernels
            if kernel.seconds < max(_STARTUP_SECONDS, _STARTUP_FACTOR * self._least(kernel.cost))
        ]

    def _affine(self, group: Sequence[MeasuredKernel], terms: Sequence[str]) -> tuple[float, float, float]:
        """Fit time = startup + least / share + weight bytes / weight bandwidth, none of them negative.

        Errors are weighted by 1 / sqrt(time), so that sums come out right and short kernels count.
        Returns startup in seconds, share and bytes per second of weights (infinite where not fitted). Where
        the best share is more than 1 it is 1.
        """
        columns: dict[str, Callable[[KernelCost], float]] = {
            "startup": lambda cost: 1.0,
            "share": self._least,
            "weight_bandwidth": lambda cost: float(cost.weight_bytes),
        }
        least: Reals = np.array([self._least(kernel.cost) for kernel in group])
        seconds: Reals = np.array([kernel.seconds for kernel in group])
        matrix: Reals = np.array([[columns[term](kernel.cost) for term in terms] for kernel in group])
        weights = 1 / np.sqrt(seconds)

        def solve(columns: Sequence[int], wanted: Reals) -> dict[str, float]:
            found = nnls(matrix[:, columns] * weights[:, None], wanted * weights)[0]
            return {terms[column]: float(value) for column, value in zip(columns, found, strict=True)}

        solved = solve(range(len(terms)), seconds)
        if "share" in solved and solved["share"] < 1:
            others = [column for column, term in enumerate(terms) if term != "share"]
            solved = {"share": 1.0, **solve(others, seconds - least)}
        rate = solved.get("weight_bandwidth", 0.0)
        return (solved.get("startup", 0.0), 1 / solved.get("share", 1.0), 1 / rate if rate else float("inf"))

    def _fit_entry(self, entry: Entry, group: Sequence[MeasuredKernel], found: Fit) -> Refinement:
        numbers: dict[str, object] = {}
        kind = group[0].cost.operator_class
        if entry.fitted == ("startup",):
            share = found.shares.get(kind) or self._class_share(group[0].cost)
            left = sum(kernel.seconds - self._least(kernel.cost) / share for kernel in group)
            numbers["startup"] = _duration_text(self._beside_launch(left / len(group)))
        else:
            startup, share, weight_rate = self._affine(group, entry.fitted)
            table = "compute_efficiency" if kind in COMPUTING else "bandwidth_efficiency"
            numbers[table] = _rounded(share)
            numbers["startup"] = _duration_text(self._beside_launch(startup))
            if np.isfinite(weight_rate):
                numbers["weight_bandwidth"] = format_rate(int(float(f"{weight_rate:.3g}")))
        return Refinement.model_validate({**entry.covers.model_dump(exclude_none=True), **numbers})

    def _beside_launch(self, startup: float) -> float:
        return max(startup - self._gpu.launch_overhead / PICOSECONDS_PER_SECOND, 0.0)

    def _class_share(self, cost: KernelCost) -> float:
        kind = cost.operator_class
        if kind not in COMPUTING:
            return self._gpu.bandwidth_efficiency[kind]
        shares = self._gpu.compute_efficiency[kind]
        return shares[cost.number_format] if isinstance(shares, dict) else shares


def _rounded(share: float) -> float:
    return float(f"{share:.{_DIGITS}g}")


def _duration_text(seconds: float) -> str:
    """Write seconds with three digits and a unit."""
    return format_duration(round(float(f"{seconds:.3g}") * PICOSECONDS_PER_SECOND))


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
    return tuple(map(measured_trace, published_traces(reference)))


def calibrate(traces: Sequence[MeasuredTrace], base: str, name: str, models: Sequence[str]) -> Calibrated:
    """Fit the description called ``base`` to the kernels of some models; check it on all.

    Raises ConfigError for an unknown model or GPU.
    """
    gpu = load_gpu(base)
    known = sorted({trace.model for trace in traces})
    if not models:
        raise ConfigError(f"--fit: found no model; allowed: {choices_text(known)}")
    for model in models:
        check_choice(model, known, "--fit: found unknown model")
    fit = Calibration(gpu, [kernel for one in traces if one.model in models for kernel in one.kernels]).fit()
    data = description(
        fit, base, name, f"measured kernels of {', '.join(sorted(models))} in {PUBLISHED}, float32"
    )
    calibrated = read_gpu(Document(data, name))
    checks = []
    for trace in traces:
        described = total_seconds(calibrated, trace.kernels)
        checks.append(Check(trace.model, trace.batch_size, trace.model in models, trace.seconds, described))
    return Calibrated(data, calibrated, fit, tuple(checks))


def description(fit: Fit, base: str, name: str, source: str) -> dict[str, Any]:
    """Make the data of a GPU description that builds on a bundled one, with a source for every number."""
    tables: dict[str, dict[str, Any]] = {"compute_efficiency": {}, "bandwidth_efficiency": {}}
    for kind, share in fit.shares.items():
        tables["compute_efficiency" if kind in COMPUTING else "bandwidth_efficiency"][kind.value] = share
    tables["startup"] = {kind.value: _duration_text(value) for kind, value in fit.startups.items()}
    tables["operators"] = {
        entry: refinement.model_dump(mode="json", exclude_none=True)
        for entry, refinement in fit.operators.items()
    }
    pairs = [(table, key) for table, found in tables.items() for key in found]
    sources = {f"{table}.{key}": f"fit to {fit.counts[key]} {source}" for table, key in pairs}
    text = f"{load_gpu(base).description}, times as in {PUBLISHED}"
    return {"preset": base, "name": name, "description": text, **tables, "sources": sources}


def total_seconds(gpu: GpuTimingSpec, kernels: Iterable[MeasuredKernel]) -> float:
    """Sum the times that a description gives to kernels, in seconds. Raises ConfigError as the GPU does."""
    counts = Counter(_work(kernel.cost) for kernel in kernels)
    alike = (count * gpu.duration_ns(KernelCost(*work)) for work, count in counts.items())
    return sum(alike) / NANOSECONDS_PER_SECOND
