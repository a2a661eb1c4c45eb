"""Reads memory snapshots of PyTorch and replays their allocations through a caching pool of ours."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g10sim.errors import TraceError
from g10sim.hardware.allocators.pool import PyTorchPool
from g10sim.importers.kineto_events import NANOSECONDS_PER_MICROSECOND, Entry
from g10sim.importers.operations import Operation, Storage, build_trace
from g10sim.importers.plain_pickle import MOST_BYTES, read_plain_pickle
from g10sim.trace.model import Phase, Trace

WHAT = "a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot)"
_ACTIONS = ("alloc", "free_completed", "free_requested", "oom", "segment_alloc", "segment_free", "snapshot")
_SILENT = ("free_requested", "oom", "snapshot")
"""Actions that neither take nor return memory: a block is free when ``free_completed`` says so."""
_EXPANDABLE = ("segment_map", "segment_unmap")
_MOST = 2**48
_A_SIZE = "a whole number of bytes"
_JSON_START = b"{"

Pool = tuple[int, tuple[int, ...]]
"""Stream and memory pool: PyTorch shares no segment between two of them."""


@dataclass(frozen=True, slots=True)
class Block:
    """An allocation: bytes asked for, where, and from which pool."""

    address: int
    size_bytes: int
    pool: Pool


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the recorded history; ``block`` of a segment is the segment."""

    action: str
    block: Block
    time_us: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The history of one device, and what it had when the snapshot was taken.

    ``before`` are blocks from before the history, by address; ``reserved_bytes`` those of all segments at
    the end.
    """

    path: Path
    device: int
    before: tuple[Block, ...]
    events: tuple[Event, ...]
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Reserved bytes, recorded and of our pool: the most at a time, and at the end.

    ``blocks_before`` were there before the history began: where they lay in their segments is not
    recorded, so only without them must the two agree.
    """

    recorded_peak_bytes: int
    recorded_end_bytes: int
    peak_bytes: int
    end_bytes: int
    blocks_before: int


def read_snapshot(path: Path, device: int | None = None) -> Snapshot:
    """Read a snapshot, as pickle or exported as JSON; ``device`` None is the only one with a history.

    Raises TraceError naming file, entry, what was found and what is allowed.
    """
    values, most = _values(path)
    top = Entry(values, str(path))
    histories = top.get("device_traces", WHAT, list)
    recorded = [number for number, history in enumerate(histories) if history]
    if device is None:
        if len(recorded) != 1:
            found = ", ".join(map(str, recorded)) or "none"
            top.fail(
                f"a history of devices {found}",
                "one, or --device N (recorded after torch.cuda.memory._record_memory_history())",
            )
        device = recorded[0]
    elif device not in recorded:
        top.fail(f"no history of device {device}", f"--device {', '.join(map(str, recorded)) or 'none'}")
    events = tuple(_events(path, histories[device]))
    segments = [
        Entry(segment, f"{path}: segments[{number}]")
        for number, segment in enumerate(top.get("segments", WHAT, list))
    ]
    own = [segment for segment in segments if segment.values.get("device", device) == device]
    reserved = sum(_size(segment, "total_size") for segment in own)
    ended = tuple(_blocks_in_use(own, most))
    return Snapshot(path, device, _blocks_before(events, ended), events, reserved)


def _values(path: Path) -> tuple[Any, int]:
    """Return what is in the file and the most blocks that it can hold."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            is_json = file.read(1) == _JSON_START
        if not is_json:
            return read_plain_pickle(path, WHAT)
        if size_bytes > MOST_BYTES:
            raise TraceError(f"{path}: found {size_bytes} bytes; allowed: at most {MOST_BYTES}, {WHAT}")
        return json.loads(path.read_text("utf-8")), size_bytes
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}; allowed: {WHAT}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: found no JSON ({error}); allowed: {WHAT}") from error


def _size(entry: Entry, key: str) -> int:
    found: int = entry.get(key, _A_SIZE, int)
    if not 1 <= found <= _MOST:
        entry.fail(f"{key} {found}", f"{_A_SIZE}, 1 to 2^48")
    return found


def _pool(entry: Entry, key: str) -> Pool:
    parts = entry.get(key, "a pair of whole numbers", list, tuple, default=(0, 0))
    if any(type(part) is not int for part in parts):
        entry.fail(f"{key} {parts}", "a pair of whole numbers")
    return entry.get("stream", "a whole number", int, default=0), tuple(parts)


def _events(path: Path, history: object) -> Iterator[Event]:
    if not isinstance(history, list):
        raise TraceError(f"{path}: device_traces: found no list; allowed: {WHAT}")
    for number, found in enumerate(history):
        entry = Entry(found, f"{path}: event {number}")
        action = entry.get("action", " or ".join(_ACTIONS), str)
        if action in _EXPANDABLE:
            entry.fail("expandable segments", "PYTORCH_CUDA_ALLOC_CONF without expandable_segments")
        if action not in _ACTIONS:
            entry.fail(f"action '{action}'", ", ".join(_ACTIONS))
        if action in _SILENT:
            continue
        address = entry.get("addr", "an address", int)
        time_us = entry.get("time_us", "microseconds", int, default=number)
        yield Event(action, Block(address, _size(entry, "size"), _pool(entry, "pool_id")), time_us)


def _blocks_in_use(segments: Sequence[Entry], most: int) -> Iterator[Block]:
    """Yield the blocks that were in use when the snapshot was taken. Raises TraceError beyond ``most``."""
    seen = 0
    for segment in segments:
        address = segment.get("address", "an address", int)
        for number, found in enumerate(segment.get("blocks", "a list of blocks", list)):
            block = Entry(found, f"{segment.place}: blocks[{number}]")
            seen += 1
            if seen > most:
                block.fail("blocks that are listed again and again", "each block once")
            size_bytes = _size(block, "size")
            if block.get("state", "a state", str).startswith("active"):
                asked = _size(block, "requested_size") if "requested_size" in block.values else size_bytes
                yield Block(address, asked, _pool(segment, "segment_pool_id"))
            address += size_bytes


def _blocks_before(events: Sequence[Event], ended: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks from before the history: freed in it or there at its end, not allocated in it."""
    found, live = [], set[int]()
    for event in events:
        address = event.block.address
        if event.action == "alloc":
            live.add(address)
        elif event.action == "free_completed":
            if address not in live:
                found.append(event.block)
            live.discard(address)
    found += [block for block in ended if block.address not in live]
    return tuple(sorted(found, key=lambda block: block.address))


def replay(snapshot: Snapshot) -> Replay:
    """Let PyTorch's allocator, as we model it, serve the recorded requests.

    Where the recorded one gave segments back to the driver, ours does. Raises TraceError for a history in
    which memory is allocated twice, or that gives back more than there was.
    """
    pools: defaultdict[Pool, PyTorchPool] = defaultdict(PyTorchPool)
    signs = {"segment_alloc": 1, "segment_free": -1}
    changes = [signs.get(event.action, 0) * event.block.size_bytes for event in snapshot.events]
    recorded = snapshot.reserved_bytes - sum(changes)
    replayed = end = 0
    before = ""
    for action, number, event in _numbered(snapshot):
        if action == "alloc":
            pools[event.block.pool].allocate(number, event.block.size_bytes)
        elif action == "free_completed":
            pools[event.block.pool].free(number)
        elif action == "segment_free" and before != action:
            for pool in pools.values():
                pool.empty_cache()
        if action in ("alloc", "segment_free"):
            end = sum(pool.footprint_bytes for pool in pools.values())
            replayed = max(replayed, end)
        before = action
    lowest = running = peak = recorded
    for change in changes:
        running += change
        peak, lowest = max(peak, running), min(lowest, running)
    if lowest < 0:
        raise TraceError(f"{snapshot.path}: found {lowest} reserved bytes; allowed: a whole history")
    return Replay(peak, snapshot.reserved_bytes, replayed, end, len(snapshot.before))


def _numbered(snapshot: Snapshot) -> Iterator[tuple[str, int, Event]]:
    """Yield action, number of the allocation (-1 for none) and event; first the blocks from before.

    Raises TraceError where an address is allocated twice.
    """
    numbers: dict[int, int] = {}
    early = [Event("alloc", block, 0) for block in snapshot.before]
    count = 0
    for event in (*early, *snapshot.events):
        number, address = -1, event.block.address
        if event.action == "alloc":
            if address in numbers:
                raise TraceError(
                    f"{snapshot.path}: found address {address} allocated twice; allowed: a whole history"
                )
            number = numbers[address] = count
            count += 1
        elif event.action == "free_completed":
            number = numbers.pop(address)
        yield event.action, number, event


def import_snapshot(snapshot: Snapshot, *, model: str | None, batch_size: int) -> Trace:
    """Make a trace of the lifetimes: a kernel for each allocation and each release, timed as recorded.

    A first kernel reads what is there before them, a last one what is left. Raises TraceError as the trace's
    check does.
    """
    storages: dict[int, Storage] = {}
    operations, times = [Operation("start", Phase.OTHER)], [0]
    early = len(snapshot.before)
    for action, number, event in _numbered(snapshot):
        if action == "alloc":
            storages[number] = Storage(event.block.size_bytes, external=number < early)
            if number < early:
                operations[0].reads[storages[number]] = None
                continue
            operations.append(Operation("allocation", Phase.OTHER, writes={storages[number]: None}))
        elif action == "free_completed":
            operations.append(Operation("release", Phase.OTHER, reads={storages.pop(number): None}))
        else:
            continue
        times.append(event.time_us)
    operations.append(Operation("end", Phase.OTHER, reads=dict.fromkeys(storages.values())))
    for operation, start, end in zip(operations[1:], times[1:], times[2:], strict=False):
        operation.duration_ns = max(end - start, 0) * NANOSECONDS_PER_MICROSECOND
    operations[-1].duration_ns = NANOSECONDS_PER_MICROSECOND
    origin = {"source": "memory snapshot of PyTorch", "device": f"{snapshot.device}"}
    return build_trace(operations, snapshot.path, model, batch_size, origin)
