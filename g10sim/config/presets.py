"""Systems and behaviours by name, as a mapping, or as a named one with changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from g10sim.config.behaviour import PRESETS, BehaviourSpec
from g10sim.config.data import data_path, find_file
from g10sim.config.document import Document, KeyPath, leaves, load_document, merge
from g10sim.config.flash_ssd import SsdPreset
from g10sim.config.links import LINK_RATES
from g10sim.config.problems import problems
from g10sim.config.quantities import Spec
from g10sim.config.sharing import VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import all_of, as_spelled, not_found, shown

PRESET_KEY = "preset"
_SOURCES = "sources"
_OVERRIDDEN = "set by the user"

Model = TypeVar("Model", bound=Spec)


def system_names() -> tuple[str, ...]:
    """Names of the hardware presets, sorted."""
    return tuple(sorted(path.stem for path in data_path("configs", "systems").glob("*.yaml")))


def ssd_names() -> tuple[str, ...]:
    """Names of the SSD presets, sorted."""
    return tuple(sorted(path.stem for path in data_path("configs", "ssds").glob("*.yaml")))


def load_system(spec: str | Mapping[str, Any] | SystemSpec, beside: Path | None = None) -> SystemSpec:
    """Make a system from a preset's name, a YAML file, a mapping, or ``{preset: NAME, ...changes}``.

    Raises ConfigError naming the dotted key, what was found and what is allowed.
    """
    if isinstance(spec, SystemSpec):
        return spec
    document, path = Document({"system": spec}, ""), ("system",)
    return validated(SystemSpec, system_data(spec, document, path, beside), document, path)


def load_ssd(name: str) -> SsdPreset:
    """Return an SSD preset, its sources under the keys that they have in a system. Raises ConfigError."""
    document = Document({"ssd": name}, "")
    return validated(SsdPreset, _preset_ssd(name, document, ("ssd",)), document)


def load_behaviour(spec: str | Mapping[str, Any] | BehaviourSpec | None) -> BehaviourSpec:
    """Make a behaviour from a preset's name, a mapping, ``{preset: NAME, ...changes}`` or None (defaults).

    Raises ConfigError naming the dotted key, what was found and what is allowed.
    """
    if isinstance(spec, BehaviourSpec):
        return spec
    document, path = Document({"compat": spec}, ""), ("compat",)
    return validated(BehaviourSpec, behaviour_data(spec, document, path), document, path)


def load_variation(spec: Mapping[str, Any] | VariationSpec | None) -> VariationSpec | None:
    """Make a variation of kernel times from a mapping; None stays None. Raises ConfigError."""
    if spec is None or isinstance(spec, VariationSpec):
        return spec
    document = Document({"variation": spec}, "")
    return validated(VariationSpec, spec, document, ("variation",))


def system_data(
    spec: object, document: Document, path: KeyPath, beside: Path | None = None, within: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Resolve the preset of a system's description; the result is not checked yet. Raises ConfigError.

    A preset may start from another; ``within`` are those that lead here.
    """
    preset, changes = _split(spec, document, path)
    device, origins = _device(changes, document, path)
    own = _sources(changes, document, path)
    if preset is None:
        sources = {_SOURCES: {**origins, **own}} if device else {}
        return {"name": "custom", **changes, **device, **sources}
    base = _without_replaced_rates(_preset_system(preset, document, path, beside, within), changes)
    base = _without_contexts(base, changes)
    given = _sources(base, document, path)
    if device:
        kept = {key: text for key, text in given.items() if not key.startswith("ssd.")}
        base = {**base, **device, _SOURCES: {**kept, **origins}}
        changes = {**changes, "ssd": _split(changes["ssd"], document, (*path, "ssd"))[1]}
    merged = merge(base, changes)
    changed = leaves({key: value for key, value in changes.items() if key != _SOURCES})
    sources = {
        key: text
        for key, text in merged.get(_SOURCES, {}).items()
        if not any(key == other or key.startswith(f"{other}.") for other in changed)
    }
    merged[_SOURCES] = {**sources, **_set_here(changed, own), **own}
    return merged


def _sources(data: Mapping[str, Any], document: Document, path: KeyPath) -> Mapping[str, Any]:
    """Return where the numbers of a description come from. Raises ConfigError for anything but a mapping."""
    found = data.get(_SOURCES, {})
    if not isinstance(found, Mapping):
        raise document.error((*path, _SOURCES), f"found {shown(found)}; allowed: a mapping of keys to texts")
    return found


def behaviour_data(spec: object, document: Document, path: KeyPath) -> dict[str, Any]:
    """Resolve the preset of a behaviour; the result is not checked yet. Raises ConfigError."""
    preset, changes = _known({} if spec is None else spec, document, path, PRESETS)
    return changes if preset is None else merge(PRESETS[preset].model_dump(mode="json"), changes)


def uncertainty_names() -> tuple[str, ...]:
    """Names of the presets of uncertainty, sorted."""
    return tuple(sorted(path.stem for path in data_path("configs", "uncertainty").glob("*.yaml")))


def uncertainty_data(spec: object, document: Document, path: KeyPath) -> dict[str, Any]:
    """Resolve the preset of an uncertainty; the result is not checked yet. Raises ConfigError."""
    preset, changes = _known(spec, document, path, uncertainty_names())
    if preset is None:
        return changes
    return merge(load_document(data_path("configs", "uncertainty", f"{preset}.yaml")).data, changes)


def validated(model: type[Model], data: Mapping[str, Any], document: Document, path: KeyPath = ()) -> Model:
    """Check data against a model. Raises ConfigError with places and what is allowed, for every problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = [document.error((*path, *where), message) for where, message in problems(error, model)]
        raise all_of(found) from None


def _known(
    spec: object, document: Document, path: KeyPath, names: Collection[str]
) -> tuple[str | None, dict[str, Any]]:
    """Return a preset, of these names, and the changes of it. Raises ConfigError."""
    preset, changes = _split(spec, document, path)
    if preset is not None and preset not in names:
        raise document.error(path, f"found unknown preset '{preset}'{not_found(preset, names)}")
    return preset, changes


def _split(spec: object, document: Document, path: KeyPath) -> tuple[str | None, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping):
        raise document.error(path, f"found {shown(spec)}; allowed: the name of a preset, or a mapping")
    changes = dict(spec)
    preset = changes.pop(PRESET_KEY, None)
    if preset is not None and not isinstance(preset, str):
        raise document.error((*path, PRESET_KEY), f"found {shown(preset)}; allowed: the name of a preset")
    return preset, changes


def _preset_system(
    name: str, document: Document, path: KeyPath, beside: Path | None, within: tuple[str, ...]
) -> dict[str, Any]:
    names = system_names()
    name = as_spelled(name, names)
    if name in names:
        found, key = _bundled("systems", name), name
    elif name.endswith((".yaml", ".yml")):
        with document.blaming(path):
            found = load_document(find_file(name, beside))
        key = str(found.path)
    else:
        raise document.error(path, f"found unknown system '{name}'{not_found(name, names)}, or a YAML file")
    if PRESET_KEY not in found.data:
        return found.data
    if key in within:
        circle = " -> ".join((*within[within.index(key) :], key))
        problem = f"found a circle of presets, {circle}"
        raise document.error(path, f"{problem}; allowed: a preset that ends in none")
    with document.blaming(path):
        return system_data(found.data, found, (), found.directory, (*within, key))


def _without_replaced_rates(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out a preset's link rates where the changes give their own for both directions.

    What is measured of one link, or specified, says nothing about another.
    """
    new = changes.get("pcie")
    both = isinstance(new, Mapping) and ("bandwidth" in new or {"to_device", "from_device"} <= new.keys())
    return _without(base, "pcie", LINK_RATES) if both else base


_BESIDE_TENSORS = ("context_memory", "workspace_memory")


def _without_contexts(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what a preset says of memory in addition to tensors where the changes give the GPU's memory.

    That is a budget for tensors, then, unless the changes say what is taken in addition, too.
    """
    new = changes.get("gpu")
    if not (isinstance(new, Mapping) and "memory" in new):
        return base
    return _without(base, "gpu", [name for name in _BESIDE_TENSORS if name not in new])


def _without(base: dict[str, Any], section: str, names: Collection[str]) -> dict[str, Any]:
    """Return a description without some keys of a section, and without their sources."""
    if not isinstance(base.get(section), Mapping):
        return base
    gone = [f"{section}.{name}" for name in names]
    sources = {key: text for key, text in base.get(_SOURCES, {}).items() if key not in gone}
    kept = {key: value for key, value in base[section].items() if key not in names}
    return {**base, section: kept, _SOURCES: sources}


def _device(
    changes: Mapping[str, Any], document: Document, path: KeyPath
) -> tuple[dict[str, Any], dict[str, str]]:
    """Resolve ``ssd: {preset: NAME, ...changes}``: the key ``ssd`` in full (or nothing), and sources."""
    asked = changes.get("ssd")
    if not isinstance(asked, str | Mapping) or (isinstance(asked, Mapping) and PRESET_KEY not in asked):
        return {}, {}
    name, own = _split(asked, document, (*path, "ssd"))
    preset = _preset_ssd(name, document, (*path, "ssd"))
    return {"ssd": merge(preset["ssd"], own)}, preset[_SOURCES]


def _preset_ssd(name: str | None, document: Document, path: KeyPath) -> dict[str, Any]:
    """Return name, description and sources of an SSD, with its keys under ``ssd``, as a system has them."""
    names = ssd_names()
    name = name and as_spelled(name, names)
    if name not in names:
        raise document.error(path, f"found unknown SSD '{name}'{not_found(name, names)}")
    keys = dict(_bundled("ssds", name).data)
    found = {key: keys.pop(key) for key in ("name", "description", _SOURCES)}
    return {**found, "ssd": keys, _SOURCES: {f"ssd.{key}": text for key, text in found[_SOURCES].items()}}


@cache  # a sweep asks for the same one in each of its combinations
def _bundled(folder: str, name: str) -> Document:
    return load_document(data_path("configs", folder, f"{name}.yaml"))


def _set_here(changed: Mapping[str, Any], sources: Mapping[str, Any]) -> dict[str, str]:
    """Return the source of values that have no source, neither as a whole nor in parts."""
    aside = ["name", "description", "gpu.name"]
    aside += [key for key in changed if any(other.startswith(f"{key}.") for other in sources)]
    return {key: _OVERRIDDEN for key, value in changed.items() if value is not None and key not in aside}
