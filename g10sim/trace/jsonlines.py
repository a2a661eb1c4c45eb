"""Files of one JSON object a line, gzip-compressed or plain: the carrier of the trace and plan formats."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from g10sim.errors import G10SimError

_GZIP_MAGIC = b"\x1f\x8b"
_SHOWN_CHARACTERS = 60
_LINE_ENDS = ("\n", "\r\n", "")

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode = json.JSONDecoder().raw_decode


def encode_line(record: dict[str, Any]) -> str:
    """Return a record in canonical form: no spaces, keys as given, pure ASCII, newline at the end."""
    return _encode(record) + "\n"


def shown(value: object) -> str:
    """Return a found value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def read_lines(path: Path, error: type[G10SimError]) -> Iterator[bytes]:
    """Yield the lines of a plain or gzip-compressed file with their ends.

    Raises ``error`` for a file that cannot be opened or ends in the middle of its compressed data.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            for line in _plain(raw):
                number += 1
                yield line
    except (gzip.BadGzipFile, EOFError, zlib.error) as found:
        reason = f"found compressed data that end or break here ({found})"
        raise error(f"{path}: after line {number}: {reason}; allowed: a whole gzip file") from found
    except OSError as found:
        reason = found.strerror or str(found)
        raise error(f"{path}: cannot be read: {reason}; allowed: a readable file") from found


def _plain(raw: BinaryIO) -> Iterable[bytes]:
    compressed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    raw.seek(0)
    return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if compressed else raw


def decode_text(path: Path, number: int, line: bytes, error: type[G10SimError]) -> str:
    """Return a line as text without its end. Raises ``error`` where it is not UTF-8."""
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as found:
        byte = f"found byte 0x{line[found.start]:02x}"
        raise error(f"{path}: line {number}: {byte}; allowed: UTF-8 text or gzip data") from found


def decode_line(path: Path, number: int, line: bytes, error: type[G10SimError]) -> dict[str, Any]:
    """Parse one line. Raises ``error`` where it is not a JSON object."""
    try:
        text = line.decode("utf-8")
        record, end = _decode(text)
    except UnicodeDecodeError:
        decode_text(path, number, line, error)
        raise
    except (ValueError, RecursionError) as found:
        text = decode_text(path, number, line, error)
        reason = found.msg if isinstance(found, json.JSONDecodeError) else type(found).__name__
        raise error(
            f"{path}: line {number}: found {shown(text)}; allowed: one JSON object ({reason})"
        ) from found
    if type(record) is not dict or text[end:] not in _LINE_ENDS:
        text = decode_text(path, number, line, error)
        raise error(f"{path}: line {number}: found {shown(text)}; allowed: one JSON object")
    return record


def write_lines(path: Path, lines: Iterable[str], error: type[G10SimError]) -> None:
    """Write lines gzip-compressed: equal lines give equal bytes, and the file appears whole or not at all.

    Raises ``error`` for a path that cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as out:
            out.writelines(line.encode("ascii") for line in lines)
        partial.replace(path)
    except OSError as found:
        reason = found.strerror or str(found)
        raise error(f"{path}: cannot be written: {reason}; allowed: a writable path") from found
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
