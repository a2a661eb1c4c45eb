"""Finds keys of a run configuration that do nothing where they stand, and refuses them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from g10sim.config.document import Document, KeyPath
from g10sim.config.effects import Effect, effects_of
from g10sim.config.load import run_config
from g10sim.config.setting import Setting
from g10sim.errors import ConfigError


class IdleKeys:
    """Collects, over all combinations of swept values, which keys that the user wrote count.

    A key is idle if it is written in some combinations and counts in none of them.
    """

    def __init__(self) -> None:
        self._idle: dict[KeyPath, tuple[Document, str]] = {}
        self._counting: set[KeyPath] = set()

    def note(
        self, document: Document, setting: Setting, path: KeyPath, value: object, effect: Effect, part: object
    ) -> None:
        """Note whether a key of a part, or a policy, counts in a combination; the document has its values."""
        if effect.counts(setting, part):
            self._counting.add(path)
        elif path not in self._idle:
            message = f"found {_words(value)}, which does nothing here: {effect.otherwise}"
            self._idle[path] = document, f"{message}; allowed: {effect.where}, or leaving it out"

    def note_all(self, document: Document, setting: Setting) -> None:
        """Note which keys of a combination count by the effects at them."""
        for path, holder, key, value in _written(document.data, setting.config, ()):
            effect = effects_of(type(holder)).get(key)
            if effect is not None:
                self.note(document, setting, path, value, effect, holder)

    def check(self) -> None:
        """Raise ConfigError for the first idle key that may be left out."""
        for path, (document, message) in self._idle.items():
            if path not in self._counting and _may_be_left_out(document, path):
                raise document.error(path, message)


def _written(
    data: Mapping[str, Any], model: BaseModel, path: KeyPath
) -> Iterator[tuple[KeyPath, BaseModel, str, object]]:
    """Yield keys that the user gave a value: path, part of the configuration that has it, name, value."""
    for key, value in data.items():
        if value is None or key not in type(model).model_fields:
            continue
        here, found = (*path, key), getattr(model, key)
        default = type(model).model_fields[key].get_default(call_default_factory=True)
        if found == default and not isinstance(found, BaseModel):
            continue
        yield here, model, key, value
        if isinstance(value, Mapping) and isinstance(found, BaseModel):
            yield from _written(value, found, here)
        elif isinstance(value, list | tuple) and isinstance(found, tuple):
            for number, (entry, part) in enumerate(zip(value, found, strict=False)):
                if isinstance(part, str):  # an entry of tiers that describes a section of the system
                    part = getattr(model, part, part)
                if isinstance(entry, Mapping) and isinstance(part, BaseModel):
                    yield from _written(entry, part, (*here, number))


def _may_be_left_out(document: Document, path: KeyPath) -> bool:
    """Return True if a configuration is valid without a key."""
    data = copy.deepcopy(document.data)
    here: Any = data
    for part in path[:-1]:
        here = here[part]
    del here[path[-1]]
    try:
        run_config(Document(data, document.source, document.path))
    except ConfigError:
        return False
    return True


def _words(value: object) -> str:
    """Describe a value in a message, without the contents of a mapping or list."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else repr(value)
