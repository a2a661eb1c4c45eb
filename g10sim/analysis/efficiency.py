"""Shares of a GPU's peak rates that kernels reach, and conditions for those of some kernels alone."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PlainSerializer, PlainValidator

from g10sim.config.quantities import Duration, Number, PositiveRate, Spec, required
from g10sim.errors import not_found, shown
from g10sim.trace.model import Phase
from g10sim.trace.work import KernelCost, NumberFormat, OperatorClass


class PeakRate(StrEnum):
    """Peak rates of a GPU that can limit a kernel."""

    COMPUTE = "compute"
    MEMORY = "memory"


Share = Annotated[Number, Field(gt=0, le=1)]


def _checked_shares(value: object) -> object:
    if not isinstance(value, dict):
        return _checked_share("", value)
    formats = {one.value: one for one in NumberFormat}
    for name in value:
        if name not in formats:
            raise ValueError(f"found unknown format {shown(name)}{not_found(str(name), formats)}")
    return {formats[name]: _checked_share(f"{name}: ", share) for name, share in value.items()}


def _checked_share(place: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1:  # type: ignore[operator]
        raise ValueError(f"{place}found {shown(value)}; allowed: greater than 0, less than or equal to 1")
    return float(value)  # type: ignore[arg-type]


def _plain_shares(value: float | dict[NumberFormat, float]) -> float | dict[str, float]:
    return {name.value: share for name, share in value.items()} if isinstance(value, dict) else value


Shares: TypeAlias = Annotated[
    float | dict[NumberFormat, float], PlainValidator(_checked_shares), PlainSerializer(_plain_shares)
]
"""One share, or one for each number format that the GPU has a peak rate for."""


class Grouping(StrEnum):
    """Ways in which a convolution divides its channels: not at all, into groups, or each by itself."""

    ONE = "one"
    SEVERAL = "several"
    DEPTHWISE = "depthwise"


class Conditions(Spec):
    """Conditions on a kernel under which an entry of a GPU's description covers it; one not given is met."""

    operators: tuple[str, ...] | None = None
    """names, such as addmm"""
    operator_class: OperatorClass | None = None
    number_formats: tuple[NumberFormat, ...] | None = None
    """formats it multiplies"""
    layer_types: tuple[str, ...] | None = None
    """classes of modules"""
    phase: Phase | None = None
    reads_weight: bool | None = None
    bound: PeakRate | None = None
    """peak rate that limits it"""
    least_products: int | None = Field(default=None, ge=1)
    """multiply-adds for each element"""
    grouping: Grouping | None = None
    """channels of a convolution"""
    windows: tuple[int, ...] | None = None
    """positions of its kernel: 9 for 3x3"""
    group_widths: tuple[int, ...] | None = None
    """of a weight gradient: channels of a group, as many in as out"""
    stride: int | None = Field(default=None, ge=1)
    """largest stride of a convolution"""
    most_channels: int | None = Field(default=None, ge=1)
    """channels of its input, at most"""
    least_channels: int | None = Field(default=None, ge=1)
    """channels of its input, at least"""
    layout: Literal["channels_first", "channels_last"] | None = None
    """order of a convolution's activations in memory"""
    causal: bool | None = None
    """attention that sees earlier positions only"""
    masked: bool | None = None
    """attention with a mask in a tensor"""
    dropout: bool | None = None
    """attention that drops scores"""
    least_head: int | None = Field(default=None, ge=1)
    """width of a head of attention, at least"""
    alignments: tuple[int, ...] | None = None
    """bytes to which rows of a product's matrices are aligned: 2, 4 or 8"""

    def covers(self, cost: KernelCost, bound: PeakRate) -> bool:
        """Return whether a kernel, limited by this peak rate, meets every condition."""
        return all(
            (
                self.operators is None or cost.operator in self.operators,
                self.operator_class is None or cost.operator_class is self.operator_class,
                self.number_formats is None or cost.number_format in self.number_formats,
                self.layer_types is None or cost.layer_type in self.layer_types,
                self.phase is None or cost.phase is self.phase,
                self.reads_weight is None or (cost.weight_bytes > 0) is self.reads_weight,
                self.bound is None or bound is self.bound,
                self.least_products is None or cost.products >= self.least_products,
                self.grouping is None or _grouping(cost) is self.grouping,
                self.windows is None or cost.window in self.windows,
                self.group_widths is None or _even_width(cost) in self.group_widths,
                self.stride is None or cost.stride == self.stride,
                self.most_channels is None or 0 < cost.channels <= self.most_channels,
                self.least_channels is None or cost.channels >= self.least_channels,
                self.layout is None or bool(cost.channels_first) is (self.layout == "channels_first"),
                self.causal is None or bool(cost.causal) is self.causal,
                self.masked is None or bool(cost.masked) is self.masked,
                self.dropout is None or bool(cost.dropout) is self.dropout,
                self.least_head is None or cost.head >= self.least_head,
                self.alignments is None or cost.alignment in self.alignments,
            )
        )


_CONDITIONS = tuple(Conditions.model_fields)


def _grouping(cost: KernelCost) -> Grouping | None:
    if cost.groups <= 1:
        return Grouping.ONE if cost.groups else None
    return Grouping.DEPTHWISE if cost.groups == cost.channels else Grouping.SEVERAL


def _even_width(cost: KernelCost) -> int:
    """Channels of a group of a weight gradient, if each has as many inputs as outputs; 0 of all others."""
    width = cost.channels // max(cost.groups, 1)
    weights = cost.flops // (2 * max(cost.products, 1))  # those that it writes
    return width if weights == cost.channels * cost.window * width else 0


class Refinement(Conditions):
    """Efficiencies and overheads of the kernels that meet all of the given conditions.

    A share that is not given is that of the class. ``bandwidth`` limits what a kernel moves in a second where
    it, not the memory, is the limit. ``startup`` is time besides computing and moving; with
    it the share reached grows with size s as s / (s + half), where half = startup x share x peak rate.
    ``weight_bandwidth`` adds the time of passing over the weights that a kernel reads (to transpose them).
    ``fewer_products`` divides the FLOPs of an algorithm that saves multiplications (Winograd: 2.25).
    ``counts_as`` takes the peak rate of another format (float32 where tensor cores are not used). With
    ``half_length`` attention over n positions reaches n / (n + half_length) of its share. With
    ``full_channels`` a kernel of fewer channels n moves n / full_channels of what it does with as many.
    ``copies`` passes over all tensors, each a read or a write, are added at the rate of copies (changes of
    layout).
    """

    compute_efficiency: Share | None = None
    bandwidth_efficiency: Share | None = None
    bandwidth: PositiveRate | None = None
    """most that it moves, whatever the memory could"""
    startup: Duration | None = None
    weight_bandwidth: PositiveRate | None = None
    fewer_products: Number | None = Field(default=None, ge=1, le=4)
    """of a fast algorithm"""
    counts_as: NumberFormat | None = None
    half_length: int | None = Field(default=None, ge=1)
    """positions that reach half the share"""
    full_channels: int | None = Field(default=None, ge=1)
    """channels that keep the whole GPU busy"""
    copies: Number | None = Field(default=None, gt=0, le=4)
    """passes over all tensors besides"""

    @required
    def _about_something(self) -> Iterator[str]:
        if all(getattr(self, name) is None for name in _CONDITIONS):
            yield f"found no condition; allowed: at least one of {', '.join(_CONDITIONS)}"
