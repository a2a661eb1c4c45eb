"""Parameters of policies as data: declared once in the body of a class, checked by pydantic."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, dataclass_transform, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic.fields import FieldInfo

from g10sim.config.effects import Effect, effects_of
from g10sim.config.quantities import texts_below
from g10sim.errors import PolicyError, not_found
from g10sim.units import parse_bytes


def parameter(
    *, default: Any = ..., published: str = "", effect: Effect | None = None, **constraints: Any
) -> Any:
    """Declare a parameter; without a default it is required.

    ``published`` is the value in the paper or the published program, and which of them says so. ``effect``
    says when it counts, if it does not always; a run refuses it elsewhere.
    ``constraints`` are those of ``pydantic.Field``, such as ``ge`` and ``lt``.
    """
    where = {} if effect is None else {"where": effect.where}
    field = Field(default=default, json_schema_extra={"published": published, **where}, **constraints)
    if effect is not None:
        field.metadata.append(effect)
    return field


WITH_KERNEL_ACCESS = Effect(
    lambda run, policy: run.accesses_tiers,
    "with kernel_access of a tier, but for batched transfers",
    "kernels can use no tensor where it lies",
)
"""Effect of parameters about tensors that kernels use in place."""

WITH_PAGEABLE = Effect(
    lambda run, policy: run.has_pageable_memory,
    "with system.host.pinned.pageable_bandwidth and fluid transfers",
    "copies of pageable memory are as fast as others",
)
"""Effect of parameters about what is pinned in host memory."""


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(parameter,))
class Declared:
    """Base of classes that declare their parameters as ``NAME: TYPE = parameter(default=..., ...)``.

    The string below a declaration describes the parameter. The constructor takes all parameters, inherited
    ones too, as keyword arguments and stores them unchanged under their names. It raises ValueError for a
    value that the declaration does not allow.
    """

    __signature__: ClassVar[inspect.Signature | None] = None
    _declarations: ClassVar[dict[str, tuple[Any, FieldInfo]]] = {}
    _model: ClassVar[type[BaseModel]] = BaseModel

    def __init_subclass__(cls) -> None:
        """Turn the declarations into a model and the signature of the constructor."""
        super().__init_subclass__()
        own = {name: value for name, value in vars(cls).items() if isinstance(value, FieldInfo)}
        for name in own:
            delattr(cls, name)
        hints = get_type_hints(cls, include_extras=True)
        declared = {name: (hints[name], field) for name, field in own.items()}
        inherited = [base._declarations for base in reversed(cls.__mro__[1:]) if issubclass(base, Declared)]
        cls._declarations = {name: one for given in (*inherited, declared) for name, one in given.items()}
        fields: dict[str, Any] = cls._declarations
        cls._model = create_model(cls.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)
        is_generated = cls.__init__ is Declared.__init__
        cls.__signature__ = inspect.signature(cls._model) if is_generated else None

    def __init__(self, **given: Any) -> None:
        try:
            self._model(**given)
        except ValidationError as error:
            raise ValueError(self._refusal(error, given)) from None
        for name, (_, field) in self._declarations.items():
            setattr(self, name, given.get(name, field.default))
        self._set_up()

    def _set_up(self) -> None:
        """Derive what follows from the parameters. Raises ValueError if some exclude each other."""

    def parameters_of(self, declared: type[Declared]) -> dict[str, Any]:
        """Return the values of the parameters that another class declares."""
        return {name: getattr(self, name) for name in declared._declarations}

    @classmethod
    def _refusal(cls, error: ValidationError, given: dict[str, Any]) -> str:
        """Return one line about the first parameter that is refused."""
        details = error.errors()[0]
        name, kind = str(details["loc"][0]), details["type"]
        if kind == "value_error":
            return f"{name}: {details['ctx']['error']}"
        if kind == "extra_forbidden":
            return f"{name}: found an unknown parameter{not_found(name, cls._declarations)}"
        found = repr(given[name]) if name in given else "nothing"
        return f"{name}: found {found}; allowed: {allowed_text(cls.parameter_schemas()[name])}"

    @classmethod
    def parameter_schemas(cls) -> dict[str, dict[str, Any]]:
        """Return the JSON schema of every parameter, with its default and ``published`` value."""
        schemas: dict[str, dict[str, Any]] = cls._model.model_json_schema().get("properties", {})
        return schemas

    @classmethod
    def parameter_effects(cls) -> Mapping[str, Effect]:
        """Return the effect of every parameter that does not always count."""
        return effects_of(cls._model)

    @classmethod
    def plan_files(cls) -> list[str]:
        """Return the names of the parameters that are paths of plan files."""
        return [name for name, (hint, _) in cls._declarations.items() if PlanFile in (hint, *get_args(hint))]

    @classmethod
    def parameter_descriptions(cls) -> dict[str, str]:
        """Return the description of every parameter."""
        found = texts_below(cls, Declared)
        return {name: found.get(name, "") for name in cls._declarations}


def allowed_text(schema: dict[str, Any]) -> str:
    """Say in words which values a JSON schema allows; null is left out."""
    if "allowed" in schema:
        return str(schema["allowed"])
    if "anyOf" in schema:
        return " or ".join(allowed_text(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if schema["type"] == "boolean":
        return "true or false"
    words = "a whole number" if schema["type"] == "integer" else "a number"
    bounds = {"minimum": "from", "maximum": "to", "exclusiveMaximum": "to less than"}
    return " ".join([words, *(f"{word} {schema[key]:g}" for key, word in bounds.items() if key in schema)])


def _text(allowed: str, kind: str = "string") -> WithJsonSchema:
    return WithJsonSchema({"type": kind, "allowed": allowed})


def _size(*others: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """Check a size with its unit, or one of ``others``; the text stays as it is."""
    also = "".join(f", or {other}" for other in others)

    def check(value: object) -> object:
        if value not in others:
            try:
                parse_bytes(value)
            except ValueError as error:
                raise ValueError(f"{error}{also}") from None
        return value

    return BeforeValidator(check), _text(f"a size such as 20 GiB{also}")


def _existing(path: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"found '{path}', which is no file; allowed: an existing file")
    return path


Size = Annotated[str, *_size()]
SizeOrTensile = Annotated[str, *_size("tensile")]
Share = Annotated[float, Field(ge=0, le=1)]
ShareOrFastest = Annotated[Share | Literal["fastest"], _text("a number from 0 to 1, or fastest")]
Count = Annotated[int, Field(ge=0)]
Density = Annotated[
    Share | Annotated[Sequence[Share], Field(min_length=1)], _text("a number from 0 to 1, or a list of them")
]
Percentages = Annotated[
    Sequence[Annotated[float, Field(ge=0, le=100)]],
    Field(min_length=6, max_length=6),
    _text("six numbers from 0 to 100", "array"),
]
TierName = Annotated[str, _text("the name of a memory tier")]
PlanFile = Annotated[str, _text("the path of a plan file")]
AlgorithmsFile = Annotated[str, AfterValidator(_existing), _text("the path of a file of algorithms")]
DeviceMap = Annotated[
    dict[str, str], _text("a mapping of starts of weights' names to gpu or the name of a tier", "object")
]
PoolParameters = Annotated[dict[str, object], _text("parameters of a caching pool", "object")]


def one_for_each(density: Density, count: int, what: str, policy: str) -> Sequence[float]:
    """Return as many densities as there is something to compress. Raises PolicyError for too few or many."""
    each = [density] * count if isinstance(density, (int, float)) else list(density)
    if len(each) != count:
        allowed = f"one for all, or one for each of the {count} {what}"
        raise PolicyError.at(f"policy '{policy}': density", f"{len(each)} densities", allowed)
    return each
