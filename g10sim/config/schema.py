"""JSON Schema of a run configuration, generated from its definition: editors complete and check with it."""

from __future__ import annotations

import copy
from typing import Any

from g10sim.config.behaviour import PRESETS, BehaviourSpec
from g10sim.config.effects import effects_of
from g10sim.config.presets import PRESET_KEY, ssd_names, system_names, uncertainty_names
from g10sim.config.quantities import Spec, descriptions
from g10sim.config.run import RunConfig, UncertaintySpec
from g10sim.config.system import SystemSpec

_REFERENCE = "#/$defs/"


def described_schema() -> dict[str, Any]:
    """Return the JSON Schema of the definitions, which says of keys that do not always count when they do."""
    schema = RunConfig.model_json_schema()
    definitions = {**schema["$defs"], RunConfig.__name__: schema}
    parts = [*Spec.__subclasses__()]
    for part in parts:
        parts += part.__subclasses__()
        effects, keys = effects_of(part), definitions.get(part.__name__, {}).get("properties", {})
        for key, text in descriptions(part).items() if keys else ():
            counts = f"; counts {effects[key].where}" if key in effects else ""
            keys[key] = dict(sorted({**keys[key], "description": text + counts}.items()))
    return schema


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a run configuration as it is written in YAML."""
    schema = described_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "g10sim run configuration"
    definitions: dict[str, Any] = schema["$defs"]
    keys = schema["properties"]
    for key, model, names in (
        ("system", SystemSpec, list(system_names())),
        ("compat", BehaviourSpec, sorted(PRESETS)),
        ("uncertainty", UncertaintySpec, list(uncertainty_names())),
    ):
        changes = _changes(model.__name__, definitions, names)
        whole = {"$ref": f"{_REFERENCE}{model.__name__}"}
        keys[key] = {
            "description": keys[key].get("description", ""),
            "anyOf": [{"type": "string", "examples": names}, whole, {"$ref": f"{_REFERENCE}{changes}"}],
        }
    keys["uncertainty"]["anyOf"].append({"type": "null"})
    definitions["SystemSpec"]["required"].remove("name")
    _add_ssd_presets(definitions)
    named = {"type": "string", "description": "policy key, or module:Class"}
    keys["policies"]["items"] = {"anyOf": [named, keys["policies"]["items"]]}
    trace = definitions["WorkloadSpec"]["properties"]["trace"]
    trace["anyOf"] = [{"type": "string"}, {"type": trace.pop("type"), "items": trace.pop("items")}]
    return schema


def _changes(name: str, definitions: dict[str, Any], presets: list[str]) -> str:
    """Define a preset with changes: every key of the model optional, ``preset`` required."""
    pending = [name]
    while pending:
        current = pending.pop()
        target = f"{current}Changes"
        if target in definitions:
            continue
        changes = copy.deepcopy(definitions[current])
        changes.pop("required", None)
        pending += _redirect(changes)
        definitions[target] = changes
    top = definitions[f"{name}Changes"]
    top["properties"] = {PRESET_KEY: {"type": "string", "examples": presets}, **top["properties"]}
    top["required"] = [PRESET_KEY]
    return f"{name}Changes"


def _add_ssd_presets(definitions: dict[str, Any]) -> None:
    """Let every SSD be a preset with changes, too."""
    preset = {PRESET_KEY: {"type": "string", "examples": list(ssd_names())}}
    changes = definitions["FlashSsdSpecChanges"]
    changes["properties"] = {**preset, **changes["properties"]}
    ssd = definitions["SystemSpec"]["properties"]["ssd"]
    _flatten(ssd)
    ssd["anyOf"].append({"$ref": f"{_REFERENCE}FlashSsdSpecChanges"})


def _flatten(value: dict[str, Any]) -> None:
    """List the alternatives of a value, nested ones included, under ``anyOf``."""
    alternatives = [*value.pop("oneOf", ()), *value.pop("anyOf", ())]
    if alternatives:
        value["anyOf"] = [
            inner for outer in alternatives for inner in outer.get("oneOf", outer.get("anyOf", [outer]))
        ]


def _redirect(changes: dict[str, Any]) -> list[str]:
    """Let direct references to other models point to their changeable form; return those models."""
    found: list[str] = []
    for value in changes.get("properties", {}).values():
        _flatten(value)
        for reference in (value, *value.get("anyOf", ())):
            if "$ref" in reference:
                found.append(reference["$ref"].removeprefix(_REFERENCE))
                reference["$ref"] += "Changes"
    return found
