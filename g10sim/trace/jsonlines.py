"""Files of one JSON object a line, gzip-compressed or plain: the carrier of the trace and plan formats."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from g10sim.errors import G10SimError, shown
from g10sim.files import reading, replacing, writing

_GZIP_MAGIC = b"\x1f\x8b"
# Recordings shrink to a twentieth or fortieth by gzip. What shrinks more than this was made to fill memory.
_MOST_SHRUNK = 100
_UNSUSPECTED_BYTES = 16 * 2**20
_LONGEST_LINE = 16 * 2**20
_HASH_CHARACTERS = 16
UNHASHED_KEYS = ("sha256", "origin")
_TYPE_NAMES = {
    str: "a text",
    int: "an integer",
    bool: "true or false",
    list: "a list of integers",
    dict: "an object of texts",
}
_Choice = TypeVar("_Choice", bound=Enum)
_LINE_ENDS = ("\n", "\r\n", "")

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class _TwiceError(ValueError):
    """A key is twice in an object."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its keys and values. Raises _TwiceError."""
    record = dict(pairs)
    if len(record) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise _TwiceError(f"found key {shown(key)} twice; allowed: once")
    return record


_decode = json.JSONDecoder(object_pairs_hook=_distinct).raw_decode


def encode_line(record: dict[str, Any]) -> str:
    """Return a record in canonical form: no spaces, keys as given, pure ASCII, newline at the end."""
    return _encode(record) + "\n"


def short_hash(text: str) -> str:
    """Return the beginning of a hash for a message."""
    return shown(text if len(text) <= _HASH_CHARACTERS else f"{text[:_HASH_CHARACTERS]}...")


def read_lines(path: Path, error: type[G10SimError]) -> Iterator[bytes]:
    """Yield the lines of a plain or gzip-compressed file with their ends.

    Raises ``error`` for a file that cannot be opened or ends in the middle of its compressed data.
    """
    number = 0
    with reading(path, error, "a readable file"), unpacked(path) as file:
        try:
            for line in iter(partial(file.readline, _LONGEST_LINE), b""):
                number += 1
                if len(line) == _LONGEST_LINE:
                    found = f"a line of {_LONGEST_LINE} bytes or more"
                    raise error.at(f"{path}: line {number}", found, "shorter ones")
                yield line
        except BROKEN_GZIP as found:
            reason = f"found compressed data that end or break here ({found})"
            raise error(f"{path}: after line {number}: {reason}; allowed: a whole gzip file") from found


BROKEN_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)
"""Errors of reading a file whose compressed data are damaged, or expand beyond measure."""


@contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or gzip-compressed file for reading.

    Raises OSError; reading raises it, too, or one of ``BROKEN_GZIP``.
    """
    with path.open("rb") as raw:
        compressed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        raw.seek(0)
        yield io.BufferedReader(_Unpacking(raw), _BUFFER_BYTES) if compressed else raw


_BUFFER_BYTES = 2**17


class _Unpacking(io.RawIOBase):
    """Unpacks gzip data, until too much comes out of too little."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._file = raw, gzip.GzipFile(fileobj=raw)
        self._unpacked = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return the number of bytes."""
        count = self._file.readinto(buffer)
        self._unpacked += count
        if self._unpacked > _UNSUSPECTED_BYTES + _MOST_SHRUNK * self._raw.tell():
            raise gzip.BadGzipFile(f"{self._unpacked} bytes and more are packed into {self._raw.tell()}")
        return count


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
    except _TwiceError as found:
        raise error(f"{path}: line {number}: {found}") from found
    except (ValueError, RecursionError) as found:
        text = decode_text(path, number, line, error)  # raises where it is no text
        reason = found.msg if isinstance(found, json.JSONDecodeError) else type(found).__name__
        raise error.at(f"{path}: line {number}", shown(text), f"one JSON object ({reason})") from found
    if type(record) is not dict or text[end:] not in _LINE_ENDS:
        raise error.at(f"{path}: line {number}", shown(text.rstrip("\r\n")), "one JSON object")
    if b"\\u" in line:
        refuse_half_characters(f"{path}: line {number}", record, error)
    return record


def refuse_half_characters(place: str, record: object, error: type[G10SimError]) -> None:
    """Refuse escapes of lone surrogates, which no terminal or file can show."""
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as found:
        raise error.at(place, f"half a character ({found.object[found.start]!r})", "Unicode text") from found


class Fields:
    """Keys that a kind of line may have: their types, and defaults of those that are not required."""

    def __init__(self, required: dict[str, type], optional: dict[str, tuple[type, Any]]) -> None:
        self.types = required | {key: kind for key, (kind, _) in optional.items()}
        self.defaults = {key: default for key, (_, default) in optional.items()}


class RecordReader:
    """Reads a file of a header and records line by line, hashes it and knows the place for messages.

    Every method raises the error class given here, naming file and line.
    """

    def __init__(self, path: Path, error: type[G10SimError]) -> None:
        self._path = path
        self._error = error
        self._lines = read_lines(path, error)
        self._number = 0
        self._digest = hashlib.sha256()
        self._expected_hash = ""
        self._accepted_shapes: set[tuple[object, ...]] = set()

    def header(
        self, name: str, versions: Collection[int], allowed: Fields, counts: tuple[str, ...]
    ) -> dict[str, Any]:
        """Read the first line; ``counts`` are the keys that say how many records follow."""
        record = self._record("a header")
        if record.get("format") != name:
            self.fail(f"found format {shown(record.get('format'))}; allowed: {name!r}")
        found = record.get("version")
        if type(found) is not int or found not in versions:
            self.fail(f"found version {shown(found)}; allowed: {' or '.join(map(str, versions))}")
        header = self.fields(record, allowed)
        for key in counts:
            if header[key] < 0:
                self.fail(f"{key}: found {header[key]}; allowed: 0 or more")
        self._expected_hash = header["sha256"]
        identity = {key: value for key, value in record.items() if key not in UNHASHED_KEYS}
        self._digest.update(encode_line(identity).encode("ascii"))
        return header

    def record(self, subject: str, allowed: Fields) -> dict[str, Any]:
        """Read the next line, which must have a key ``subject``; left-out keys get their defaults."""
        return self.fields(self.entry(subject), allowed)

    def entry(self, subject: str, *others: str) -> dict[str, Any]:
        """Read the next line as it stands; it must have a key ``subject``, or one of others."""
        allowed = " or ".join([f"a {subject}", *others]) + " (the header promises more)"
        record = self._record(allowed)
        if record.keys().isdisjoint((subject, *others)):
            self.fail(f"found {shown(record)}; allowed: {allowed}")
        return record

    def _record(self, wanted: str) -> dict[str, Any]:
        line = next(self._lines, None)
        self._number += 1
        if line is None:
            self.fail(f"found the end of the file; allowed: {wanted}")
        if self._number > 1:
            self._digest.update(line)
        return decode_line(self._path, self._number, line, self._error)

    def finish(self, promised: str) -> None:
        """Make sure that nothing follows."""
        line = next(self._lines, None)
        if line is not None:
            self._number += 1
            text = decode_text(self._path, self._number, line, self._error)
            self.fail(f"found {shown(text)}; allowed: nothing (the header promises {promised})")

    def check_hash(self, canonical_hash: Callable[[], str]) -> None:
        """Compare the header's hash with the file as it stands or, failing that, its canonical form.

        The same contents written with other spacing or key order are still the same contents.
        """
        if self._expected_hash in ("", self._digest.hexdigest()):
            return
        found = canonical_hash()
        if self._expected_hash != found:
            self._number = 1
            expected = short_hash(self._expected_hash)
            self.fail(
                f"found contents with sha256 {short_hash(found)}; allowed: {expected}, as the header says "
                "(the file was changed after it was written)"
            )

    def fields(self, record: dict[str, Any], allowed: Fields) -> dict[str, Any]:
        """Check keys and types of a record and fill in defaults."""
        # Lines of one file have few shapes, so each shape is judged once.
        shape = (allowed, *record, *map(type, record.values()))
        if shape not in self._accepted_shapes:
            self._check_fields(record, allowed)
            self._accepted_shapes.add(shape)
        return allowed.defaults | record

    def _check_fields(self, record: dict[str, Any], allowed: Fields) -> None:
        types = allowed.types
        for key, value in record.items():
            if key not in types:
                self.fail(f"found unknown key {shown(key)}; allowed: {', '.join(types)}")
            if type(value) is not types[key]:
                self.fail(f"{key}: found {shown(value)}; allowed: {_TYPE_NAMES[types[key]]}")
        for key in types:
            if key not in allowed.defaults and key not in record:
                self.fail(f"found no {key}; allowed: {key} with {_TYPE_NAMES[types[key]]}")

    def choice(self, key: str, value: str, allowed: Mapping[str, _Choice]) -> _Choice:
        """Translate one of a few words."""
        found = allowed.get(value)
        if found is None:
            self.fail(f"{key}: found {shown(value)}; allowed: {', '.join(allowed)}")
        return found

    def integers(self, key: str, values: list[Any]) -> tuple[int, ...]:
        """Check that a list holds integers only."""
        for value in values:
            if type(value) is not int:
                self.fail(f"{key}: found {shown(value)} in a list; allowed: integers")
        return tuple(values)

    def fail(self, message: str) -> NoReturn:
        """Raise the error for the line read last."""
        raise self._error(f"{self._path}: line {self._number}: {message}")


def hash_lines(lines: Iterable[str]) -> str:
    """SHA-256 (hexadecimal) of canonical lines; the first must be a header without its unhashed keys."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("ascii"))
    return digest.hexdigest()


def write_lines(path: Path, lines: Iterable[str], error: type[G10SimError]) -> None:
    """Write lines gzip-compressed: equal lines give equal bytes, and the file appears whole or not at all.

    Raises ``error`` for a path that cannot be written.
    """
    with (
        writing(path, error),
        replacing(path) as partial,
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as out,
    ):
        out.writelines(line.encode("ascii") for line in lines)
