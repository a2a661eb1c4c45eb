"""Damaged trace files, plans and configurations: they are read as what they say, or refused cleanly."""

import gzip
import json
import random
import re
from pathlib import Path

import yaml

from g10sim.config.document import load_document
from g10sim.errors import G10SimError
from g10sim.experiment.expand import expand
from g10sim.policies.moves import Await, Evict, Fetch
from g10sim.policies.plan import MigrationPlan, Planned
from g10sim.policies.plan_format import load_plan, save_plan
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.synthetic import chain

EXTREMES = (
    "0", "-1", "1e400", "NaN", "18446744073709551616", "9" * 60, "null", "true", "[]", "{}", '""',
    '"\\u0000"', '"../../etc/passwd"', "0x10", "1_000", "~", "!!python/object/apply:os.system ['true']",
    "&a [*a]", "\t", "\ufeff",
)  # fmt: skip
CONFIGURATION = {
    "name": "fuzz",
    "workload": {
        "jobs": [{"trace": "chain.g10t", "arrival": "1 ms", "copies": 2}],
        "sharing": {"compute": "concurrent"},
    },
    "system": {
        "preset": "a100-40g-pcie3-znand",
        "gpu": {"memory": "8 MiB", "count": 2},
        "host": {"memory": "4 MiB", "memory_bandwidth": "100 GB/s"},
        "pcie": {"shared": [{"name": "up", "gpus": [0, 1], "bandwidth": "16 GB/s"}], "service": "deadline"},
    },
    "policies": ["ideal", {"name": "g10", "safety_margin": 2.0}, {"name": "deepum", "look_ahead": 4}],
    "sweep": {"system.host.memory": ["0 GiB", "4 MiB"]},
    "seed": [0, 1],
    "record": ["summary", "kernels"],
    "compat": {"recency": "use"},
}


class Samples:
    """Valid files in a directory, as text, to be damaged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        trace = chain(4)
        save_trace(trace, directory / "chain.g10t")
        moves = [Planned(2, Evict(1)), Planned(6, Fetch(1)), Planned(6, Await(frozenset({1})), 5)]
        save_plan(MigrationPlan.ordered(moves), directory / "chain.g10p", trace)
        (directory / "run.yaml").write_text(yaml.safe_dump(CONFIGURATION, sort_keys=False))
        self.texts = {
            "trace": _text(directory / "chain.g10t"),
            "plan": _text(directory / "chain.g10p"),
            "configuration": (directory / "run.yaml").read_text(),
        }

    def outcome(self, kind: str, seed: int) -> str:
        """Damage a file and read it: ``read`` or ``refused``. Raises whatever must not happen."""
        draw = random.Random(f"{kind} {seed}")
        text = self.texts[kind]
        if draw.random() < 0.8:  # without its hash a damage is not noticed by that alone
            text = re.sub(r'"sha256":"[0-9a-f]*",?', "", text)
        data = damaged(text, draw)
        path = self.directory / {"trace": "bad.g10t", "plan": "bad.g10p", "configuration": "bad.yaml"}[kind]
        path.write_bytes(_packed(data, kind, draw))
        try:
            if kind == "trace":
                check_trace(load_trace(path))
            elif kind == "plan":
                load_plan(path, load_trace(self.directory / "chain.g10t"))
            else:
                _expanded(path)
        except G10SimError as refusal:
            text = str(refusal)
            assert text, "an empty message"
            assert len(text) < 2000, f"a message of {len(text)} characters"
            assert text.isprintable(), f"a message that is not one printable line: {text!r}"
            return "refused"
        return "read"


def _expanded(path: Path) -> None:
    """Read a configuration, with small numbers of cells only."""
    document = load_document(path)
    sweep = document.data.get("sweep")
    values = list(sweep.values()) if isinstance(sweep, dict) else []
    if any(isinstance(entry, list) and len(entry) > 50 for entry in values):
        return
    expand(document)


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()


def damaged(text: str, draw: random.Random) -> bytes:
    """Return a text with one to three damages: to lines, values, characters or bytes."""
    for _ in range(draw.randint(1, 3)):
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
        if lines and lines[0].startswith("{"):
            place = draw.randrange(len(lines))
            lines[place] = json.dumps(_retyped(json.loads(lines[place]), draw))
            return "\n".join(lines) + "\n"
        return str(yaml.safe_dump(_retyped(yaml.safe_load(text), draw), sort_keys=False))
    except (ValueError, yaml.YAMLError, RecursionError):
        return text


def _retyped(data: object, draw: random.Random) -> object:
    if isinstance(data, dict) and data and draw.random() < 0.8:
        key = draw.choice(list(data))
        if draw.random() < 0.15:
            return {**data, draw.choice(["x", "Name", "gpu", "", 5, None]): 1}
        return {**data, key: _retyped(data[key], draw)}
    if isinstance(data, list) and data and draw.random() < 0.7:
        place = draw.randrange(len(data))
        return [*data[:place], _retyped(data[place], draw), *data[place + 1 :]]
    return draw.choice(
        [None, True, -1, 0, 10**30, 1.5, float("inf"), "", "x", "1 GiB", [], [[]], {}, {"a": 1}]
    )


def _packed(data: bytes, kind: str, draw: random.Random) -> bytes:
    if kind == "configuration" or draw.random() < 0.5:
        return data
    packed = gzip.compress(data, mtime=0)
    if draw.random() < 0.2:
        return packed[: draw.randrange(len(packed))]
    return packed
