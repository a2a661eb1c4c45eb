"""Kernel times of a GPU that is not at hand: a roofline with an efficiency for each class of operator."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from g10sim.config.data import data_path, find_file
from g10sim.config.document import Document, load_document, merge
from g10sim.config.presets import PRESET_KEY, validated
from g10sim.config.problems import check_choice
from g10sim.config.quantities import ComputeRate, Duration, PositiveBytes, PositiveRate, Spec
from g10sim.errors import ConfigError
from g10sim.registry import as_spelled, choices_text
from g10sim.trace.model import Phase
from g10sim.units import PICOSECONDS_PER_SECOND


class OperatorClass(StrEnum):
    """Classes of operators that reach a similar share of a GPU's peak rates."""

    MATMUL = "matmul"
    BATCHED_MATMUL = "batched_matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    INDEXING = "indexing"
    COPY = "copy"
    OPTIMIZER = "optimizer"
    OTHER = "other"


COMPUTING = frozenset(
    {OperatorClass.MATMUL, OperatorClass.BATCHED_MATMUL, OperatorClass.CONVOLUTION, OperatorClass.ATTENTION}
)
"""Classes whose FLOPs are counted; the time of all others is that of moving their bytes."""


class NumberFormat(StrEnum):
    """Formats with a peak rate of their own, wide ones first; in tf32 tensor cores may multiply float32."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8 = "float8"
    INT8 = "int8"


class Bound(StrEnum):
    """Peak rates of a GPU that can limit a kernel."""

    COMPUTE = "compute"
    MEMORY = "memory"


@dataclass(slots=True)
class KernelCost:
    """The work of one kernel.

    ``operator`` is its name without library (``addmm``), ``layer_type`` the class of the module that ran it.
    ``flops`` are 0 for operators that only move bytes; ``weight_bytes`` is what it reads of weights;
    ``products`` are the multiply-adds for each element it writes (0 where it computes nothing).
    """

    operator: str
    operator_class: OperatorClass
    number_format: NumberFormat = NumberFormat.FLOAT32
    phase: Phase = Phase.FORWARD
    layer_type: str = ""
    flops: int = 0
    moved_bytes: int = 0
    weight_bytes: int = 0
    products: int = 0


NANOSECONDS_PER_SECOND = 10**9
_PICOSECONDS_PER_NANOSECOND = PICOSECONDS_PER_SECOND // NANOSECONDS_PER_SECOND
_TABLES = ("peak", "compute_efficiency", "bandwidth_efficiency", "startup", "operators")

_CONDITIONS = (
    "operators",
    "operator_class",
    "layer_types",
    "phase",
    "reads_weight",
    "bound",
    "least_products",
)

Share = Annotated[float, Field(gt=0, le=1)]


class Refinement(Spec):
    """Efficiencies and overheads of the kernels that meet all of the given conditions.

    A share that is not given is that of the class. ``startup`` is time besides computing and moving; with
    it the share reached grows with size s as s / (s + half), where half = startup x share x peak rate.
    ``weight_bandwidth`` adds the time of passing over the weights that a kernel reads (to transpose them).
    """

    operators: tuple[str, ...] | None = Field(default=None, description="names, such as addmm")
    operator_class: OperatorClass | None = None
    layer_types: tuple[str, ...] | None = Field(default=None, description="classes of modules")
    phase: Phase | None = None
    reads_weight: bool | None = None
    bound: Bound | None = Field(default=None, description="peak rate that limits it")
    least_products: int | None = Field(default=None, ge=1, description="multiply-adds for each element")
    compute_efficiency: Share | None = None
    bandwidth_efficiency: Share | None = None
    startup: Duration | None = None
    weight_bandwidth: PositiveRate | None = None

    @model_validator(mode="after")
    def _about_something(self) -> Refinement:
        if all(getattr(self, name) is None for name in _CONDITIONS):
            raise ValueError(f"found no condition; allowed: at least one of {', '.join(_CONDITIONS)}")
        return self

    def covers(self, cost: KernelCost, bound: Bound) -> bool:
        """Tell whether a kernel, limited by this peak rate, meets every condition."""
        return all(
            (
                self.operators is None or cost.operator in self.operators,
                self.operator_class is None or cost.operator_class is self.operator_class,
                self.layer_types is None or cost.layer_type in self.layer_types,
                self.phase is None or cost.phase is self.phase,
                self.reads_weight is None or (cost.weight_bytes > 0) is self.reads_weight,
                self.bound is None or bound is self.bound,
                self.least_products is None or cost.products >= self.least_products,
            )
        )


class GpuTimingSpec(Spec):
    """Peak rates of a GPU and the share of them that operators reach.

    ``peak`` is the fastest dense rate for each number format (with tensor cores where it has them).
    ``compute_efficiency`` and ``bandwidth_efficiency`` are shares of ``peak`` and ``memory_bandwidth``,
    at most 1, so that no kernel beats the hardware. ``startup`` is time that a kernel of a class takes
    besides, so that small kernels reach less. ``operators`` sets single operators apart; the first entry that
    covers a kernel counts. ``sources`` says for every number (by dotted key) where it comes from.
    """

    name: str = Field(min_length=1)
    description: str = ""
    memory: PositiveBytes = Field(description="HBM, to tell by how much a trace oversubscribes it")
    memory_bandwidth: PositiveRate = Field(description="of the HBM")
    launch_overhead: Duration = Field(description="added to the time of every kernel")
    peak: dict[NumberFormat, ComputeRate] = Field(min_length=1, description="dense FLOP/s by number format")
    compute_efficiency: dict[OperatorClass, Share] = Field(description="share of peak by operator class")
    bandwidth_efficiency: dict[OperatorClass, Share] = Field(description="share of memory_bandwidth by class")
    startup: dict[OperatorClass, Duration] = Field(default={}, description="by class; 0 where not given")
    operators: dict[str, Refinement] = Field(default={}, description="times of single operators")
    sources: dict[str, str] = Field(description="where each number comes from, by dotted key")

    @field_validator("peak")
    @classmethod
    def _positive_peaks(cls, value: dict[NumberFormat, int]) -> dict[NumberFormat, int]:
        for number_format, rate in value.items():
            if rate == 0:
                raise ValueError(f"peak.{number_format}: found 0; allowed: more than zero")
        return value

    @model_validator(mode="after")
    def _complete(self) -> GpuTimingSpec:
        _require_keys("compute_efficiency", self.compute_efficiency, COMPUTING)
        _require_keys("bandwidth_efficiency", self.bandwidth_efficiency, frozenset(OperatorClass))
        numbers = {"memory", "memory_bandwidth", "launch_overhead"}
        for table in _TABLES:
            numbers |= {f"{table}.{key}" for key in getattr(self, table)}
        for key in sorted(numbers - set(self.sources)):
            raise ValueError(f"found no source for '{key}'; allowed: a text under sources for every number")
        for key in sorted(set(self.sources) - numbers):
            raise ValueError(
                f"found a source for '{key}', which is no number here; allowed: {choices_text(numbers)}"
            )
        return self

    def duration_ns(self, cost: KernelCost) -> int:
        """Time of a kernel in nanoseconds, rounded up.

        The roofline (Williams et al., CACM 52(4), 2009, doi:10.1145/1498765.1498785) with the efficiencies of
        the operator or its class, plus its startup and the launch overhead. Raises ConfigError as
        ``least_seconds`` does.
        """
        compute_s, move_s = self.least_seconds(cost)
        found = self._refinement(cost)
        compute_share = found.compute_efficiency or self.compute_efficiency.get(cost.operator_class, 1.0)
        bandwidth_share = found.bandwidth_efficiency or self.bandwidth_efficiency[cost.operator_class]
        seconds = max(compute_s / _share(compute_share), move_s / _share(bandwidth_share))
        if found.weight_bandwidth is not None:
            seconds += Fraction(cost.weight_bytes, found.weight_bandwidth)
        startup = self.startup.get(cost.operator_class, 0) if found.startup is None else found.startup
        overhead = Fraction(self.launch_overhead + startup, _PICOSECONDS_PER_NANOSECOND)
        time = seconds * NANOSECONDS_PER_SECOND + overhead
        return -(-time.numerator // time.denominator)

    def least_seconds(self, cost: KernelCost) -> tuple[Fraction, Fraction]:
        """Return the times of computing and of moving at the peak rates.

        float32 products that tensor cores may round (tf32) count as float32 on a GPU without them. Raises
        ConfigError when the GPU has no peak rate for the number format.
        """
        move_s = Fraction(cost.moved_bytes, self.memory_bandwidth)
        if not cost.flops:
            return Fraction(0), move_s
        number_format = cost.number_format
        if number_format is NumberFormat.TF32 and number_format not in self.peak:
            number_format = NumberFormat.FLOAT32
        if number_format not in self.peak:
            raise ConfigError(
                f"GPU '{self.name}': found an operator in {number_format}, which has no peak rate; "
                f"allowed: {choices_text(self.peak)}"
            )
        return Fraction(cost.flops, self.peak[number_format]), move_s

    def bound(self, cost: KernelCost) -> Bound:
        """Tell which peak rate limits a kernel. Raises ConfigError as ``least_seconds`` does."""
        compute_s, move_s = self.least_seconds(cost)
        return Bound.COMPUTE if compute_s > move_s else Bound.MEMORY

    def _refinement(self, cost: KernelCost) -> Refinement:
        bound = self.bound(cost)
        return next((entry for entry in self.operators.values() if entry.covers(cost, bound)), _NOTHING)


_NOTHING = Refinement(operators=())


@cache
def _share(value: float) -> Fraction:
    """Return the decimal number as written (0.57 is 57/100), whatever its nearest binary float."""
    return Fraction(str(value))


def _require_keys(name: str, found: dict[OperatorClass, float], wanted: frozenset[OperatorClass]) -> None:
    for key in sorted(set(found) ^ wanted):
        state = "an efficiency that no operator uses" if key in found else "no efficiency"
        raise ValueError(f"{name}.{key}: found {state}; allowed: {choices_text(wanted)}")


def gpu_names() -> tuple[str, ...]:
    """Names of the bundled GPU descriptions, sorted."""
    return tuple(sorted(path.stem for path in data_path("configs", "gpus").glob("*.yaml")))


def load_gpu(gpu: str | Path | GpuTimingSpec) -> GpuTimingSpec:
    """Read a GPU description by bundled name or from a YAML file.

    A file may build on a bundled description (``preset: a100-40g``) and change keys of it. Raises ConfigError
    naming file, line, key, what was found and what is allowed.
    """
    if isinstance(gpu, GpuTimingSpec):
        return gpu
    names = gpu_names()
    text = as_spelled(str(gpu), names)
    if text in names:
        path = data_path("configs", "gpus", f"{text}.yaml")
    else:
        if not text.endswith((".yaml", ".yml")):
            check_choice(text, names, "--gpu: found unknown GPU", ", or a YAML file")
        path = find_file(text)
    return read_gpu(load_document(path))


def read_gpu(document: Document) -> GpuTimingSpec:
    """Make a GPU description of data, which may name a bundled one to build on. Raises ConfigError."""
    return validated(GpuTimingSpec, _with_preset(document), document)


def _with_preset(document: Document) -> dict[str, Any]:
    """Merge a description with the bundled one that it builds on."""
    changes = dict(document.data)
    preset = changes.pop(PRESET_KEY, None)
    if preset is None:
        return changes
    preset = as_spelled(str(preset), gpu_names())
    if preset not in gpu_names():
        raise document.error((PRESET_KEY,), f"found {preset!r}; allowed: {choices_text(gpu_names())}")
    base = load_document(data_path("configs", "gpus", f"{preset}.yaml"))
    return merge(_with_preset(base), changes)
