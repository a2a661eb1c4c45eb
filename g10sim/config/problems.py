"""Messages of one line for bad input: dotted path, value found, what is allowed."""

from __future__ import annotations

import re
import typing
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from g10sim.config.document import KeyPath
from g10sim.config.quantities import descriptions
from g10sim.errors import ConfigError, not_found, shown

Item = TypeVar("Item")

_MOST_SHOWN = 200
_RANKS = {"extra_forbidden": 0, "missing": 1}
"""Ranks of the most telling kinds of problems, which come before all others."""


def describe(error: ValidationError, model: type[BaseModel]) -> tuple[KeyPath, str]:
    """Return the path and a one-line message of the most telling problem."""
    return problems(error, model)[0]


def problems(error: ValidationError, model: type[BaseModel]) -> list[tuple[KeyPath, str]]:
    """Return the path and a one-line message of each problem, the most telling ones first.

    Next to an unknown key a missing one is left out: the one is often a misspelling of the other. A list
    whose only entries are wrong is not too short, too.
    """
    told = [one for one in error.errors(include_url=False) if one["type"] != "too_short" or not one["input"]]
    found = sorted(told, key=lambda one: _RANKS.get(one["type"], len(_RANKS)))
    unknown = {details["loc"][:-1] for details in found if details["type"] == "extra_forbidden"}
    return [
        _described(details, model)
        for details in found
        if details["type"] != "missing" or details["loc"][:-1] not in unknown
    ]


def _described(details: ErrorDetails, model: type[BaseModel]) -> tuple[KeyPath, str]:
    path, above, here = _follow(tuple(details["loc"]), model)
    if details["type"] == "value_error":
        return _own(path, str(details["ctx"]["error"]))
    if details["type"] == "extra_forbidden" and len(path) == 1 and (where := _belongs(str(path[0]), model)):
        known = ", ".join(sorted(_fields(above)))
        return path, f"found an unknown key (did you mean '{where}'?); allowed: {known}"
    if details["type"] == "union_tag_invalid":
        choices = re.findall(r"'([^']*)'", details["ctx"]["expected_tags"])
        found, key = details["ctx"]["tag"], details["ctx"]["discriminator"].strip("'")
        key = key if key.isidentifier() else "model"  # a function tells models apart by that
        return (*path, key), f"found {shown(found, _MOST_SHOWN)}{not_found(found, choices)}"
    return path, _message(details, str(path[-1]) if path else "", _fields(above), _fields(here))


def _belongs(key: str, model: type[BaseModel]) -> str:
    """Return where an unknown key at the top would be known, one level down; nothing if nowhere."""
    for name, field in model.model_fields.items():
        if any(key in one.model_fields for _, one in _models_in(field.annotation, "")):
            return f"{name}.{key}"
    return ""


def _own(path: KeyPath, text: str) -> tuple[KeyPath, str]:
    """Split a message that starts with the path of a key inside."""
    match = re.match(r"([a-z_]+(?:\.[a-z_0-9]+)*): (found .*)", text, re.DOTALL)
    if match is None:
        return path, text
    deeper = tuple(int(part) if part.isdigit() else part for part in match.group(1).split("."))
    return (*path, *deeper), match.group(2)


def _message(details: ErrorDetails, key: str, beside: dict[str, str], inside: dict[str, str]) -> str:
    """Say what is wrong with a key; ``beside`` are all keys of its mapping, ``inside`` those of its value."""
    kind, found = details["type"], details["input"]
    said = shown(found, _MOST_SHOWN)
    if kind == "extra_forbidden":
        return f"found an unknown key{not_found(key, beside)}"
    if kind == "missing":
        return f"found nothing (the key is missing); allowed: {beside.get(key) or 'a value'}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", details["ctx"]["expected"])
        return f"found {said}{not_found(found, choices)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = list(inside)
        return f"found {said}; allowed: a mapping" + (f" with the keys {', '.join(keys)}" if keys else "")
    if kind in ("tuple_type", "list_type"):
        return f"found {said}; allowed: a list"
    if kind == "too_short":
        return "found an empty list; allowed: at least one entry"
    text = details["msg"].removeprefix("Input should be ").removeprefix("Input should ")
    return f"found {said}; allowed: {text[:1].lower()}{text[1:]}"


def check_choice(found: str, known: Collection[str], said: str, also: str = "") -> None:
    """Raise ConfigError for a name that is not known; the message is ``said``, the name and the choices."""
    if found not in known:
        raise ConfigError(f"{said} '{found}'{not_found(found, known)}{also}")


def among(items: Iterable[Item], names: Sequence[str], wanted: Collection[str], said: str) -> list[Item]:
    """Return the items with wanted names, all where none is wanted. Raises ConfigError, as `check_choice`."""
    for name in wanted:
        check_choice(name, dict.fromkeys(names), said)
    return [item for item, name in zip(items, names, strict=True) if not wanted or name in wanted]


_Model = type[BaseModel] | None


def _follow(place: KeyPath, model: type[BaseModel]) -> tuple[KeyPath, _Model, _Model]:
    """Return the path of a place in the data, the model of the mapping that holds it, and that of its value.

    Where a value is of one of several models, the place has the name of the model, which the path has not.
    """
    path: list[str | int] = []
    above: _Model = None
    models: dict[str, type[BaseModel]] = {"": model}
    for part in place:
        if len(models) > 1 and part in models:
            models = {"": models[str(part)]}
            continue
        path.append(part)
        if isinstance(part, str):
            above = next(iter(models.values()), None)
            field = None if above is None else above.model_fields.get(part)
            models = {} if field is None else dict(_models_in(field.annotation, ""))
    return tuple(path), above, next(iter(models.values()), None)


def _fields(model: _Model) -> dict[str, str]:
    """Keys of a model with their descriptions."""
    return {} if model is None else {**dict.fromkeys(model.model_fields, ""), **descriptions(model)}


def _models_in(annotation: Any, tag: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Models that a value of a type may be of, by tag where there are several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield tag, annotation
        return
    tags = [data.tag for data in getattr(annotation, "__metadata__", ()) if isinstance(data, Tag)]
    for argument in typing.get_args(annotation):
        yield from _models_in(argument, tags[0] if tags else tag)
