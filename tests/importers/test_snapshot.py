"""Memory snapshots of PyTorch: read without running anything, and replayed with hand-computed results."""

import json
import os
import pickle
import pickletools
import struct
import subprocess
import sys

import pytest
from snapshot_example import MIB, event, history, segment, snapshot

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.errors import TraceError
from g10sim.importers import plain_pickle
from g10sim.importers.snapshot import import_snapshot, read_snapshot, replay


@pytest.fixture
def saved(tmp_path):
    def save(value, name="snapshot.pickle", protocol=4):
        path = tmp_path / name
        path.write_bytes(pickle.dumps(value, protocol))
        return path

    return save


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_replay_reserves_what_was_recorded(saved, protocol):
    found = replay(read_snapshot(saved(snapshot(), protocol=protocol)))
    assert (found.recorded_peak_bytes, found.recorded_end_bytes) == (40 * MIB, 22 * MIB)
    assert (found.peak_bytes, found.end_bytes, found.blocks_before) == (40 * MIB, 22 * MIB, 0)


def test_a_snapshot_exported_as_json_is_the_same(saved, tmp_path):
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(snapshot()))
    assert replay(read_snapshot(path)) == replay(read_snapshot(saved(snapshot())))


def test_streams_and_pools_share_no_segment(saved):
    apart = [
        event("segment_alloc", 0, 2 * MIB),
        event("alloc", 0, 1024),
        event("segment_alloc", 4 * MIB, 2 * MIB, stream=7),
        event("alloc", 4 * MIB, 1024) | {"stream": 7},
        event("segment_alloc", 8 * MIB, 2 * MIB, pool_id=(0, 1)),
        event("alloc", 8 * MIB, 1024, pool_id=(0, 1)),
    ]
    ended = [segment(at * MIB, 2 * MIB, (1024, "active_allocated")) for at in (0, 4, 8)]
    found = replay(read_snapshot(saved({"segments": ended, "device_traces": [apart]})))
    assert found.peak_bytes == found.recorded_peak_bytes == 6 * MIB


def test_blocks_from_before_the_history_are_there_from_its_start(saved):
    late = [event("free_completed", 0, MIB // 2, 5), event("alloc", 0, 1024, 9)]
    ended = [segment(0, 2 * MIB, (1024, "active_allocated"), (2048, "active_allocated"))]
    found = read_snapshot(saved({"segments": ended, "device_traces": [late]}))
    assert [(block.address, block.size_bytes) for block in found.before] == [(0, MIB // 2), (1024, 2048)]
    assert replay(found).blocks_before == 2
    trace = import_snapshot(found, model=None, batch_size=1)
    assert [kernel.name for kernel in trace.kernels] == ["start", "release", "allocation", "end"]
    assert peak_live_bytes(trace) == MIB // 2 + 2048


def test_the_lifetimes_become_a_trace(saved):
    trace = import_snapshot(read_snapshot(saved(snapshot())), model="mine", batch_size=3)
    names = [kernel.name for kernel in trace.kernels]
    assert names == ["start", *["allocation"] * 4, *["release"] * 2, "allocation", "end"]
    # 10, 20, 30, 40, 50, 60 and 80 us: each lasts until the next; the last two get the last's 0 and 1 us.
    assert [kernel.duration for kernel in trace.kernels] == [0, *[10_000] * 5, 20_000, 0, 1000]
    assert peak_live_bytes(trace) == 1024 + (4 + 12 + 17) * MIB
    assert (trace.model, trace.batch_size) == ("mine", 3)
    (at_the_end,) = (kernel.inputs for kernel in trace.kernels[-1:])
    assert sorted(trace.tensors[number].size_bytes for number in at_the_end) == [1024, 3 * MIB, 12 * MIB]


class Hostile:
    """Runs a command when it is unpickled, as any reader that trusts the file would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def import_by_command(path):
    command = [sys.executable, "-m", "g10sim", "trace", "import", "snapshot", path, "-o", "out.g10t"]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent, check=False)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_snapshot_that_runs_a_command_is_refused_and_runs_nothing(saved, tmp_path, protocol):
    path = saved(snapshot(extra=Hostile(tmp_path / "touched")), protocol=protocol)
    with pytest.raises(TraceError, match="found the pickle operation"):
        read_snapshot(path)
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_command_refuses_a_hostile_snapshot_and_runs_nothing(saved, tmp_path):
    path = saved(snapshot(extra=Hostile(tmp_path / "touched")))
    ended = import_by_command(path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1
    assert "found the pickle operation STACK_GLOBAL; allowed: a memory snapshot" in ended.stderr
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "operation"),
    [
        (print, "GLOBAL"),
        ({1, 2}, "EMPTY_SET"),
        (frozenset({1}), "FROZENSET"),
        (bytearray(b"x"), "BYTEARRAY8"),
        (b"x", "SHORT_BINBYTES"),
        (10**1000, "LONG4"),
    ],
)
def test_what_a_snapshot_never_holds_is_refused(saved, value, operation):
    with pytest.raises(TraceError, match=f"found the pickle operation .*{operation}"):
        read_snapshot(saved(snapshot(extra=value), protocol=5))


def test_a_bomb_is_refused_by_its_size_before_it_is_read(tmp_path):
    path = tmp_path / "bomb.pickle"
    with path.open("wb") as file:
        file.truncate(2**30)
    ended = import_by_command(path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"bomb.pickle: found {2**30} bytes; allowed: at most {plain_pickle.MOST_BYTES}" in ended.stderr
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_small_file_of_very_many_values_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_pickle, "MOST_OPERATIONS", 1000)
    path = tmp_path / "many.pickle"
    path.write_bytes(b"\x80\x04](" + b"}" * 1000 + b"e.")
    with pytest.raises(TraceError, match="found more than 1000 values"):
        read_snapshot(path)


@pytest.mark.parametrize("opened", [b"]", b"}K\x00", b"("])
def test_values_nested_too_deep_are_refused(tmp_path, opened):
    closed = {b"]": b"a", b"}K\x00": b"s", b"(": b"t"}[opened]
    inner = b"N"
    path = tmp_path / "deep.pickle"
    for depth, allowed in ((plain_pickle.MOST_DEPTH, True), (plain_pickle.MOST_DEPTH + 1, False)):
        path.write_bytes(b"\x80\x04" + opened * depth + inner + closed * depth + b".")
        reason = (
            "found (list|tuple|device_traces None); allowed: " if allowed else "found values nested deeper"
        )
        with pytest.raises(TraceError, match=reason):
            read_snapshot(path)


def test_a_list_of_references_to_one_list_is_refused(saved):
    blocks = [{"size": 512, "state": "inactive"}] * 1000
    again = [{"address": 0, "total_size": 2 * MIB, "blocks": blocks}] * 1000
    with pytest.raises(TraceError, match="blocks that are listed again and again"):
        read_snapshot(saved({"segments": again, "device_traces": [history()]}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04.",
        b"\x80\x04a.",
        b"\x80\x04]s.",
        b"\x80\x04e.",
        b"\x80\x04h\x07.",
        b"\x80\x04}",
        b"\x80\x04]r\xff\xff\xff\x7f.",
        b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.",
        b"\x80\x04}]Ns.",
        pickle.dumps(snapshot())[:-20],
    ],
)
def test_a_broken_pickle_is_refused(tmp_path, data):
    path = tmp_path / "broken.pickle"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"broken\.pickle: found"):
        read_snapshot(path)


def change(**keys):
    return [*history()[:-1], history()[1] | keys]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device_traces": []}, "found a history of devices none; allowed: one, or --device N"),
        ({"device_traces": [history(), history()]}, "found a history of devices 0, 1; allowed: one"),
        ({"device_traces": [change(action="map")]}, "event 12: found action 'map'; allowed: alloc, "),
        ({"device_traces": [change(action="segment_map")]}, "event 12: found expandable segments"),
        ({"device_traces": [change(size=-1)]}, "event 12: found size -1; allowed: a whole number of bytes"),
        ({"device_traces": [change(size=2**60)]}, "event 12: found size 1152921504606846976"),
        ({"device_traces": [change(addr="x")]}, "event 12: found addr 'x'; allowed: an address"),
        ({"device_traces": [change(pool_id=[{}])]}, "event 12: found pool_id"),
        ({"device_traces": [change()]}, "found address 0 allocated twice; allowed: a whole history"),
        ({"segments": [segment(0, 512)]}, "found -.* reserved bytes; allowed: a whole history"),
        ({"segments": [3]}, r"segments\[0\]: found int; allowed: an object"),
        ({"segments": None}, "found segments None"),
    ],
)
def test_a_snapshot_that_makes_no_sense_is_refused(saved, changes, message):
    with pytest.raises(TraceError, match=message):
        replay(read_snapshot(saved(snapshot(**changes))))


def test_the_device_can_be_chosen(saved):
    both = snapshot(device_traces=[history(), [event("alloc", 4096, 512)]])
    both["segments"].append(segment(4096, 2 * MIB, (512, "active_allocated"), device=1))
    found = read_snapshot(saved(both), device=1)
    assert (found.device, found.reserved_bytes, len(found.events)) == (1, 2 * MIB, 1)
    with pytest.raises(TraceError, match="found no history of device 2; allowed: --device 0, 1"):
        read_snapshot(saved(both), device=2)


def test_the_command_tells_both_numbers(saved, tmp_path):
    ended = import_by_command(saved(snapshot()))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "out.g10t").exists()
    assert ended.stdout.splitlines()[1:] == [
        f"recorded: at most {40 * MIB} bytes reserved, {22 * MIB} at the end",
        f"replayed: at most {40 * MIB} bytes reserved, {22 * MIB} at the end",
    ]


def test_every_operation_of_a_dumped_snapshot_is_allowed():
    frames = [{"filename": "a.py", "line": 70000, "name": "f" * 300}]
    value = snapshot(extra=[None, True, False, 1.5, 2**40, -1, (), (1,), (1, 2), (1, 2, 3), (1,) * 5, frames])
    value["again"] = value["extra"]
    for protocol in (2, 3, 4, 5):
        names = {operation.name for operation, _, _ in pickletools.genops(pickle.dumps(value, protocol))}
        assert names <= plain_pickle._ALLOWED


def test_blocks_from_before_the_history_have_the_bytes_that_were_asked_for(saved):
    block = {"size": 2048, "requested_size": 1600, "state": "active_allocated"}
    early = segment(0, 2 * MIB) | {"blocks": [block]}
    late = [event("segment_alloc", 4 * MIB, 2 * MIB), event("alloc", 4 * MIB, 512)]
    found = read_snapshot(saved({"segments": [early], "device_traces": [late]}))
    assert [found.size_bytes for found in found.before] == [1600]
