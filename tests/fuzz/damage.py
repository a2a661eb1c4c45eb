"""Damages to files: of their lines, values, characters, types and bytes."""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

EXTREMES = (
    "0", "-1", "1e400", "NaN", "18446744073709551616", "9" * 60, "null", "true", "[]", "{}", '""',
    '"\\u0000"', '"../../etc/passwd"', "0x10", "1_000", "~", "!!python/object/apply:os.system ['true']",
    "&a [*a]", "1e999999 GiB", "1e30 GiB", "1 Hz", "0x" + 5000 * "f", 200 * "[", "\\ud800",
    "\x1b]0;x\x07", "\t", "\ufeff",
)  # fmt: skip

OTHERS = (
    None, True, -1, 0, 10**30, 10**400, 1.5, float("inf"), float("nan"), "", "x", "\x1b[2J", "1 GiB", "1 ps",
    "1e999999 GiB", "=1+1", [], [[]], json.loads("[" * 60 + "]" * 60), {}, {"a": 1},
)  # fmt: skip


def damaged(text: str, draw: random.Random) -> bytes:
    """Return a text with one to three damages: to lines, values, characters or bytes."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        text = draw.choice((_lines, _values, _characters, _structure))(text, draw)
    data = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.2 and data:
        place = draw.randrange(len(data))
        data = data[:place] + bytes([draw.randrange(256)]) + data[place + draw.randint(0, 3) :]
    return data


def _lines(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    what = draw.choice(("drop", "double", "swap", "cut"))
    if what == "drop":
        del lines[place]
    elif what == "double":
        lines.insert(other, lines[place])
    elif what == "swap":
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines = lines[:place]
    return "".join(lines)


def _values(text: str, draw: random.Random) -> str:
    """Put an extreme value where a number or a word stands."""
    words = text.replace(":", " : ").replace(",", " , ").split(" ")
    numbers = [i for i, word in enumerate(words) if any(c.isalnum() for c in word)]
    if not numbers:
        return text
    words[draw.choice(numbers)] = draw.choice(EXTREMES)
    return (
        " ".join(words) if draw.random() < 0.3 else text.replace(_word(text, draw), draw.choice(EXTREMES), 1)
    )


def _word(text: str, draw: random.Random) -> str:
    words = [word for word in text.replace(",", " ").replace(":", " ").split() if word]
    return draw.choice(words) if words else text


def _characters(text: str, draw: random.Random) -> str:
    if not text:
        return text
    place = draw.randrange(len(text))
    return (
        text[:place]
        + draw.choice(["", "\n", "\x00", "{", "]", '"', ":", "é", "\ud800", " "])
        + text[place + 1 :]
    )


def _structure(text: str, draw: random.Random) -> str:
    """Change the type of something in a JSON line or a YAML document, or give it an unknown key."""
    lines = text.splitlines()
    try:
        if lines and lines[0] == "{":
            return json.dumps(_retyped(json.loads(text), draw), indent=1)
        if lines and lines[0].startswith("{"):
            place = draw.randrange(len(lines))
            lines[place] = json.dumps(_retyped(json.loads(lines[place]), draw))
            return "\n".join(lines) + "\n"
        return str(yaml.safe_dump(_retyped(yaml.safe_load(text), draw), sort_keys=False))
    except (ValueError, yaml.YAMLError, RecursionError):
        return text


def _retyped(data: object, draw: random.Random) -> object:
    """Change one value anywhere, or add a key beside it."""
    places = list(_places(data))
    if not places:
        return draw.choice(OTHERS)
    holder, key = draw.choice(places)
    if isinstance(holder, dict) and draw.random() < 0.15:
        holder[draw.choice(["x", "Name", "gpu", "", 5, None])] = 1
    else:
        holder[key] = draw.choice(OTHERS)
    return data


def _places(data: object) -> Iterator[tuple[Any, Any]]:
    """Yield every list or mapping with each of its keys."""
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _places(data[key])


def unpacked(path: Path) -> str:
    """Return the text of a compressed file."""
    return gzip.decompress(path.read_bytes()).decode()


def packed(data: bytes, draw: random.Random) -> bytes:
    """Return data, half of the time compressed; some archives are cut short or have a bit flipped."""
    if draw.random() < 0.5:
        return data
    archive = gzip.compress(data, mtime=0)
    what = draw.random()
    if what < 0.2:
        return archive[: draw.randrange(len(archive))]
    return flipped(archive, draw) if what < 0.5 else archive


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Return data with one bit changed."""
    if not data:
        return data
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
