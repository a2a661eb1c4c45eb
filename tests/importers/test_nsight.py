"""Reports of Nsight Systems: times, lifetimes and copies as they were recorded, or one line of refusal."""

import pytest
from nsight_example import ROWS, TABLES, write_report
from typer.testing import CliRunner

from g10sim.cli.trace import app
from g10sim.errors import TraceError
from g10sim.importers.nsight import import_nsight, read_report
from g10sim.trace.format import load_trace

KERNEL, MEMORY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUDA_GPU_MEMORY_USAGE_EVENTS"


def imported(path):
    return import_nsight(read_report(path), model=None, batch_size=1)


def test_kernels_take_the_time_that_nothing_before_them_takes(tmp_path):
    trace = imported(write_report(tmp_path / "report.sqlite"))
    assert [(kernel.name, kernel.duration) for kernel in trace.kernels] == [
        ("memset", 50),
        ("gemm", 500),
        ("softmax", 100),  # it began while the product ran
        ("memcpy", 20),  # within the GPU
        ("gemm", 250),
    ]


def test_allocations_live_from_their_first_to_their_last_kernel(tmp_path):
    trace = imported(write_report(tmp_path / "report.sqlite"))
    sizes = {tensor.id: tensor.size_bytes for tensor in trace.tensors}
    used = [
        (sorted(sizes[n] for n in kernel.outputs), sorted(sizes[n] for n in kernel.inputs))
        for kernel in trace.kernels
    ]
    assert used == [([8192], [1024]), ([2048], []), ([], [2048]), ([], [1024]), ([], [8192])]
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
    assert len(load_trace(out).kernels) == 5


def test_one_of_several_devices_is_asked_for(tmp_path):
    other = (1100, 1200, 1, 7, 1, 1)
    path = write_report(tmp_path / "report.sqlite", ROWS | {KERNEL: [*ROWS[KERNEL], other]})
    with pytest.raises(TraceError, match=r"found several devices; allowed: --device with one of 0, 1"):
        read_report(path)
    assert len(read_report(path, 0).work) == 5
    with pytest.raises(TraceError, match=r"found --device 2; allowed: --device with one of 0, 1"):
        read_report(path, 2)


@pytest.mark.parametrize(
    ("rows", "tables", "message"),
    [
        (
            {MEMORY: []},
            TABLES,
            "found no allocation; allowed: a report with them (nsys profile --cuda-memory",
        ),
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
