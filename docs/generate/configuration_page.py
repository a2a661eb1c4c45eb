"""The page of every key of a run configuration, from the models that check it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tables import fill, table, titles

from g10sim import units
from g10sim.config.behaviour import PRESETS, BehaviourSpec
from g10sim.config.presets import ssd_names, system_names
from g10sim.config.schema import described_schema

_MEANINGS = {
    ("SystemSpec", "name"): "name of the system; a preset's own",
    ("SystemSpec", "description"): "one line on it",
    ("SystemSpec", "sources"): "where each number comes from, by dotted key",
    ("SharedLinkSpec", "name"): "name of the link",
    ("SocketSpec", "name"): "name of the socket",
    ("MemoryTierSpec", "kind"): "memory that is written in place",
    ("SsdTierSpec", "kind"): "an SSD",
    ("FlashTierSpec", "kind"): "an SSD",
}
_DEFAULTS = {
    ("RunConfig", "output"): "`results/NAME`",
    ("RunConfig", "compat"): "hardware behaviour",
    ("WorkloadSpec", "gradient_exchange"): "`ring`",
    ("WorkloadSpec", "sharing"): "one job after another",
    ("SystemSpec", "name"): "`custom`",
    ("SystemSpec", "host"): "required without `tiers`",
    ("SystemSpec", "ssd"): "required without `tiers`",
    ("MemoryTierSpec", "latency"): "`0 s`",
}
_EXTENDED = {"SsdTierSpec": "SsdSpec", "FlashTierSpec": "FlashSsdSpec"}
"""Models whose sections list only the keys that the model they extend does not have."""


def page() -> str:
    """Return the page as Markdown. Raises SystemExit where the template lacks a model or has another."""
    schema = described_schema()
    models = {"RunConfig": schema, **schema["$defs"]}
    unknown = set(models) ^ set(titles("configuration"))
    if unknown:
        raise SystemExit(f"sections and models differ: {', '.join(sorted(unknown))}")
    keys = {name: _keys(name, models) for name in models}
    keys["BehaviourSpec"] = _behaviour(models["BehaviourSpec"])
    names = {"systems": system_names(), "ssds": ssd_names(), "behaviours": sorted(PRESETS)}
    kinds = (units.SIZE, units.RATE, units.DURATION, units.FREQUENCY, units.COMPUTE_RATE, units.COUNT_RATE)
    ranges = "\n".join(f"    - {kind.what}: {kind.range}" for kind in kinds)
    listed = {kind: ", ".join(f"`{name}`" for name in found) for kind, found in names.items()}
    return fill("configuration", **keys, **listed, ranges=ranges)


def _keys(name: str, models: dict[str, Any]) -> str:
    return table(("key", "value", "default", "meaning"), (), _rows(name, models))


def _rows(name: str, models: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    required = models[name].get("required", [])
    inherited = models[_EXTENDED[name]]["properties"] if name in _EXTENDED else {}
    for key, field in models[name]["properties"].items():
        if key in inherited:
            continue
        default = "required" if key in required else _default(field)
        meaning = field.get("description") or _MEANINGS.get((name, key)) or _described(field, models)
        yield f"`{key}`", _kind(field), _DEFAULTS.get((name, key), default), meaning


def _behaviour(model: dict[str, Any]) -> str:
    preset = PRESETS["gpg"].model_dump(mode="json")
    defaults = BehaviourSpec().model_dump(mode="json")
    rows = (
        (f"`{key}`", _kind(field), f"`{defaults[key]}`", f"`{preset[key]}`", field["description"])
        for key, field in model["properties"].items()
    )
    return table(("key", "value", "default", "gpg", "meaning"), (), rows)


def _kind(field: dict[str, Any]) -> str:
    if "enum" in field or "const" in field:
        return ", ".join(f"`{choice}`" for choice in field.get("enum", [field.get("const")]))
    options = [option for option in _options(field) if option.get("type") != "null"]
    if options:
        return " or ".join(map(_kind, options))
    if "$ref" in field:
        return f"see `{titles('configuration')[field['$ref'].rpartition('/')[2]]}`"
    kind = field.get("type")
    if kind == "string":
        return f"quantity, such as `{field['examples'][0]}`" if "examples" in field else "text"
    if kind == "array":
        return _list(field)
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"mapping to {_kind(inner)}" if isinstance(inner, dict) else "mapping"
    if kind == "integer":
        return f"whole number{_range(field)}"
    if kind == "number":
        return f"number{_range(field)}"
    return {"boolean": "`true`, `false`"}.get(str(kind), "value")


def _list(field: dict[str, Any]) -> str:
    if "prefixItems" in field:
        return f"list of {len(field['prefixItems'])} numbers"
    if field["items"].get("type") == "integer":
        return f"list of whole numbers{_range(field['items'])}"
    items = _kind(field["items"]) if field.get("items") else "value"
    return items if items.startswith("see") else f"list of {items}"


def _options(field: dict[str, Any]) -> list[dict[str, Any]]:
    options: list[dict[str, Any]] = field.get("anyOf") or field.get("oneOf") or []
    return options


def _range(field: dict[str, Any]) -> str:
    least, most, below = field.get("minimum"), field.get("maximum"), field.get("exclusiveMaximum")
    if "exclusiveMinimum" in field:
        end = "" if below is None else f", below {below}"
        return f" above {field['exclusiveMinimum']}" + (end if most is None else f", to {most}")
    if least is None:
        return ""
    if below is not None:
        return f" from {least} to less than {below}"
    return f" from {least}" if most is None else f" from {least} to {most}"


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    if default is None or default in ("", [], {}):
        return "none"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _described(field: dict[str, Any], models: dict[str, Any]) -> str:
    if _options(field):
        return _described(_options(field)[0], models)
    if "$ref" not in field:
        return ""
    text: str = models[field["$ref"].rpartition("/")[2]].get("description", "")
    return text.partition(".")[0].replace("``", "`")
