"""Writes a memory snapshot in PyTorch's form: ``snapshot_example.py DIRECTORY``."""

import pickle
import sys
from pathlib import Path

MIB = 2**20


def event(action, address, size_bytes, time_us=0, **more):
    return {"action": action, "addr": address, "size": size_bytes, "stream": 0, "time_us": time_us, **more}


def segment(address, size_bytes, *blocks, device=0):
    """A segment with blocks of (bytes, state), or (bytes, state, bytes asked for)."""
    found = [
        {"size": size, "requested_size": asked[0] if asked else size, "state": state, "frames": []}
        for size, state, *asked in blocks
    ]
    return {"address": address, "total_size": size_bytes, "stream": 0, "device": device, "blocks": found}


def history():
    """What PyTorch's allocator does for 1 KiB, 4, 12 and 17 MiB, after which it gives back what is free.

    1 KiB opens a segment of 2 MiB, 4 MiB one of 20 MiB, in which 12 MiB fit, too; 17 MiB get a segment of 18.
    """
    return [
        event("segment_alloc", 0, 2 * MIB, 10),
        event("alloc", 0, 1024, 10),
        event("segment_alloc", 100 * MIB, 20 * MIB, 20),
        event("alloc", 100 * MIB, 4 * MIB, 20),
        event("alloc", 104 * MIB, 12 * MIB, 30),
        event("segment_alloc", 200 * MIB, 18 * MIB, 40),
        event("alloc", 200 * MIB, 17 * MIB, 40),
        event("free_requested", 200 * MIB, 17 * MIB, 50),
        event("free_completed", 200 * MIB, 17 * MIB, 50),
        event("free_completed", 100 * MIB, 4 * MIB, 60),
        event("segment_free", 200 * MIB, 18 * MIB, 70),
        event("alloc", 100 * MIB, 3 * MIB, 80),
        event("snapshot", 0, 0, 90),
    ]


def segments():
    return [
        segment(0, 2 * MIB, (1024, "active_allocated"), (2 * MIB - 1024, "inactive")),
        segment(
            100 * MIB,
            20 * MIB,
            (4 * MIB, "active_allocated", 3 * MIB),
            (12 * MIB, "active_allocated"),
            (4 * MIB, "inactive"),
        ),
    ]


def snapshot(**changes):
    return {"segments": segments(), "device_traces": [history()], **changes}


if __name__ == "__main__":
    (Path(sys.argv[1]) / "snapshot.pickle").write_bytes(pickle.dumps(snapshot()))
