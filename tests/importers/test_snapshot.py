"""Memory snapshots of PyTorch: read without running anything, and replayed with hand-computed results."""

import json
import math
import os
import pickle
import pickletools
import struct
import subprocess
import sys

import pytest
from snapshot_example import MIB, event, history, segment, segments, snapshot
from typer.testing import CliRunner

import g10sim
from g10sim.analysis.footprint import peak_live_bytes
from g10sim.cli.trace import app
from g10sim.errors import TraceError
from g10sim.importers import plain_pickle
from g10sim.importers.account import account_of
from g10sim.importers.snapshot import MOST_BYTES, import_snapshot, read_snapshot, replay
from g10sim.trace.format import save_trace


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
    before = [(block.address, block.size_bytes) for block in found.history.before]
    assert before == [(0, MIB // 2), (1024, 2048)]
    assert replay(found).blocks_before == 2
    trace = import_snapshot(found, model=None, batch_size=1)
    assert [kernel.name for kernel in trace.kernels] == ["start", "release", "allocation", "end"]
    assert peak_live_bytes(trace) == MIB // 2 + 2048
    assert [tensor.size_bytes for tensor in trace.tensors if tensor.persistent] == [2048]


def test_the_lifetimes_become_a_trace(saved):
    trace = import_snapshot(read_snapshot(saved(snapshot())), model="mine", batch_size=3)
    names = [kernel.name for kernel in trace.kernels]
    assert names == ["start", *["allocation"] * 4, *["release"] * 2, "allocation", "end"]
    # 10, 20, 30, 40, 50, 60 and 80 us: each lasts until the next, the last one until the snapshot at 90.
    assert [kernel.duration for kernel in trace.kernels] == [0, *[10_000] * 5, 20_000, 10_000, 0]
    # No MiB of the segment of 18 is split off for 17.
    assert peak_live_bytes(trace) == 1024 + (4 + 12 + 18) * MIB
    assert (trace.model, trace.batch_size) == ("mine", 3)
    (at_the_end,) = (kernel.inputs for kernel in trace.kernels[-1:])
    assert sorted(trace.tensors[number].size_bytes for number in at_the_end) == [1024, 4 * MIB, 12 * MIB]


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
    assert f"bomb.pickle: found {2**30} bytes; allowed: at most {MOST_BYTES}" in ended.stderr
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
        ({"device_traces": [change(size=-1)]}, "event 12: found size -1; allowed: a whole number of bytes"),
        ({"device_traces": [change(size=2**60)]}, "event 12: found size 1152921504606846976"),
        ({"device_traces": [change(addr="x")]}, "event 12: found addr 'x'; allowed: an address"),
        ({"device_traces": [change(pool_id=[{}])]}, "event 12: found pool_id"),
        ({"device_traces": [change(time_us="soon")]}, "event 12: found time_us 'soon'; allowed: microsec"),
        (
            {"device_traces": [[*history(), event("free_completed", 200 * MIB, 17 * MIB, 95)]]},
            "found a second release of address 209715200; allowed: one for each allocation",
        ),
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
    assert (found.device, found.reserved_bytes, len(found.history.events)) == (1, 2 * MIB, 1)
    with pytest.raises(TraceError, match="found no history of device 2; allowed: --device 0, 1"):
        read_snapshot(saved(both), device=2)


def test_the_command_tells_both_numbers(saved, tmp_path):
    ended = import_by_command(saved(snapshot()))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "out.g10t").exists()
    assert ended.stdout.splitlines()[-2:] == [
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
    assert [found.size_bytes for found in found.history.before] == [1600]


WHOLE = [
    event("segment_alloc", 0x7000, 20 * MIB, 1),
    event("alloc", 0x7000, 4 * MIB, 2),
    event("free_requested", 0x7000, 4 * MIB, 5),
    event("free_completed", 0x7000, 4 * MIB, 6),
    event("user_defined", 0, 0, 7),
]
FREE = segment(0x7000, 20 * MIB, (20 * MIB, "inactive"))


def imported(path, **options):
    return import_snapshot(read_snapshot(path, **options), model=None, batch_size=1)


def lives(trace):
    """Kernels by name, each with the sizes in MiB that it writes and reads."""
    sizes = [tensor.size_bytes / MIB for tensor in trace.tensors]
    return [
        (kernel.name, [sizes[n] for n in kernel.outputs], [sizes[n] for n in kernel.inputs])
        for kernel in trace.kernels
    ]


ONE_LIFE = [("start", [], []), ("allocation", [4], []), ("release", [], [4]), ("end", [], [])]


@pytest.mark.parametrize(
    ("skipped", "released_us"),
    [((), 6), (("free_completed",), 5), (("free_requested",), 6), (("free_requested", "free_completed"), 7)],
)
def test_a_release_that_was_not_recorded_is_where_the_file_puts_it_at_the_latest(saved, skipped, released_us):
    kept = [entry for entry in WHOLE if entry["action"] not in skipped]
    found = read_snapshot(saved({"segments": [FREE], "device_traces": [kept]}))
    trace = import_snapshot(found, model=None, batch_size=1)
    assert lives(trace) == ONE_LIFE
    assert [kernel.duration for kernel in trace.kernels] == [
        1000,
        1000 * (released_us - 2),
        1000 * (7 - released_us),
        0,
    ]
    is_missing = "free_completed" in skipped
    assert found.history.inferred == is_missing
    assert any("found no release of 1 blocks" in note for note in found.notes) == is_missing
    assert replay(found).end_bytes == 20 * MIB


def test_a_block_that_is_still_there_is_not_released(saved):
    ended = segment(0x7000, 20 * MIB, (4 * MIB, "active_pending_free"), (16 * MIB, "inactive"))
    trace = imported(saved({"segments": [ended], "device_traces": [WHOLE[:3]]}))
    assert lives(trace) == [("start", [], []), ("allocation", [4], []), ("end", [], [4])]


@pytest.mark.parametrize("offset", [0, MIB, 3 * MIB])
def test_an_address_that_is_used_again_was_released_before(saved, offset):
    again = [
        *WHOLE[:2],
        event("alloc", 0x7000 + offset, 6 * MIB, 9),
        event("free_completed", 0x7000 + offset, 6 * MIB, 10),
    ]
    found = read_snapshot(saved({"segments": [FREE], "device_traces": [again]}))
    trace = import_snapshot(found, model=None, batch_size=1)
    assert lives(trace)[1:-1] == [
        ("allocation", [4], []),
        ("release", [], [4]),
        ("allocation", [6], []),
        ("release", [], [6]),
    ]
    assert [kernel.duration for kernel in trace.kernels] == [1000, 7000, 0, 1000, 0, 0]
    assert peak_live_bytes(trace) == 6 * MIB
    assert found.history.inferred == 1


def test_segments_may_grow_and_shrink_in_place(saved):
    grown = [
        event("segment_map", 0x7000, 20 * MIB, 1),
        *WHOLE[1:],
        event("segment_map", 0x7000 + 20 * MIB, 20 * MIB, 8),
        event("segment_unmap", 0x7000 + 10 * MIB, 30 * MIB, 9),
    ]
    ended = segment(0x7000, 10 * MIB, (10 * MIB, "inactive")) | {"is_expandable": True}
    found = read_snapshot(saved({"segments": [ended], "device_traces": [grown]}))
    result = replay(found)
    assert (result.recorded_peak_bytes, result.recorded_end_bytes) == (40 * MIB, 10 * MIB)
    assert lives(import_snapshot(found, model=None, batch_size=1)) == ONE_LIFE


def test_a_snapshot_without_times_has_an_order_and_no_rate(saved, tmp_path):
    untimed = [{key: value for key, value in entry.items() if key != "time_us"} for entry in WHOLE]
    trace = imported(saved({"segments": [FREE], "device_traces": [untimed]}))
    assert lives(trace) == ONE_LIFE
    assert trace.origin["time_source"] == "none"
    assert {kernel.time_source.value for kernel in trace.kernels} == {"none"}
    assert not trace.is_timed
    with pytest.warns(UserWarning, match="kernels have no times"):
        result = g10sim.simulate(trace, "a100-40g-pcie3-znand", "base_uvm", iterations=1)
    assert math.isnan(result.summary["samples_per_s"])
    save_trace(trace, tmp_path / "untimed.g10t")
    shown = CliRunner().invoke(app, ["info", str(tmp_path / "untimed.g10t")])
    assert "samples/s" not in shown.output
    assert "not recorded" in shown.output


def test_times_that_are_all_the_same_are_none(saved):
    same = [entry | {"time_us": 5} for entry in WHOLE]
    assert not read_snapshot(saved({"segments": [FREE], "device_traces": [same]})).is_timed


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (15 * MIB, 16 * MIB),  # a rest of 1 MiB stays with the block
        (15 * MIB - 512, 15 * MIB - 512),  # a larger one is split off
        (16 * MIB - 100, 16 * MIB),
    ],
)
def test_what_the_allocator_does_not_split_off_belongs_to_the_tensor(saved, asked, taken):
    events = [
        event("segment_alloc", 0x7000, 16 * MIB, 1),
        event("alloc", 0x7000, asked, 2),
        event("free_completed", 0x7000, asked, 5),
    ]
    ended = segment(0x7000, 16 * MIB, (16 * MIB, "inactive"))
    trace = imported(saved({"segments": [ended], "device_traces": [events]}))
    assert [tensor.size_bytes for tensor in trace.tensors] == [taken]


@pytest.mark.parametrize(("asked", "taken"), [(1, 512), (MIB - 512, MIB - 512), (MIB - 1000, MIB - 512)])
def test_small_blocks_are_split_to_512_bytes(saved, asked, taken):
    events = [
        event("segment_alloc", 0, 2 * MIB, 1),
        event("alloc", 0, asked, 2),
        event("free_completed", 0, asked, 5),
    ]
    trace = imported(saved({"segments": [segment(0, 2 * MIB)], "device_traces": [events]}))
    assert [tensor.size_bytes for tensor in trace.tensors] == [taken]


def test_a_hole_between_blocks_that_fits_is_taken_whole(saved):
    events = [
        event("segment_alloc", 0, 20 * MIB, 1),
        event("alloc", 0, 3 * MIB, 2),
        event("alloc", 3 * MIB, 5 * MIB, 3),
        event("alloc", 8 * MIB, 9 * MIB, 4),
        event("free_completed", 3 * MIB, 5 * MIB, 5),
        event("alloc", 3 * MIB, 4 * MIB + 512, 6),
    ]
    ended = segment(
        0,
        20 * MIB,
        (3 * MIB, "active_allocated"),
        (5 * MIB, "active_allocated", 4 * MIB + 512),
        (9 * MIB, "active_allocated"),
        (3 * MIB, "inactive"),
    )
    found = imported(saved({"segments": [ended | {"active_size": 17 * MIB}], "device_traces": [events]}))
    assert sorted(tensor.size_bytes / MIB for tensor in found.tensors) == [3, 5, 5, 9]
    account = account_of(found)
    assert [(one.recorded_bytes, one.imported_bytes) for one in account.memory] == [(17 * MIB, 17 * MIB)]


def test_what_is_in_use_is_compared_with_what_the_file_says(saved):
    wrong = FREE | {"active_size": 10 * MIB}
    account = account_of(imported(saved({"segments": [wrong], "device_traces": [WHOLE]})))
    assert [text for text in account.warnings() if text.startswith("in use at the end")] == [
        "in use at the end: the file records 10.0 MiB, the trace has 0 B: the history is not whole"
    ]


def test_devices_of_which_there_are_marks_alone_have_no_history(saved):
    """An earlier snapshot has left one on every device of the machine."""
    marks = [event("snapshot", 0, 0, 5), event("user_defined", 0, 0, 6)]
    found = read_snapshot(saved({"segments": [FREE], "device_traces": [WHOLE, marks]}))
    assert (found.device, found.notes) == (0, ())
    with pytest.raises(TraceError, match="found a history of devices none"):
        read_snapshot(saved({"segments": [FREE], "device_traces": [marks]}))


@pytest.mark.parametrize("data", [b"\x1f\x8b\x08", pickle.dumps(snapshot(), protocol=0)])
def test_a_file_of_another_kind_is_refused_with_one_reason(tmp_path, data):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    with pytest.raises(TraceError) as refused:
        read_snapshot(path)
    assert str(refused.value).count("allowed: ") == 1


def test_other_devices_are_told(saved):
    both = {"segments": [FREE], "device_traces": [WHOLE, [event("alloc", 4096, 512)]]}
    notes = read_snapshot(saved(both), 0).notes
    assert notes == ("left out: the history of other devices, 1",)


def test_a_snapshot_without_a_history_says_how_to_record_one(saved):
    with pytest.raises(
        TraceError, match=r"found a history of devices none; allowed: one.*_record_memory_history"
    ):
        read_snapshot(saved({"segments": snapshot()["segments"]}))


def test_without_times_a_history_begins_and_ends_at_0(saved):
    untimed = [{key: value for key, value in one.items() if key != "time_us"} for one in history()]
    found = read_snapshot(saved(snapshot(device_traces=[untimed])))
    assert (found.start_us, found.end_us) == (0, 0)
    assert any(note.startswith("found no times (time_us)") for note in found.notes)


@pytest.mark.parametrize(("told", "in_use"), [((0, 5), 5), ((7, None), 16 * MIB + 1024)])
def test_what_is_in_use_is_what_all_segments_say(saved, told, in_use):
    """The size is what the blocks take, 1 KiB, 4 and 12 MiB, where a segment says none."""
    found = segments()
    for one, size in zip(found, told, strict=True):
        if size is not None:
            one["active_size"] = size
    assert read_snapshot(saved(snapshot(segments=found))).in_use_bytes == in_use


@pytest.mark.parametrize("less", [0, 1])
def test_a_json_file_may_be_as_large_as_is_allowed(tmp_path, monkeypatch, less):
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(snapshot()))
    size = path.stat().st_size
    monkeypatch.setattr("g10sim.importers.snapshot.MOST_BYTES", size - less)
    if not less:
        assert read_snapshot(path).device == 0
        return
    with pytest.raises(TraceError, match=f"found {size} bytes; allowed: at most {size - 1}"):
        read_snapshot(path)
