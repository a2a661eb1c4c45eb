"""Field types with units for the models of the configuration."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import PurePath
from textwrap import dedent
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from g10sim import units
from g10sim.errors import shown

_LONGEST_LATENCY = 100 * 10**12  # picoseconds


class Spec(BaseModel):
    """Base of every configuration model: frozen, and unknown keys are refused.

    A text below a field describes it, in the JSON Schema and in messages: see :func:`descriptions`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def required(flaws: Callable[[Any], Iterator[str]]) -> Any:
    """Make a condition of models from a method that yields what is wrong with one: the first is refused."""

    def check(model: Any) -> Any:
        for flaw in flaws(model):
            raise ValueError(flaw)
        return model

    return model_validator(mode="after")(check)


@cache
def descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """Return what describes the fields of a model: a text below each, or its ``description``.

    Texts are read from the source when they are needed; to do so with every import takes too long. A model
    without source, such as one made at a prompt, has none.
    """
    found = {name: field.description for name, field in model.model_fields.items() if field.description}
    return found | texts_below(model, Spec)


def texts_below(cls: type, base: type) -> dict[str, str]:
    """Return the text below each field that a class and its bases, as far as those of ``base``, declare."""
    found = {}
    for one in (one for one in reversed(cls.__mro__) if issubclass(one, base)):
        with suppress(OSError):
            (tree,) = ast.parse(dedent(inspect.getsource(one))).body
            for field in pairwise(ast.iter_child_nodes(tree)):
                match field:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(text))
                    ):
                        found[name] = " ".join(text.split())
    return found


def _quantity(kind: units.Quantity) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    schema: dict[str, Any] = {"type": "string", "examples": [kind.example]}
    return BeforeValidator(kind.parse), PlainSerializer(kind.format), WithJsonSchema(schema)


def _at_most_100_s(value: int) -> int:
    if value > _LONGEST_LATENCY:
        raise ValueError(f"found {units.format_duration(value)!r}; allowed: at most 100 s")
    return value


def _above_zero(value: int) -> int:
    if value == 0:
        raise ValueError("found 0; allowed: more than zero")
    return value


Bytes = Annotated[int, *_quantity(units.SIZE)]
Rate = Annotated[int, *_quantity(units.RATE)]
Duration = Annotated[int, *_quantity(units.DURATION)]
Frequency = Annotated[int, *_quantity(units.FREQUENCY)]
CountRate = Annotated[int, *_quantity(units.COUNT_RATE)]
ComputeRate = Annotated[int, *_quantity(units.COMPUTE_RATE)]

Latency = Annotated[Duration, AfterValidator(_at_most_100_s)]
"""A time that every access takes; far longer ones leave the range in which times are exact."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A number without a unit: no text, neither true nor false, and not infinite."""

MOST = 10**6
"""Most equal parts or steps; no machine has more, and what counts them one by one ends soon."""
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]


def _inside(name: str) -> str:
    path = PurePath(name)
    if not name.isprintable() or path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(
            f"found {shown(name)}; allowed: printable characters, and no path that leads out of a directory"
        )
    return name


PlainName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_inside)]
"""A name that may become that of a directory."""

PositiveBytes = Annotated[Bytes, AfterValidator(_above_zero)]
PositiveRate = Annotated[Rate, AfterValidator(_above_zero)]
PositiveCountRate = Annotated[CountRate, AfterValidator(_above_zero)]
PositiveDuration = Annotated[Duration, AfterValidator(_above_zero)]
PositiveFrequency = Annotated[Frequency, AfterValidator(_above_zero)]
PositiveComputeRate = Annotated[ComputeRate, AfterValidator(_above_zero)]


def _default(kind: units.Quantity, text: str) -> Any:
    extra: dict[str, Any] = {"default": text}
    return Field(default=kind.parse(text), validate_default=False, json_schema_extra=extra)


default_size, default_time = partial(_default, units.SIZE), partial(_default, units.DURATION)
"""Give a field a quantity as its default, which the JSON Schema shows as it is written."""
