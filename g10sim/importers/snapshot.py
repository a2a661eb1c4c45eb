"""Reads memory snapshots of PyTorch and replays their allocations through a caching pool of ours."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.display import rounded_bytes
from g10sim.errors import TraceError
from g10sim.files import reading
from g10sim.importers.account import Account, accounted
from g10sim.importers.kineto_events import NANOSECONDS_PER_MICROSECOND, Entry
from g10sim.importers.near_json import unchanged
from g10sim.importers.operations import Operation, Storage, build_trace
from g10sim.importers.plain_pickle import read_plain_pickle
from g10sim.importers.snapshot_history import SIGNS, Action, Block, Event, History, Pool, State, whole_history
from g10sim.results.pools import PyTorchPool
from g10sim.trace.model import Phase, TensorKind, TimeSource, Trace

WHAT = "a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot)"

_SILENT = ("oom", "snapshot", "user_defined")
"""Actions that neither take nor return memory."""
_ACTIONS = tuple(sorted((*Action, *_SILENT)))
MOST_BYTES = 256 * 2**20
"""Largest file that is read."""
_MOST = 2**48
_A_SIZE = "a whole number of bytes"
_JSON_STARTS, _BEFORE_JSON, _LOOKED_AT = (b"{", b"["), b"\xef\xbb\xbf \t\r\n", 64


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The history of one device, and what it had when the snapshot was taken.

    ``reserved_bytes`` are those of all segments at the end, ``in_use_bytes`` what they say is in use.
    ``start_us`` and ``end_us`` are the times of the first and the last entry: without times (``is_timed``)
    the order alone is known. ``notes`` are what the file does not say, a line each.
    """

    path: Path
    device: int
    history: History
    reserved_bytes: int
    in_use_bytes: int
    start_us: int
    end_us: int
    notes: tuple[str, ...]

    @property
    def is_timed(self) -> bool:
        """Return whether the file says when things happened."""
        return self.end_us > self.start_us

    @property
    def is_expandable(self) -> bool:
        """Return whether segments grew and shrank in place."""
        return any(event.action in (Action.MAPPED, Action.UNMAPPED) for event in self.history.events)


@dataclass(frozen=True, slots=True)
class PoolReplay:
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
    histories = top.get("device_traces", WHAT, list, default=[] if "segments" in top.values else None)
    recorded = [number for number, history in enumerate(histories) if _has_memory(history)]
    there = ", ".join(map(str, recorded)) or "none"
    if device is None:
        if len(recorded) != 1:
            how = "recorded after torch.cuda.memory._record_memory_history()"
            top.fail(f"a history of devices {there}", f"one, or --device N ({how})")
        device = recorded[0]
    elif device not in recorded:
        top.fail(f"no history of device {device}", f"--device {there}")
    entries = tuple(_entries(path, histories[device]))
    is_timed = all("time_us" in entry.values for entry in entries)
    events = tuple(_events(entries, is_timed=is_timed))
    listed = top.get("segments", WHAT, list)
    segments = [Entry(one, f"{path}: segments[{number}]") for number, one in enumerate(listed)]
    own = [segment for segment in segments if segment.values.get("device", device) == device]
    start, last = (_time(entries[0]), max(map(_time, entries))) if is_timed else (0, 0)
    at_end = tuple(_block(segment, "address", "total_size", "segment_pool_id") for segment in own)
    end = State(at_end, tuple(_blocks_in_use(own, most)), last, _most_split(top))
    history = whole_history(events, end)
    reserved = sum(segment.size_bytes for segment in end.segments)
    notes = _notes(history, last > start, [number for number in recorded if number != device])
    told = [segment.get("active_size", _A_SIZE, int, default=-1) for segment in own]
    used = sum(told) if min(told, default=-1) >= 0 else sum(block.taken_bytes for block in end.blocks)
    return Snapshot(path, device, history, reserved, used, start, last, tuple(notes))


def _notes(history: History, is_timed: bool, others: Sequence[int]) -> Iterator[str]:
    if not is_timed:
        yield "found no times (time_us): kernels have an order only, and stand for 1 ns each"
    if history.inferred:
        yield (
            f"found no release of {history.inferred} blocks that are gone at the end; they end where it was "
            "requested, where their address is used again, or at the end (recorded with skip_actions?)"
        )
    if others:
        yield f"left out: the history of other devices, {', '.join(map(str, others))}"


def _values(path: Path) -> tuple[Any, int]:
    """Return what is in the file and the most blocks that it can hold."""
    with reading(path, TraceError, WHAT, "JSON"):
        size_bytes = path.stat().st_size
        if size_bytes > MOST_BYTES:
            raise TraceError(f"{path}: found {size_bytes} bytes; allowed: at most {MOST_BYTES}, {WHAT}")
        data = path.read_bytes()
        if data[:_LOOKED_AT].lstrip(_BEFORE_JSON).startswith(_JSON_STARTS):
            return json.loads(data.decode("utf-8-sig"), object_hook=unchanged), size_bytes
    return read_plain_pickle(path, data, WHAT)


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


def _has_memory(history: object) -> bool:
    """Return whether a history has more than marks: a snapshot leaves one on all devices of the machine."""
    if not isinstance(history, list):
        return bool(history)
    return any(not isinstance(one, dict) or one.get("action") not in _SILENT for one in history)


def _entries(path: Path, history: object) -> Iterator[Entry]:
    """Yield the entries of a history, of known actions."""
    if not isinstance(history, list):
        raise TraceError(f"{path}: device_traces: found no list; allowed: {WHAT}")
    for number, found in enumerate(history):
        entry = Entry(found, f"{path}: event {number}")
        action = entry.get("action", " or ".join(_ACTIONS), str)
        if action not in _ACTIONS:
            entry.fail(f"action '{action}'", ", ".join(_ACTIONS))
        yield entry


def _events(entries: Sequence[Entry], *, is_timed: bool) -> Iterator[Event]:
    for entry in entries:
        action = entry.values["action"]
        if action not in _SILENT:
            time_us = _time(entry) if is_timed else 0
            yield Event(Action(action), _block(entry, "addr", "size", "pool_id"), time_us)


def _time(entry: Entry) -> int:
    return int(entry.get("time_us", "microseconds", int))


def _block(entry: Entry, address: str, size: str, pool: str) -> Block:
    """Return the block, or the segment, of an entry that has its address, size and pool at these keys."""
    return Block(entry.get(address, "an address", int), _size(entry, size), _pool(entry, pool))


def _most_split(top: Entry) -> int | None:
    """Return the size from which blocks are not split, of the allocator's settings."""
    settings = top.values.get("allocator_settings")
    found = settings.get("max_split_size") if isinstance(settings, dict) else None
    return found if type(found) is int and found > 0 else None


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
                yield Block(address, asked, _pool(segment, "segment_pool_id"), size_bytes)
            address += size_bytes


def replay(snapshot: Snapshot) -> PoolReplay:
    """Let PyTorch's allocator, as we model it, serve the recorded requests.

    Where the recorded one gave segments back to the driver, ours does. Raises TraceError for a history that
    gives back more than there was.
    """
    pools: defaultdict[Pool, PyTorchPool] = defaultdict(PyTorchPool)
    replayed = end = 0
    before: Action | None = None
    for number, event in _numbered(snapshot):
        if event.action is Action.ALLOCATED:
            pools[event.block.pool].allocate(number, event.block.size_bytes)
        elif event.action is Action.RELEASED:
            pools[event.block.pool].free(number)
        elif event.action in (Action.SHRUNK, Action.UNMAPPED) and before != event.action:
            for pool in pools.values():
                pool.empty_cache()
        if event.action in (Action.ALLOCATED, Action.SHRUNK, Action.UNMAPPED):
            end = sum(pool.footprint_bytes for pool in pools.values())
            replayed = max(replayed, end)
        before = event.action
    early = len(snapshot.history.before)
    return PoolReplay(_reserved_peak(snapshot), snapshot.reserved_bytes, replayed, end, early)


def _reserved_peak(snapshot: Snapshot) -> int:
    """Return the most bytes that were reserved. Raises TraceError where they are less than none."""
    changes = [SIGNS.get(event.action, 0) * event.block.size_bytes for event in snapshot.history.events]
    reserved = list(accumulate(changes, initial=snapshot.reserved_bytes - sum(changes)))
    if min(reserved) < 0:
        raise TraceError(f"{snapshot.path}: found {min(reserved)} reserved bytes; allowed: a whole history")
    return max(reserved)


def _numbered(snapshot: Snapshot) -> Iterator[tuple[int, Event]]:
    """Yield the number of the allocation (-1 for none) and the event; first the blocks from before.

    Raises TraceError for a block that is released twice.
    """
    numbers: dict[int, tuple[int, Pool]] = {}
    early = [Event(Action.ALLOCATED, block, 0) for block in snapshot.history.before]
    count = 0
    for event in (*early, *snapshot.history.events):
        number, address, pool = -1, event.block.address, event.block.pool
        if event.action is Action.ALLOCATED:
            number, count = count, count + 1
            numbers[address] = number, pool
        elif event.action is Action.RELEASED:
            if address not in numbers:
                found = f"a second release of address {address}"
                raise TraceError.at(snapshot.path, found, "one for each allocation")
            number, pool = numbers.pop(address)
        yield number, replace(event, block=replace(event.block, pool=pool))


def import_snapshot(snapshot: Snapshot, *, model: str | None, batch_size: int) -> Trace:
    """Make a trace of the lifetimes: a kernel for each allocation and each release, timed as recorded.

    A tensor is as large as its block, with what the allocator did not split off. A first kernel reads what is
    there before them, a last one what is left; what is there all the time is persistent. Without times every
    kernel takes 1 ns and has no source of its time. Raises TraceError as the trace's check does.
    """
    storages: dict[int, Storage] = {}
    operations, times = [Operation("start", Phase.OTHER)], [snapshot.start_us]
    early = len(snapshot.history.before)
    released = {number for number, event in _numbered(snapshot) if event.action is Action.RELEASED}
    kept = set(range(early)) - released
    for number, event in _numbered(snapshot):
        if event.action is Action.ALLOCATED:
            stays = TensorKind.OTHER if number in kept else None
            storages[number] = Storage(event.block.taken_bytes, external=number < early, role=stays)
            if number < early:
                operations[0].reads[storages[number]] = None
                continue
            operations.append(Operation("allocation", Phase.OTHER, writes={storages[number]: None}))
        elif event.action is Action.RELEASED:
            operations.append(Operation("release", Phase.OTHER, reads={storages.pop(number): None}))
        else:
            continue
        times.append(event.time_us)
    operations.append(Operation("end", Phase.OTHER, reads=dict.fromkeys(storages.values())))
    times.append(snapshot.end_us)
    moments = accumulate([*times, snapshot.end_us], max)
    for operation, (start, end) in zip(operations, pairwise(moments), strict=True):
        operation.duration_ns = (end - start) * NANOSECONDS_PER_MICROSECOND if snapshot.is_timed else 1
    source = TimeSource.MEASURED if snapshot.is_timed else TimeSource.NONE
    origin = {"source": "memory snapshot of PyTorch", "device_number": f"{snapshot.device}"}
    trace = build_trace(operations, snapshot.path, model, batch_size, origin, time_source=source)
    return accounted(trace, _account(snapshot, trace, storages.values()), snapshot.path, partial=True)


def _account(snapshot: Snapshot, trace: Trace, kept: Iterable[Storage]) -> Account:
    """Return the account of bytes; a snapshot has no device time."""
    account = Account(notes=[*snapshot.notes])
    imported = sum(storage.size_bytes for storage in kept)
    account.compare("in use at the end", snapshot.in_use_bytes, imported, "the history is not whole")
    peak, reserved = peak_live_bytes(trace), _reserved_peak(snapshot)
    if peak > reserved:
        account.notes.append(
            f"found {rounded_bytes(peak)} in use of {rounded_bytes(reserved)} reserved: "
            "allocations or releases are missing"
        )
    return account
