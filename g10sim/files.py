"""Writing files so that a reader sees the old contents or the new, never a part; and checksums of them."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from g10sim.errors import ConfigError, G10SimError, printable

_FIELD = "sha256"
_FORMULA_STARTS = ("=", "+", "-", "@")
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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path in the same directory; it takes the place of ``path`` when the block succeeds.

    The block has to write the temporary file. A symbolic link stays: what it leads to is replaced. Raises
    OSError when the directory cannot be written, and for a pipe or a device.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        # Libraries word it as they like, and name no file or the temporary one.
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path | str, error: type[Exception], allowed: str = "a writable path") -> Iterator[None]:
    """Turn an OSError of the block, which writes ``path``, into ``error`` with a message about it."""
    try:
        yield
    except OSError as found:
        raise error(f"{path}: cannot be written: {found.strerror or found}; allowed: {allowed}") from found


@contextmanager
def reading(path: Path, error: type[Exception], allowed: str, form: str = "") -> Iterator[None]:
    """Turn an OSError of the block, which reads ``path``, into ``error`` with a message about it.

    With the name of a form, such as JSON, turn the errors of its readers, too; errors of ours stay.
    """
    try:
        yield
    except OSError as found:
        raise error(f"{path}: cannot be read: {found.strerror or found}; allowed: {allowed}") from found
    except (ValueError, RecursionError) as found:
        if not form or isinstance(found, G10SimError):
            raise
        raise error(f"{path}: found no {form} ({found}); allowed: {allowed}") from found


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows with these columns (others are left out), whole or not at all; return the checksum.

    No cell is a formula to a spreadsheet. Raises ConfigError.
    """
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writerow({column: inert(column) for column in columns})
    writer.writerows({key: inert(value) for key, value in row.items()} for row in rows)
    return save_text(path, buffer.getvalue())


def inert(value: object) -> object:
    """Return a value for a cell of a spreadsheet: a text that it would compute gets an apostrophe in front.

    Unprintable characters are written as escapes. Numbers stay as they are, also those written as text.
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    try:
        return f"'{text}" if text.startswith(_FORMULA_STARTS) and not isfinite(float(text)) else text
    except ValueError:
        return f"'{text}"


def write_json(path: Path, data: Mapping[str, Any]) -> str:
    """Write indented JSON, whole or not at all; return the checksum. Raises ConfigError."""
    return save_text(path, json.dumps(data, indent=2) + "\n")


def write_yaml(path: Path, data: Mapping[str, Any]) -> str:
    """Write YAML in the order of the data, whole or not at all; return the checksum. Raises ConfigError."""
    return save_text(path, yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=120))


def save_text(path: Path, text: str) -> str:
    """Write a text as UTF-8, whole or not at all; return the checksum. Raises ConfigError."""
    data = text.encode()
    with writing(path, ConfigError), replacing(path) as temporary:
        temporary.write_bytes(data)
    return bytes_hash(data)
