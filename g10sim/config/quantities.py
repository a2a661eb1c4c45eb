"""Field types with units for the models of the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from g10sim import units


class Spec(BaseModel):
    """Base of every configuration model: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _quantity(
    parse: Callable[[object], int], write: Callable[[int], str], example: str
) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    schema: dict[str, Any] = {"type": "string", "examples": [example]}
    return BeforeValidator(parse), PlainSerializer(write), WithJsonSchema(schema)


def _above_zero(value: int) -> int:
    if value == 0:
        raise ValueError("found 0; allowed: more than zero")
    return value


Bytes = Annotated[int, *_quantity(units.parse_bytes, units.format_bytes, "40 GiB")]
Rate = Annotated[int, *_quantity(units.parse_rate, units.format_rate, "15.754 GB/s")]
Duration = Annotated[int, *_quantity(units.parse_duration, units.format_duration, "45 us")]
Frequency = Annotated[int, *_quantity(units.parse_frequency, units.format_frequency, "1.2 GHz")]
ComputeRate = Annotated[int, *_quantity(units.parse_compute_rate, units.format_compute_rate, "19.5 TFLOP/s")]

PositiveBytes = Annotated[Bytes, AfterValidator(_above_zero)]
PositiveRate = Annotated[Rate, AfterValidator(_above_zero)]
PositiveDuration = Annotated[Duration, AfterValidator(_above_zero)]
PositiveFrequency = Annotated[Frequency, AfterValidator(_above_zero)]


def default(text: str, parse: Callable[[object], int], description: str) -> Any:
    """Describe a field with a quantity as its default, which the JSON Schema shows as it is written."""
    extra: dict[str, Any] = {"default": text}
    return Field(
        default=parse(text), validate_default=False, json_schema_extra=extra, description=description
    )
