"""MSR, EOR and CBR."""

import math

import pandas as pd
import pytest
from machines import machine, trace_of

from g10sim.errors import ConfigError
from g10sim.results.savings import savings

MOVED = ("ssd_to_gpu_bytes", "gpu_to_ssd_bytes", "host_to_gpu_bytes", "gpu_to_host_bytes")


def row(cell, policy, peak, cycles, moved=0, trace="a", **more):
    numbers = {"exec_cycles": cycles, **dict.fromkeys(MOVED, moved), "peak_gpu_bytes": peak}
    names = {"cell": cell, "name": "n", "trace": trace, "model": "m", "batch_size": 1, "policy": policy}
    return names | {"seed": 0, "status": "ok", "message": ""} | numbers | more


def test_ratios_are_those_of_the_paper():
    table = pd.DataFrame([row(0, "ideal", 1000, 200), row(1, "tensile", 600, 250, 40)])
    found = savings(table, "ideal").set_index("policy").loc["tensile"]
    assert (found.msr, found.eor, found.cbr) == (0.4, 0.25, pytest.approx(1.6))
    # 1000 bytes of every job's own weigh on both sides.
    assert savings(table, "ideal", context_bytes=1000).msr.tolist() == [0, pytest.approx(0.2)]
    assert "passive_ratio" not in found


def test_cells_are_compared_with_the_one_of_their_case():
    rows = [row(0, "ideal", 100, 10), row(1, "ideal", 400, 20, trace="b")]
    rows += [row(2, "x(a=1)", 50, 10, 1), row(3, "x(a=1)", 100, 30, 1, trace="b")]
    found = savings(pd.DataFrame(rows), "ideal")
    assert dict(zip(found.cell, found.msr, strict=True)) == {0: 0, 1: 0, 2: 0.5, 3: 0.75}
    assert found[found.cell == 3].eor.item() == 0.5


def test_jobs_of_a_cell_count_together():
    rows = [row(0, "ideal", 70, 100, job=0, gpu=0, peak_gpu_bytes_of_all=130)]
    rows += [row(0, "ideal", 70, 100, job=1, gpu=0, peak_gpu_bytes_of_all=120)]
    rows += [row(1, "tensile", 60, 110, 5, job=0, gpu=0, peak_gpu_bytes_of_all=65)]
    rows += [row(1, "tensile", 60, 150, 5, job=1, gpu=0, peak_gpu_bytes_of_all=60)]
    found = savings(pd.DataFrame(rows), "ideal")
    assert found.peak_gpu_bytes.tolist() == [130, 65]
    assert found.exec_cycles.tolist() == [200, 260]
    with_context = savings(pd.DataFrame(rows), "ideal", context_bytes=10)
    assert with_context.peak_gpu_bytes.tolist() == [150, 85]
    # What the runs declare counts unless something else is said.
    declared = pd.DataFrame([one | {"context_gpu_bytes": 40} for one in rows])
    assert savings(declared, "ideal").peak_gpu_bytes.tolist() == [170, 105]
    assert savings(declared, "ideal", context_bytes=0).peak_gpu_bytes.tolist() == [130, 65]


def test_the_peak_of_a_cell_is_that_of_its_fullest_gpu():
    rows = [row(0, "ideal", 70, 100, job=0, gpu=0), row(0, "ideal", 40, 100, job=1, gpu=1)]
    rows += [row(1, "x", 30, 100, 5, job=0, gpu=0), row(1, "x", 35, 100, 5, job=1, gpu=1)]
    found = savings(pd.DataFrame(rows), "ideal")
    assert found.peak_gpu_bytes.tolist() == [70, 35]
    assert found.msr.tolist() == [0, 0.5]


def test_a_refused_job_takes_nothing_off_the_contexts_of_its_gpu():
    rows = [row(0, "ideal", 70, 100, job=0, gpu=0, context_gpu_bytes=40)]
    rows += [row(0, "ideal", math.nan, math.nan, math.nan, job=1, gpu=0, context_gpu_bytes=math.nan)]
    assert savings(pd.DataFrame(rows), "ideal").peak_gpu_bytes.tolist() == [110]


def kernel(cell, job, iteration, start, end, faults=0):
    return {
        "cell": cell, "job": job, "iteration": iteration, "start": start, "end": end,
        "host_fault_pages": faults, "flash_fault_pages": 0,
    }  # fmt: skip


def test_steady_iterations_are_those_while_all_jobs_are_at_it():
    table = pd.DataFrame([row(0, "ideal", 100, 7, job=0, gpu=0), row(0, "ideal", 100, 7, job=1, gpu=0)])
    # Job 0 has iterations of 10, job 1 of 20 and, once it is alone, of 5.
    kernels = [kernel(0, 0, i, 10 * i, 10 * i + 10) for i in range(9)]
    kernels += [kernel(0, 1, i, 20 * i, 20 * i + 20) for i in range(4)]
    kernels += [kernel(0, 1, 4, 80, 100), kernel(0, 1, 5, 100, 105)]
    found = savings(table, "ideal", pd.DataFrame(kernels))
    assert found.exec_cycles.tolist() == [30]
    with pytest.raises(ConfigError, match="cell 0: found no iteration of job 1 from number 4 on while all"):
        savings(table, "ideal", pd.DataFrame(kernels), settled=4)


def test_passive_ratio_is_the_share_that_kernels_demanded():
    table = pd.DataFrame([row(0, "ideal", 100, 7), row(1, "x", 90, 7, 4000)])
    kernels = [
        kernel(0, 0, 2, 0, 7),
        kernel(1, 0, 1, 0, 7, 9),
        kernel(1, 0, 2, 7, 12),
        kernel(1, 0, 2, 12, 14, 2),
    ]
    found = savings(table, "ideal", pd.DataFrame(kernels), page_bytes=1000)
    assert found.passive_ratio.tolist()[1] == 2000 / 8000


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(0, "x", 1, 1)], "found no cell of policy 'ideal' that ran; allowed: x"),
        ([row(0, "ideal", 1, 1, moved=3)], "cell 0: found policy 'ideal' migrating tensors"),
        ([row(0, "ideal", 1, 1), row(1, "x", 1, 1, trace="b")], r"cell 1 \(b\): found no cell of policy 'id"),
    ],
)
def test_there_must_be_something_to_compare_with(rows, message):
    with pytest.raises(ConfigError, match=message):
        savings(pd.DataFrame(rows), "ideal")


def test_results_of_a_run_can_be_read(tmp_path):
    import g10sim
    from g10sim.trace.format import save_trace

    trace = trace_of({"a": 3, "b": 3}, [(10_000, "", "a"), (10_000, "", "b"), (10_000, "a", "")])
    save_trace(trace, tmp_path / "t.g10t")
    config = {
        "workload": {"trace": str(tmp_path / "t.g10t"), "iterations": 4},
        "system": machine(100).model_dump(mode="json"),
        "compat": {"addresses": "own"},
        "policies": ["ideal", "base_uvm"],
        "record": ["summary", "kernels"],
    }
    g10sim.run(config, output=tmp_path / "out")
    results, kernels = g10sim.read_results(tmp_path / "out"), g10sim.read_table(tmp_path / "out", "kernels")
    found = savings(results, "ideal", kernels, page_bytes=1000)
    assert found.peak_gpu_bytes.tolist() == [6000, 6000]
    assert found.msr.tolist() == [0, 0]
    assert found.eor.tolist() == [0, pytest.approx(6 * 2000 / 30_000)]
