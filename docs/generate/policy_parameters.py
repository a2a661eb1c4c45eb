"""Tables of policies' parameters, from their declarations, between the marks of a page."""

from __future__ import annotations

import json
import re

from tables import table

from g10sim.policies.interface.parameters import Declared, allowed_text
from g10sim.policies.interface.registry import find

_MARKED = re.compile(r"(<!-- parameters of (\w+) -->\n).*?(<!-- end of parameters -->)", re.DOTALL)


def page(text: str) -> str:
    """Return a page with the tables between its marks written again."""
    return _MARKED.sub(lambda match: f"{match[1]}{_table(match[2])}{match[3]}", text)


def _table(name: str) -> str:
    policy = find(name)
    assert issubclass(policy, Declared), name
    descriptions = policy.parameter_descriptions()
    rows = (
        (
            f"`{key}`",
            allowed_text(schema),
            _default(schema),
            schema["published"],
            _meaning(descriptions[key], schema),
        )
        for key, schema in policy.parameter_schemas().items()
    )
    return table(("Parameter", "Values", "Default", "Published", "Meaning"), (), rows)


def _default(schema: dict[str, object]) -> str:
    if "default" not in schema:
        return "required"
    default = schema["default"]
    return "none" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _meaning(description: str, schema: dict[str, object]) -> str:
    text = description.replace("``", "`").removesuffix(".")
    counts = f"; counts {schema['where']}" if "where" in schema else ""
    return (text if text[:2].isupper() else text[:1].lower() + text[1:]) + counts
