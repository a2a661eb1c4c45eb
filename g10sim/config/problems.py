"""Turns what pydantic found into one line: dotted path, value found, what is allowed."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from g10sim.config.document import KeyPath
from g10sim.registry import choices_text, nearest

_MOST_TELLING = ("extra_forbidden", "missing")


def describe(error: ValidationError, model: type[BaseModel]) -> tuple[KeyPath, str]:
    """Return the path and a one-line message of the most telling problem.

    An unknown key comes first: it is often the misspelling of one that is missing.
    """

    def rank(details: ErrorDetails) -> int:
        kind = details["type"]
        return _MOST_TELLING.index(kind) if kind in _MOST_TELLING else len(_MOST_TELLING)

    details = min(error.errors(include_url=False), key=rank)
    path = tuple(details["loc"])
    if details["type"] == "value_error":
        return _own(path, str(details["ctx"]["error"]))
    return path, _message(details, path, model)


def _own(path: KeyPath, text: str) -> tuple[KeyPath, str]:
    """Split a message that starts with the dotted path of a deeper key."""
    match = re.match(r"([a-z_]+(?:\.[a-z_0-9]+)+): (.*)", text, re.DOTALL)
    if match is None:
        return path, text
    deeper = tuple(int(part) if part.isdigit() else part for part in match.group(1).split("."))
    return (*path, *deeper), match.group(2)


def _message(details: ErrorDetails, path: KeyPath, model: type[BaseModel]) -> str:
    kind, found = details["type"], details["input"]
    if kind == "extra_forbidden":
        keys = list(_fields(model, path[:-1]))
        return f"found an unknown key{nearest(str(path[-1]), keys)}; allowed: {choices_text(keys)}"
    if kind == "missing":
        field = _fields(model, path[:-1]).get(str(path[-1]))
        return f"found nothing (the key is missing); allowed: {field or 'a value'}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", details["ctx"]["expected"])
        return f"found {found!r}{nearest(str(found), choices)}; allowed: {choices_text(choices)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = list(_fields(model, path))
        return f"found {found!r}; allowed: a mapping" + (f" with the keys {', '.join(keys)}" if keys else "")
    if kind in ("tuple_type", "list_type"):
        return f"found {found!r}; allowed: a list"
    if kind == "too_short":
        return "found an empty list; allowed: at least one entry"
    text = details["msg"].removeprefix("Input should be ").removeprefix("Input should ")
    return f"found {found!r}; allowed: {text[:1].lower()}{text[1:]}"


def _fields(model: type[BaseModel], path: Iterable[str | int]) -> dict[str, str]:
    """Keys of the model at a path below ``model``, with their descriptions; empty where there is none."""
    here: type[BaseModel] | None = model
    for part in path:
        if here is None:
            return {}
        if isinstance(part, str):
            field = here.model_fields.get(part)
            here = None if field is None else _model_in(field.annotation)
    return (
        {} if here is None else {name: field.description or "" for name, field in here.model_fields.items()}
    )


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
