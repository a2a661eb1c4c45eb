"""Strict YAML: duplicate keys are errors, booleans and numbers as in YAML 1.2, and lines are kept."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from g10sim.errors import ConfigError, all_of, notes_of, shown
from g10sim.files import reading

KeyPath = tuple[str | int, ...]

_log = logging.getLogger(__name__)


# Far beyond any configuration; within them, reading one takes less than 500 MB.
_MOST_BYTES, _MOST_VALUES, _MOST_LEVELS, _MOST_DIGITS = 8 * 2**20, 200_000, 50, 1000
_MOST_KEPT = 2**16  # characters of a text whose nodes are kept: descriptions are read again and again
_LIMITS = f"found more than {_MOST_VALUES} values or {_MOST_LEVELS} levels of lists and mappings"


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars by the YAML 1.2 core schema (https://yaml.org/spec/1.2.2/#103-core-schema)."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (the base class keys it by class)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._levels = self._values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a value as usual, of no more values and levels than a configuration has."""
        self._levels += 1
        self._values += 1
        if self._levels > _MOST_LEVELS or self._values > _MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=_LIMITS, problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node


def _whole(text: str) -> int:
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _decimal(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_CORE_SCHEMA: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", _whole),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        _decimal,
    ),
}
_TEXT = "tag:yaml.org,2002:str"
_MAPPINGS, _SEQUENCES = ("tag:yaml.org,2002:map",), ("tag:yaml.org,2002:seq",)
_SCALARS: dict[str, Callable[[str], object]] = {_TEXT: str}
for _name, (_pattern, _read) in _CORE_SCHEMA.items():
    _tag = f"tag:yaml.org,2002:{_name}"
    _SCALARS[_tag] = _read
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), None)


@dataclass
class Document:
    """A mapping read from YAML (or made in Python), and where each of its keys stands.

    ``places`` maps the path of a key (names and list positions) to a text such as ``run.yaml:7``.
    """

    data: dict[str, Any]
    source: str
    path: Path | None = None
    places: dict[KeyPath, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path | None:
        """Directory of the file it was read from."""
        return None if self.path is None else self.path.parent

    def place(self, path: KeyPath) -> str:
        """Return the line of a key, or of the nearest key around it, as text."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return self.source

    @contextmanager
    def blaming(self, path: KeyPath) -> Iterator[None]:
        """Turn a ConfigError of the block into one for a key."""
        try:
            yield
        except ConfigError as error:
            raise all_of([self.error(path, text) for text in (str(error), *notes_of(error))]) from None

    def error(self, path: KeyPath, message: str) -> ConfigError:
        """Make the error for a key: file, line, dotted path, and what is wrong."""
        where = f"{self.place(path)}: " if self.place(path) else ""
        return ConfigError(f"{where}{dotted(path)}: {message}" if path else f"{where}{message}")


def dotted(path: KeyPath) -> str:
    """Write a path as in ``system.host.memory`` or ``policies.1.look_ahead``."""
    return ".".join(str(part) or "''" for part in path)


def read_text(path: Path) -> str:
    """Return the text of a file. Raises ConfigError when it cannot be read as UTF-8."""
    try:
        with reading(path, ConfigError, "a readable YAML file"), path.open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: found bytes that are no UTF-8 text; allowed: a YAML file") from error
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{path}: found more than {_MOST_BYTES} characters; allowed: at most that")
    return text


def load_document(path: Path) -> Document:
    """Read a YAML file whose top is a mapping. Raises ConfigError naming file and line."""
    _log.info("reads %s", path)
    return parse_document(read_text(path), str(path), path)


def parse_document(text: str, source: str, path: Path | None = None) -> Document:
    """Read YAML text whose top is a mapping. Raises ConfigError naming the source and the line."""
    places: dict[KeyPath, str] = {}
    data = _Reader(source, places).read(text)
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: found {_kind(data)}; allowed: a mapping (key: value)")
    return Document(data, source, path, places)


def parse_value(text: str, source: str) -> Any:
    """Read one YAML value (of a command-line option). Raises ConfigError naming the source."""
    return _Reader(source, None).read(text)


def _nodes(text: str) -> list[yaml.Node]:
    return list(yaml.compose_all(text, Loader=_Loader))


_kept_nodes = lru_cache(maxsize=64)(_nodes)


class _Reader:
    """Builds plain data from YAML nodes; ``places`` None means that the text has no lines worth naming."""

    def __init__(self, source: str, places: dict[KeyPath, str] | None) -> None:
        self._source = source
        self._places = places
        self._open: list[yaml.Node] = []
        self._built = 0

    def read(self, text: str) -> Any:
        try:
            nodes = _kept_nodes(text) if len(text) <= _MOST_KEPT else _nodes(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            allowed = "fewer" if error.problem == _LIMITS else "valid YAML"
            problem = f"{self._at(mark)}: {error.problem or error.context}"
            raise ConfigError(f"{problem}; allowed: {allowed}") from error
        except yaml.YAMLError as error:
            problem = f"{self._source}: {' '.join(str(error).split())}"
            raise ConfigError(f"{problem}; allowed: valid YAML") from error
        if len(nodes) > 1:
            raise self._error(nodes[1], "", "found a second document; allowed: one")
        return self._build(nodes[0], (), nodes[0]) if nodes else None

    def _at(self, mark: yaml.Mark | None) -> str:
        return self._source if mark is None or self._places is None else f"{self._source}:{mark.line + 1}"

    def _error(self, node: yaml.Node, key: str, message: str) -> ConfigError:
        return ConfigError(": ".join(part for part in (self._at(node.start_mark), key, message) if part))

    def _build(self, node: yaml.Node, path: KeyPath, named: yaml.Node) -> Any:
        """Return the data of a node; its path stands where ``named`` does: its key, or else itself."""
        if self._places is not None:
            self._places[path] = self._at(named.start_mark)
        if any(node is other for other in self._open):
            raise self._error(node, dotted(path), "found an alias to itself")
        self._built += 1
        if self._built > _MOST_VALUES:  # by aliases that stand for aliases
            raise self._error(node, dotted(path), f"{_LIMITS}; allowed: fewer")
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                self._check_tag(node, path, _MAPPINGS)
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                self._check_tag(node, path, _SEQUENCES)
                return [self._build(item, (*path, place), item) for place, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "found a key that is no text"
                raise self._error(key_node, dotted(path) or "key", f"{problem}; allowed: a name")
            if key in found:
                first = f" (first on line {lines[key]})" if self._places is not None else ""
                raise self._error(key_node, dotted((*path, key)), f"found twice{first}; allowed: once")
            self._scalar(key_node, (*path, key))
            lines[key] = key_node.start_mark.line + 1
            found[key] = self._build(value_node, (*path, key), key_node)
        return found

    def _check_tag(self, node: yaml.Node, path: KeyPath, allowed: Container[str]) -> None:
        if node.tag not in allowed:
            problem = f"found the tag {shown(node.tag)}"
            raise self._error(node, dotted(path), f"{problem}; allowed: plain YAML values")

    def _scalar(self, node: yaml.Node, path: KeyPath) -> object:
        self._check_tag(node, path, _SCALARS)
        if node.tag != _TEXT and len(node.value) > _MOST_DIGITS:  # of more than 4,300 Python shows none
            text = f"found a number of {len(node.value)} characters; allowed: a shorter one"
            raise self._error(node, dotted(path), text)
        try:
            return _SCALARS[node.tag](node.value)
        except ValueError as error:  # an explicit tag on something else
            text = f"found {shown(node.value)} with the tag {shown(node.tag)}; allowed: a value that it fits"
            raise self._error(node, dotted(path), text) from error


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return {"list": "a list", "str": f"the text {shown(value)}"}.get(type(value).__name__, shown(value))


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes`` laid over it; mappings are merged, anything else replaced."""
    merged = dict(base)
    for key, value in changes.items():
        known = merged.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(known, value) if both and known is not None else value
    return merged


def leaves(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what is no mapping, by dotted key."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
