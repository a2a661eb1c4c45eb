"""Reads JSON files as tools write them: packed or plain, and with what is almost JSON in them.

Kineto writes numbers that JSON has no word for (``inf``) and paths of Windows with single backslashes; other
tools leave a comma after the last entry. Such text is mended where, and only where, it is no JSON as it is.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

from g10sim.errors import TraceError
from g10sim.files import reading
from g10sim.trace.jsonlines import BROKEN_GZIP, refuse_half_characters, unpacked

_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_TAR_PLACE, _TAR_MAGIC = 257, b"ustar"
_JSON_SUFFIX = ".json"
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"'
    r"|-?\b(?:inf(?:inity)?|nan(?:\(\w*\))?)(?![\w.])"
    r"|-?1\.\#(?:inf|ind|qnan|snan)\d*"
    r"|,(?=\s*[\]}])",
    re.IGNORECASE | re.DOTALL,
)
"""Whole strings, numbers that are none, and commas after a last entry."""
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = frozenset('"\\/bfnrt')
_ALONE = 2
_BACKSLASH = re.compile(r'\\(["\\]?)')


def read_json(path: Path, what: str) -> Any:
    """Return what a JSON file holds: plain, compressed by gzip, or alone in an archive of tar.

    Raises TraceError, which calls the file ``what``.
    """
    try:
        with reading(path, TraceError, f"{what} (JSON)", "JSON"), unpacked(path) as file:
            text = _alone(path, file.read(), what).decode("utf-8-sig")
            found = _decoded(text)
    except (*BROKEN_GZIP, tarfile.TarError) as error:
        raise TraceError(f"{path}: cannot be read: {error}; allowed: {what} (JSON)") from error
    if _HALF_CHARACTER.search(text):
        refuse_half_characters(str(path), found, TraceError)
    return found


def _alone(path: Path, data: bytes, what: str) -> bytes:
    """Return the data, or of an archive of tar the only JSON file in it."""
    if data[_TAR_PLACE : _TAR_PLACE + len(_TAR_MAGIC)] != _TAR_MAGIC:
        return data
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [one for one in archive if one.isfile() and one.name.endswith(_JSON_SUFFIX)]
        if len(members) != 1:
            raise TraceError(f"{path}: found {len(members)} JSON files in it; allowed: one, {what}")
        inside = archive.extractfile(members[0])
        return b"" if inside is None else inside.read()


def unchanged(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object of the file: Python notices Ctrl-C in a call, and the decoder alone makes none."""
    return found


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, strict=False, object_hook=unchanged)
    except ValueError as as_it_is:
        mended = _TOKEN.sub(_mended, text)
        try:
            return json.loads(mended, strict=False, object_hook=unchanged)
        except ValueError:
            raise as_it_is from None


def _mended(match: re.Match[str]) -> str:
    token = match.group()
    if token[0] == '"':
        if all(len(one) != _ALONE or one[1] in _ESCAPED for one in _ESCAPE.findall(token)):
            return token
        # A path of Windows: what looks like an escape elsewhere in it is none either.
        return _BACKSLASH.sub(lambda one: one.group() if one.group(1) else r"\\", token)
    if token == ",":
        return ""
    letters = token.lower().removeprefix("-").removeprefix("1.#").replace("inf", "")
    name = "NaN" if "n" in letters else "Infinity"
    return f"-{name}" if token[0] == "-" and name != "NaN" else name
