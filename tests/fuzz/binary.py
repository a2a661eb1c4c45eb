"""Damaged files that are no text: memory snapshots as pickles and reports of Nsight Systems as databases."""

import json
import pickle
import random
import sqlite3
from pathlib import Path

from damage import flipped
from nsight_example import ROWS, TABLES, write_report
from snapshot_example import MIB, event, history, segment, segments, snapshot

from g10sim.importers.nsight_tables import COPIES, GRAPHS, KERNELS, STRINGS


def snapshot_text() -> str:
    """Return a memory snapshot of PyTorch as JSON."""
    return json.dumps(snapshot(), indent=1)


def snapshot_with_gaps() -> str:
    """Return a snapshot of segments that grow and shrink, with releases that were skipped."""
    grown = [
        event("segment_map", 0, 20 * MIB, 10),
        event("alloc", 0, 4 * MIB, 20, requested_size=4 * MIB - 5, pool_id=[0, 1]),
        event("free_requested", 0, 4 * MIB, 30),
        event("alloc", 0, 3 * MIB, 40),
        event("user_defined", 0, 0, 45),
        event("segment_unmap", 18 * MIB, 2 * MIB, 50),
        event("oom", 0, 0, 60),
    ]
    left = segment(0, 18 * MIB, (3 * MIB, "active_awaiting_free", 2 * MIB), (15 * MIB, "inactive"))
    found = snapshot(device_traces=[grown, []], segments=[left])
    return json.dumps({**found, "allocator_settings": {"max_split_size": 2 * MIB}}, indent=1)


def snapshot_without_times() -> str:
    """Return a snapshot of a second device, in the form of PyTorch 2.0."""
    silent = [{key: value for key, value in one.items() if key != "time_us"} for one in history()]
    left = [{**one, "active_size": 16 * MIB + 1024, "device": 1} for one in segments()]
    return json.dumps(snapshot(device_traces=[[], silent], segments=left), indent=1)


def report_text() -> str:
    """Return the tables of a report of Nsight Systems as JSON."""
    return json.dumps({"tables": TABLES, "rows": ROWS}, indent=1)


def report_of_processes() -> str:
    """Return a report of a process with graphs and managed memory, beside another one that only copies."""
    tables = {name: (*columns, "globalPid") for name, columns in TABLES.items() if name != STRINGS}
    rows = {
        name: [
            (*row, number << 24) for number in ((11,) if name == KERNELS else (11, 12)) for row in ROWS[name]
        ]
        for name in tables
    }
    tables |= {STRINGS: TABLES[STRINGS], GRAPHS: ("start", "end", "deviceId", "graphId", "globalPid")}
    rows |= {STRINGS: ROWS[STRINGS], GRAPHS: [(2000, 2400, 0, 5, 11 << 24)]}
    rows[COPIES] += [(2500, 2600, 0, kind, 2**16, 11 << 24) for kind in (11, 12, 13)]
    return json.dumps({"tables": tables, "rows": rows}, indent=1)


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
