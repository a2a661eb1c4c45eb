"""Damaged files that are no text: memory snapshots as pickles and reports of Nsight Systems as databases."""

import json
import pickle
import random
import sqlite3
from pathlib import Path

from damage import flipped
from nsight_example import ROWS, TABLES, write_report
from snapshot_example import snapshot


def snapshot_text() -> str:
    """Return a memory snapshot of PyTorch as JSON."""
    return json.dumps(snapshot(), indent=1)


def report_text() -> str:
    """Return the tables of a report of Nsight Systems as JSON."""
    return json.dumps({"tables": TABLES, "rows": ROWS}, indent=1)


def write_snapshot(path: Path, data: bytes, draw: random.Random) -> None:
    """Write a damaged snapshot as JSON or as a pickle, some of which are damaged once more."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = snapshot()
    pickled = pickle.dumps(value, draw.choice((2, 3, 4, 5)))
    path.write_bytes(data if draw.random() < 0.3 else _hurt(pickled, draw))


def write_database(path: Path, data: bytes, draw: random.Random) -> None:
    """Write a database of damaged tables, or a damaged one where they are no tables any more."""
    _remove(path)
    try:
        value = json.loads(data)
        write_report(path, value["rows"], value["tables"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, sqlite3.Error):
        _remove(path)
        write_report(path)
        path.write_bytes(flipped(path.read_bytes(), draw))
    path.write_bytes(_hurt(path.read_bytes(), draw))


def _remove(path: Path) -> None:
    """Remove a database, and what a failed attempt to write it has left beside it."""
    for one in (path, path.with_name(f"{path.name}-journal")):
        one.unlink(missing_ok=True)


def _hurt(data: bytes, draw: random.Random) -> bytes:
    """Return data, most of the time cut short, or with a bit or some flipped."""
    what = draw.random()
    if what < 0.5:
        return data[: draw.randrange(len(data))]
    for _ in range(0 if what > 0.8 else draw.choice((1, 1, 5, 50))):
        data = flipped(data, draw)
    return data
