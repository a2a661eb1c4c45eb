"""Configurations of models: known names, files, the local cache of the hub, and families of transformers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from g10sim.config.data import data_path
from g10sim.config.document import load_document, parse_value
from g10sim.config.presets import validated
from g10sim.config.quantities import Spec
from g10sim.errors import ConfigError, as_spelled, choices_text, nearest
from g10sim.files import reading

CONFIGURATION = "config.json"
_NEAR, _NEAR_KEY = 0.75, 0.6
_MOST_BYTES = 2**22
_FAMILY = "model_type"


class KnownModel(Spec):
    """Settings of a published configuration, on top of the defaults of its family in transformers."""

    source: str
    """where the configuration is published"""
    parameters: int = 0
    """published number of parameters; 0 if it is not told"""
    longest: int | None = None
    """most tokens in a sample; None if the configuration tells"""
    settings: dict[str, Any] = Field(default_factory=dict)


class Family(Spec):
    """Known models of a family (``model_type`` in transformers), and the class that they are trained as."""

    family: str
    architecture: str
    models: dict[str, KnownModel]


@dataclass(frozen=True, slots=True)
class Described:
    """Data of a configuration, the place to blame for it, and the most tokens it takes, if that is known.

    ``published`` are keys that configurations of the family have, in addition to those of transformers.
    """

    data: dict[str, Any]
    place: str
    longest: int | None = None
    published: frozenset[str] = frozenset()

    @contextmanager
    def taken_by(self, library: str) -> Iterator[None]:
        """Turn an error of the block, in which a library takes the data, into a ConfigError."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            problem = f"{self.place}: {' '.join(str(error).split())[:300]}"
            raise ConfigError(f"{problem}; allowed: a configuration that {library} takes") from error

    def no_such_key(self, setting: str, key: str, known: Collection[str]) -> ConfigError:
        """Return the error for a setting of a key that the library would ignore."""
        found = f"no such key{nearest(key, known, _NEAR_KEY)}"
        return ConfigError.at(f"{self.place}: --set {setting}", found, choices_text(known))


@cache
def known_models(folder: str = "models") -> Mapping[str, tuple[Family, KnownModel]]:
    """Return the models of a folder of ``configs`` by name on the Hugging Face hub, without its owner."""
    found: dict[str, tuple[Family, KnownModel]] = {}
    for path in sorted(data_path("configs", folder).glob("*.yaml")):
        document = load_document(path)
        family = validated(Family, document.data, document)
        found |= {name: (family, model) for name, model in family.models.items()}
    return found


def described(name: str, settings: Sequence[str] = ()) -> Described:
    """Return the configuration of a name, with settings (``KEY=VALUE``) laid over it.

    ``name`` is a known model, a directory with a ``config.json`` or such a file, a model of the local cache
    of the hub (``owner/name``), or a family. Raises ConfigError for another, saying what is allowed.
    """
    found = _known(name) or local(name) or _cached(name) or _family(name)
    if found is None:
        raise ConfigError(
            f"hf:{name}: found a model whose configuration would have to be downloaded"
            f"{nearest(name.rpartition('/')[2], known_models(), _NEAR)}; allowed: one of the "
            f"{len(known_models())} names of `g10sim trace models`, a family of transformers such as qwen3, "
            f"a directory with a {CONFIGURATION}, a model in the local cache of the hub, or module:function"
        )
    family = str(found.data[_FAMILY])
    models = known_models().values()
    published = {key for known, model in models if known.family == family for key in model.settings}
    found = replace(found, published=frozenset({*found.data, *published}))
    for setting in settings:
        lay_over(found, setting)
    return found


def _known(name: str) -> Described | None:
    models = known_models()
    plain = as_spelled(name.rpartition("/")[2], models)
    if plain not in models or Path(name, CONFIGURATION).is_file():
        return None
    family, model = models[plain]
    data = {_FAMILY: family.family, "architectures": [family.architecture], **deepcopy(model.settings)}
    return Described(data, f"hf:{name}", model.longest)


def local(name: str, key: str = _FAMILY) -> Described | None:
    """Return the configuration of a directory or a file; None without one.

    ``key`` says what it is of. Raises ConfigError for a file that is no configuration.
    """
    path = Path(name)
    path = path / CONFIGURATION if path.is_dir() else path
    if not path.is_file():
        return None
    return Described(_read(path, key), str(path))


def _cached(name: str) -> Described | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, CONFIGURATION)
    except HFValidationError:
        return None
    return Described(_read(Path(path)), f"hf:{name}") if isinstance(path, str) else None


def _family(name: str) -> Described | None:
    from transformers import CONFIG_MAPPING

    for spelt in (name, name.lower(), name.lower().replace("-", "_")):
        if spelt in CONFIG_MAPPING:
            return Described({_FAMILY: spelt}, f"hf:{name}")
    return None


def _read(path: Path, key: str = _FAMILY) -> dict[str, Any]:
    allowed = f"the configuration of a model, a JSON object with a {key}"
    with reading(path, ConfigError, allowed, "JSON"):
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ConfigError.at(path, f"{size} bytes", allowed)
        data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not isinstance(data.get(key), str):
        found = f"no {key}" if isinstance(data, dict) else type(data).__name__
        raise ConfigError.at(path, found, allowed)
    return data


def lay_over(found: Described, setting: str) -> None:
    """Set a dotted key, such as ``text_config.hidden_size=64``."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set: found '{setting}'; allowed: KEY=VALUE")
    *above, last = key.split(".")
    data = found.data
    for part in above:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {key}: found '{part}', which holds no keys; allowed: KEY=VALUE")
        data = inner
    data[last] = parse_value(text, f"--set {key}")
