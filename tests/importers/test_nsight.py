"""Reports of Nsight Systems: times, lifetimes and copies as they were recorded, or one line of refusal."""

import sqlite3
from contextlib import closing

import pytest
from nsight_example import ROWS, TABLES, write_report
from typer.testing import CliRunner

from g10sim.cli.trace import app
from g10sim.errors import TraceError
from g10sim.importers import nsight_tables
from g10sim.importers.account import account_of
from g10sim.importers.nsight import import_nsight, read_report
from g10sim.trace.format import load_trace

KERNEL, MEMORY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUDA_GPU_MEMORY_USAGE_EVENTS"


def imported(path):
    return import_nsight(read_report(path), model=None, batch_size=1)


def test_kernels_take_the_time_that_nothing_before_them_takes(tmp_path):
    trace = imported(write_report(tmp_path / "report.sqlite"))
    assert [(kernel.name, kernel.duration) for kernel in trace.kernels] == [
        ("memcpy host to GPU", 500),
        ("memset", 50),
        ("gemm", 500),
        ("softmax", 100),  # it began while the product ran
        ("memcpy", 20),  # within the GPU
        ("gemm", 250),
        ("memcpy GPU to host", 100),
    ]


def test_allocations_live_from_their_first_to_their_last_kernel(tmp_path):
    trace = imported(write_report(tmp_path / "report.sqlite"))
    sizes = {tensor.id: tensor.size_bytes for tensor in trace.tensors}
    used = [
        (sorted(sizes[n] for n in kernel.outputs), sorted(sizes[n] for n in kernel.inputs))
        for kernel in trace.kernels
    ]
    assert used == [
        ([8192], [1024]),
        ([], []),
        ([2048], []),
        ([], [2048]),
        ([], [1024]),
        ([], []),
        ([], [8192]),
    ]
    assert 4096 not in sizes.values()


def test_copies_are_counted_by_direction(tmp_path):
    into, out = read_report(write_report(tmp_path / "report.sqlite")).copies
    assert (into.count, into.size_bytes, into.duration_ns) == (1, 8000, 500)
    assert (out.count, out.size_bytes, out.duration_ns) == (1, 1000, 100)


def test_the_command_writes_a_trace_and_tells_the_rates_of_copies(tmp_path):
    report, out = write_report(tmp_path / "report.sqlite"), tmp_path / "report.g10t"
    result = CliRunner().invoke(app, ["import", "nsight", str(report), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "host to GPU: 1 copies, 8000 bytes, 16.00 GB/s while copying" in result.output
    assert len(load_trace(out).kernels) == 7


@pytest.mark.parametrize("kind", [None, 7])
def test_memory_of_unknown_kind_is_not_of_the_host(tmp_path, kind):
    """A release has the bytes of its allocation, whether they are recorded with it or not."""
    rows = [(50, 0, 0x1000, 8192, kind, 0), (800, 0, 0x2000, 2048, kind, 0), (1650, 0, 0x2000, 0, kind, 1)]
    trace = imported(write_report(tmp_path / "report.sqlite", ROWS | {MEMORY: rows}))
    assert {tensor.size_bytes for tensor in trace.tensors} == {8192, 2048}
    short = next(tensor.id for tensor in trace.tensors if tensor.size_bytes == 2048)
    assert [kernel.name for kernel in trace.kernels if short in kernel.tensors] == ["gemm", "softmax"]


def test_one_of_several_devices_is_asked_for(tmp_path):
    other = (1100, 1200, 1, 7, 1, 1)
    path = write_report(tmp_path / "report.sqlite", ROWS | {KERNEL: [*ROWS[KERNEL], other]})
    with pytest.raises(TraceError, match=r"found several devices; allowed: --device with one of 0, 1"):
        read_report(path)
    assert len(read_report(path, 0).work) == 7
    with pytest.raises(TraceError, match=r"found --device 2; allowed: --device with one of 0, 1"):
        read_report(path, 2)


@pytest.mark.parametrize(
    ("rows", "tables", "message"),
    [
        ({MEMORY: []}, TABLES, "found no allocation of the GPU's memory by this process; allowed: a report"),
        ({MEMORY: [(60, 0, 0x9000, 4096, 1, 0)]}, TABLES, "found no allocation of the GPU's memory by this"),
        ({KERNEL: []}, TABLES, "found no kernel; allowed: a report of CUDA"),
        ({KERNEL: [(1000, 900, 0, 7, 1, 1)]}, TABLES, "found an end before its start"),
        ({KERNEL: [("x", 900, 0, 7, 1, 1)]}, TABLES, "KERNEL.start: found 'x'; allowed: a whole number"),
        ({MEMORY: [(50, 0, 1, 1, 2, 9)]}, TABLES, "memoryOperationType: found 9; allowed: 0 for"),
        (
            {},
            TABLES | {MEMORY: ("start", "deviceId", "address", "bytes", "memKind", "kind")},
            "no column memoryOp",
        ),
    ],
)
def test_a_wrong_report_is_refused_in_one_line(tmp_path, rows, tables, message):
    path = write_report(tmp_path / "report.sqlite", ROWS | rows, tables)
    with pytest.raises(TraceError) as refused:
        read_report(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"no database at all, but long enough to be looked at as one" * 40)
    with pytest.raises(
        TraceError, match="file is not a database; allowed: a report of Nsight Systems as SQLite"
    ):
        read_report(path)
    with pytest.raises(TraceError, match="found no such file"):
        read_report(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()


COPY, GRAPHS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
OWNED = TABLES | {
    KERNEL: ("start", "end", "deviceId", "shortName", "globalPid"),
    MEMORY: ("start", "deviceId", "address", "bytes", "memoryOperationType", "globalPid"),
    GRAPHS: ("start", "end", "deviceId", "graphId"),
}


def two_ranks(first, second):
    """Two processes, each with a device 0 and a block at the same address."""
    ranks = enumerate((first, second), 1)
    lives = {1: [(1, 0), (9000, 1)], 2: [(2, 0), (9001, 1)]}
    return {
        "StringIds": [(1, "gemm")],
        KERNEL: [(1000 * number, 1000 * number + 700, 0, 1, process) for number, process in ranks],
        MEMORY: [
            (at, 0, 0x7F00, 4096 * rank, what, process)
            for rank, process in ((1, first), (2, second))
            for at, what in lives[rank]
        ],
    }


@pytest.mark.parametrize("shift", [0, 24])
def test_processes_with_equal_devices_and_addresses_are_kept_apart(tmp_path, shift):
    path = write_report(tmp_path / "ranks.sqlite", two_ranks(11 << shift, 12 << shift), OWNED)
    with pytest.raises(TraceError, match="found several processes; allowed: --process with one of 11, 12"):
        read_report(path)
    with pytest.raises(TraceError, match="found --process 3; allowed: --process with one of 11, 12"):
        read_report(path, process=3)
    for rank, process in ((1, 11), (2, 12)):
        trace = import_nsight(read_report(path, process=process), model=None, batch_size=1)
        assert [tensor.size_bytes for tensor in trace.tensors] == [4096 * rank]
        assert [kernel.duration for kernel in trace.kernels] == [700]
        assert account_of(trace).aside == {"other processes": 700}


def test_a_device_is_enough_where_each_process_has_its_own(tmp_path):
    rows = two_ranks(11, 12)
    for table, column in ((KERNEL, 2), (MEMORY, 1)):
        rows[table] = [(*row[:column], int(row[-1] == 12), *row[column + 1 :]) for row in rows[table]]
    path = write_report(tmp_path / "ranks.sqlite", rows, OWNED)
    found = read_report(path, device=1)
    assert (found.process, found.device, len(found.work)) == (12, 1, 1)
    with pytest.raises(TraceError, match="found --device 1; allowed: --device with one of 0"):
        read_report(path, device=1, process=11)


GRAPH_LEVEL = {
    "StringIds": [(1, "gemm")],
    KERNEL: [(1000, 2000, 0, 1, 1), (104_000, 105_000, 0, 1, 1)],
    GRAPHS: [(2000, 102_000, 0, 5)],
    MEMORY: [(0, 0, 0x1000, 4096, 0, 1)],
}


def test_a_graph_without_its_kernels_is_one_kernel_and_told(tmp_path):
    out = tmp_path / "graph.g10t"
    path = write_report(tmp_path / "graph.sqlite", GRAPH_LEVEL, OWNED)
    ended = CliRunner().invoke(app, ["import", "nsight", str(path), "-o", str(out)])
    assert ended.exit_code == 0
    assert "--cuda-graph-trace=node" in ended.stderr
    assert "98.0% of the time" in ended.stderr
    found = [(kernel.name, kernel.duration) for kernel in load_trace(out).kernels]
    assert found == [("gemm", 1000), ("graph 5", 100_000), ("gemm", 1000)]


def test_a_report_of_graphs_alone_is_read(tmp_path):
    path = write_report(tmp_path / "graph.sqlite", GRAPH_LEVEL | {KERNEL: []}, OWNED)
    assert [(kernel.name, kernel.duration) for kernel in imported(path).kernels] == [("graph 5", 100_000)]


def test_gaps_are_told_and_can_be_kept(tmp_path):
    report = read_report(write_report(tmp_path / "graph.sqlite", GRAPH_LEVEL, OWNED))
    dropped = import_nsight(report, model=None, batch_size=1)
    assert account_of(dropped).aside == {"gaps": 2000}
    kept = import_nsight(report, model=None, batch_size=1, keep_gaps=True)
    assert [(kernel.name, kernel.duration) for kernel in kept.kernels][2:] == [("idle", 2000), ("gemm", 1000)]
    assert sum(kernel.duration for kernel in kept.kernels) == 104_000
    assert account_of(kept).aside == {"gaps, kept as idle time of the host": 2000}


def test_migrations_of_managed_memory_are_left_out_and_refused_if_they_are_much(tmp_path):
    rows = {
        "StringIds": [(1, "gemm")],
        KERNEL: [(1000, 2000, 0, 7, 1, 1)],
        COPY: [(2000, 3000, 0, 11, 4096), (2500, 4000, 0, 12, 8192), (4000, 5000, 0, 10, 512)],
        MEMORY: [(0, 0, 0x1000, 4096, 4, 0)],
    }
    report = read_report(write_report(tmp_path / "managed.sqlite", rows))
    with pytest.raises(TraceError, match=r"50\.0% of the step's .* left out: migrations .*--partial"):
        import_nsight(report, model=None, batch_size=1)
    trace = import_nsight(report, model=None, batch_size=1, partial=True)
    account = account_of(trace)
    assert (account.imported_ns, account.left_out) == (2000, {"migrations of managed memory": 2000})
    assert any(
        "1 migrations of managed memory, GPU to host: 8.00 KiB, 1.50 us" in one for one in account.notes
    )


def test_overlapping_streams_count_as_busy_time(tmp_path):
    rows = ROWS | {COPY: [], KERNEL: [(1000, 4000, 0, 7, 1, 1), (1500, 3900, 0, 8, 2, 2)]}
    trace = imported(write_report(tmp_path / "overlap.sqlite", rows))
    assert sum(kernel.duration for kernel in trace.kernels) == 3050  # with the fill of 50
    assert account_of(trace).aside == {"overlap": 2400, "gaps": 250}


ENDLESS = "with recursive r(n) as (select 1 union all select n+1 from r) select n as start from r"


@pytest.mark.parametrize("table", TABLES)
def test_a_view_is_refused(tmp_path, table):
    path = write_report(tmp_path / "view.sqlite", ROWS, {k: v for k, v in TABLES.items() if k != table})
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE VIEW {table} AS {ENDLESS}")
        database.commit()
    with pytest.raises(TraceError, match=f"{table}: found a view; allowed: a table"):
        read_report(path)


def test_a_table_that_code_makes_is_refused(tmp_path):
    path = write_report(tmp_path / "virtual.sqlite", ROWS, {k: v for k, v in TABLES.items() if k != KERNEL})
    with closing(sqlite3.connect(path)) as database:
        try:
            database.execute(f"CREATE VIRTUAL TABLE {KERNEL} USING fts5(start)")
        except sqlite3.OperationalError:
            pytest.skip("this SQLite has no such tables")
        database.commit()
    with pytest.raises(TraceError, match="KERNEL: found a virtual table; allowed: a table"):
        read_report(path)


def test_more_rows_than_are_allowed_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(nsight_tables, "_MOST_ROWS", 9)
    with pytest.raises(TraceError, match="found rows without an end; allowed: at most 9 rows"):
        read_report(write_report(tmp_path / "report.sqlite"))


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path, monkeypatch):
    path = write_report(tmp_path / "report.sqlite")
    monkeypatch.setattr(nsight_tables, "_LEAST_ROW_BYTES", path.stat().st_size // 9)
    with pytest.raises(TraceError, match="found rows without an end; allowed: at most 5000000 rows, and no"):
        read_report(path)


def test_an_export_that_has_not_ended_is_refused(tmp_path):
    path = write_report(tmp_path / "report.sqlite")
    (tmp_path / "report.sqlite-wal").write_bytes(b"x")
    with pytest.raises(TraceError, match=r"found report\.sqlite-wal next to it"):
        read_report(path)


def test_reading_writes_nothing_beside_the_report(tmp_path):
    path = write_report(tmp_path / "report.sqlite")
    path.chmod(0o444)
    read_report(path)
    assert list(tmp_path.iterdir()) == [path]
