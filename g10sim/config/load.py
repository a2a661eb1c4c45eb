"""Reading a run configuration: YAML file, options on top, sweep values on top of those."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from g10sim.config.data import find_file
from g10sim.config.document import Document, KeyPath, dotted, load_document, parse_value
from g10sim.config.presets import PRESET_KEY, behaviour_data, system_data, uncertainty_data
from g10sim.config.problems import problems
from g10sim.config.run import RunConfig
from g10sim.errors import ConfigError, all_of, choices_text, nearest, shown

_MOST_SHOWN = 200


def load_run(path: Path, settings: Iterable[str] = ()) -> Document:
    """Read a run configuration and lay ``dotted.key=value`` settings over it.

    The path may name a bundled file (``configs/quickstart.yaml``). The file's own name is the run's name
    where it gives none. Raises ConfigError naming the place.
    """
    document = load_document(find_file(str(path)))
    document.data.setdefault("name", path.stem)
    return with_settings(document, settings)


def with_settings(document: Document, settings: Iterable[str]) -> Document:
    """Return a copy with ``dotted.key=value`` settings laid over it, in order. Raises ConfigError."""
    for setting in settings:
        document = _with_setting(document, setting)
    return document


def with_policies(document: Document, policies: Iterable[str]) -> Document:
    """Return a copy with more policies, by name or ``module:Class``, after its own. Raises ConfigError."""
    own, more = document.data.get("policies"), list(policies)
    if not more:
        return document
    if not isinstance(own, list):
        raise document.error(("policies",), f"found {shown(own)}; allowed: a list, to add policies to")
    new = [policy for policy in more if policy not in own]
    return replace(document, data={**document.data, "policies": [*own, *new]})


def run_config(document: Document) -> RunConfig:
    """Check a whole run configuration and resolve its presets. Raises ConfigError with every problem."""
    data: dict[str, Any] = {}
    found: dict[KeyPath, ConfigError] = {}
    for key, value in document.data.items():
        try:
            data[key] = _resolved(key, value, document)
        except ConfigError as error:
            found[(key,)] = error
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        for path, message in problems(error, RunConfig):
            found.setdefault(path, document.error(path, message))
    if found:
        raise all_of(list(found.values()))
    for key in config.sweep:
        _check_sweep_key(key, config, document)
    return config


def _resolved(key: str, value: object, document: Document) -> object:
    """Return the value of a key at the top, that of a preset spelled out."""
    if key == "system":
        return system_data(value, document, (key,), document.directory)
    if key == "compat":
        return behaviour_data(value, document, (key,))
    if key == "uncertainty" and value is not None:
        return uncertainty_data(value, document, (key,))
    return value


def with_values(document: Document, values: dict[str, Any], place_of: KeyPath = ()) -> Document:
    """Return a copy with values laid over dotted keys; errors in them point to ``place_of``/key."""
    changed = replace(document, data=copy.deepcopy(document.data), places=dict(document.places))
    for key, value in values.items():
        path = _place_value(changed, key, value)
        place = document.place((*place_of, key))
        changed.places = {at: text for at, text in changed.places.items() if at[: len(path)] != path}
        changed.places[path] = place
    return changed


def _with_setting(document: Document, setting: str) -> Document:
    key, equals, text = setting.partition("=")
    option = f"--set {setting if len(setting) <= _MOST_SHOWN else f'{setting[:_MOST_SHOWN]}...'}"
    if not equals or not key.strip():
        raise ConfigError.at(option, "no 'key=value'", "for example --set system.host.memory='64 GiB'")
    located = replace(document, places={**document.places, (key.strip(),): option})
    try:
        return with_values(located, {key.strip(): parse_value(text, option)})
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(option) else f"{option}: {message}") from None


def _place_value(document: Document, key: str, value: object) -> KeyPath:
    """Put a value at a dotted key of ``document.data``, making mappings on the way; return its path."""
    parts = ["sweep", key.removeprefix("sweep.")] if key.startswith("sweep.") else key.split(".")
    path: KeyPath = ()
    here: Any = document.data
    for part in parts[:-1]:
        step = _step(here, part, path)
        path = (*path, step)
        following = {} if isinstance(here, dict) and step not in here else here[step]
        here[step] = _opened(following, path)
        here = here[step]
    last = _step(here, parts[-1], path)
    here[last] = value
    return (*path, last)


def _step(here: object, part: str, path: KeyPath) -> str | int:
    """Check that ``part`` can be a key of (or a position in) what lies at ``path``."""
    if isinstance(here, list):
        if not _is_position(part, len(here)):
            allowed = f"a position from 0 to {len(here) - 1}"
            raise ConfigError.at(dotted(path), f"{shown(part)} for an entry of a list", allowed)
        return int(part)
    if not isinstance(here, dict):
        raise ConfigError(f"{dotted(path)}: found {shown(here)}; allowed: a mapping with the key '{part}'")
    return part


def _is_position(text: str, count: int) -> bool:
    """Return whether a part of a key is a position in a list of that many entries."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(count)) and int(text) < count


def _opened(value: object, path: KeyPath) -> object:
    """Spell out a short form so that a key inside it can be set."""
    if isinstance(value, str) and path in (("system",), ("compat",)):
        return {PRESET_KEY: value}
    if isinstance(value, str) and len(path) == 2 and path[0] == "policies":
        return {"name": value}
    return {} if value is None else value


_SWEEPABLE = ("workload", "system", "policies", "compat", "seed")


def _check_sweep_key(key: str, config: RunConfig, document: Document) -> None:
    top, *rest = key.split(".")
    path: KeyPath = ("sweep", key)
    if top not in _SWEEPABLE:
        problem = f"found a key that cannot be swept{nearest(top, _SWEEPABLE)}"
        raise document.error(path, f"{problem}; allowed: keys of {choices_text(_SWEEPABLE)}")
    whole = key in ("policies", "workload") or key.startswith("workload.trace")
    if whole or (top == "policies" and rest[1:] == ["name"]):
        allowed = "several entries of 'policies' or 'workload.trace'"
        raise document.error(path, f"found a whole list; allowed: {allowed}")
    if top == "policies" and not (len(rest) > 1 and _is_position(rest[0], len(config.policies))):
        allowed = f"policies.POSITION.PARAMETER, position 0 to {len(config.policies) - 1}"
        raise document.error(path, f"found '{key}'; allowed: {allowed}")
