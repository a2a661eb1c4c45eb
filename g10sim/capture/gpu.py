"""Kernel times of a GPU that is not at hand: a roofline with an efficiency for each class of operator."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, field_validator, model_validator

from g10sim.config.data import data_path, find_file
from g10sim.config.document import load_document
from g10sim.config.presets import validated
from g10sim.config.quantities import ComputeRate, Duration, PositiveBytes, PositiveRate, Spec
from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest
from g10sim.units import PICOSECONDS_PER_SECOND

NANOSECONDS_PER_SECOND = 10**9
_PICOSECONDS_PER_NANOSECOND = PICOSECONDS_PER_SECOND // NANOSECONDS_PER_SECOND


class OperatorClass(StrEnum):
    """Operators that reach a similar share of a GPU's peak rates."""

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
    """Formats with a peak rate of their own; tf32 is how tensor cores may multiply float32."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


_Share = Annotated[float, Field(gt=0, le=1)]
_Key = TypeVar("_Key", OperatorClass, NumberFormat)


class GpuTimingSpec(Spec):
    """Peak rates of a GPU and the share of them that operators reach.

    ``peak`` is the fastest dense rate for each number format (with tensor cores where it has them).
    ``compute_efficiency`` and ``bandwidth_efficiency`` are shares of ``peak`` and ``memory_bandwidth``,
    at most 1, so that no kernel beats the hardware. ``sources`` says for every number (by dotted key) where
    it comes from.
    """

    name: str = Field(min_length=1)
    description: str = ""
    memory: PositiveBytes = Field(description="HBM, to tell by how much a trace oversubscribes it")
    memory_bandwidth: PositiveRate = Field(description="of the HBM")
    launch_overhead: Duration = Field(description="added to the time of every kernel")
    peak: dict[NumberFormat, ComputeRate] = Field(min_length=1, description="dense FLOP/s by number format")
    compute_efficiency: dict[OperatorClass, _Share] = Field(description="share of peak by operator class")
    bandwidth_efficiency: dict[OperatorClass, _Share] = Field(
        description="share of memory_bandwidth by class"
    )
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
        for table in ("peak", "compute_efficiency", "bandwidth_efficiency"):
            numbers |= {f"{table}.{key}" for key in getattr(self, table)}
        for key in sorted(numbers - set(self.sources)):
            raise ValueError(f"found no source for '{key}'; allowed: a text under sources for every number")
        for key in sorted(set(self.sources) - numbers):
            raise ValueError(
                f"found a source for '{key}', which is no number here; allowed: {choices_text(numbers)}"
            )
        return self

    def duration_ns(
        self, operator_class: OperatorClass, number_format: NumberFormat, flops: int, moved_bytes: int
    ) -> int:
        """Time of a kernel in nanoseconds, rounded up.

        The roofline (Williams et al., CACM 52(4), 2009, doi:10.1145/1498765.1498785) with the efficiencies of
        the operator's class, plus the launch overhead. Raises ConfigError when the GPU has no peak rate
        for the number format.
        """
        bandwidth = _share(self.bandwidth_efficiency[operator_class]) * self.memory_bandwidth
        seconds = Fraction(moved_bytes) / bandwidth
        if flops:
            if number_format not in self.peak:
                raise ConfigError(
                    f"GPU '{self.name}': found an operator in {number_format}, which has no peak rate; "
                    f"allowed: {choices_text(self.peak)}"
                )
            rate = _share(self.compute_efficiency.get(operator_class, 1.0)) * self.peak[number_format]
            seconds = max(seconds, Fraction(flops) / rate)
        overhead = Fraction(self.launch_overhead, _PICOSECONDS_PER_NANOSECOND)
        time = seconds * NANOSECONDS_PER_SECOND + overhead
        return -(-time.numerator // time.denominator)


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

    Raises ConfigError naming file, line, key, what was found and what is allowed.
    """
    if isinstance(gpu, GpuTimingSpec):
        return gpu
    text, names = str(gpu), gpu_names()
    if text in names:
        path = data_path("configs", "gpus", f"{text}.yaml")
    elif text.endswith((".yaml", ".yml")):
        path = find_file(text)
    else:
        raise ConfigError(
            f"--gpu: found unknown GPU '{text}'{nearest(text, names)}; "
            f"allowed: {choices_text(names)}, or a YAML file"
        )
    document = load_document(path)
    return validated(GpuTimingSpec, document.data, document)
