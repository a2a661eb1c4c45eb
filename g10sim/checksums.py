"""Checksums of files, documents that contain their own, and the keys of cells that a file carries."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_FIELD = "sha256"
_STAMP = re.compile(rb"g10sim cells:((?: [0-9a-f]{64})*)")


def bytes_hash(data: bytes) -> str:
    """SHA-256 (hexadecimal) of some bytes."""
    return hashlib.sha256(data).hexdigest()


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file's contents; empty if there is no file. Raises OSError for one that cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


def data_hash(data: object) -> str:
    """SHA-256 of plain data, the same after a way through JSON and for any order of keys."""
    return bytes_hash(json.dumps(data, sort_keys=True, default=str).encode())


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the checksum of all else in it as its last field."""
    return {**document, _FIELD: data_hash(document)}


def unsealed(document: object) -> dict[str, Any] | None:
    """Return a document without its checksum; None if it has none or is not what it was."""
    if not isinstance(document, dict) or _FIELD not in document:
        return None
    rest = {key: value for key, value in document.items() if key != _FIELD}
    return rest if data_hash(rest) == document[_FIELD] else None


def stamp(keys: Iterable[str]) -> str:
    """Return a text, for the metadata of a file, that names the cells whose results it shows."""
    return " ".join(["g10sim cells:", *sorted(set(keys))])


def stamped(data: bytes) -> frozenset[str] | None:
    """Return the keys of the cells that a file names; None if it has no stamp."""
    found = _STAMP.search(data)
    return None if found is None else frozenset(found.group(1).decode().split())
