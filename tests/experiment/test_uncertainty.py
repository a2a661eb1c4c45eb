"""Cells under uncertainty: factors, scaled machines, ranges, and the order of policies."""

import csv

import pandas as pd
import pytest

from g10sim.config.document import Document
from g10sim.config.load import run_config
from g10sim.config.presets import load_system, uncertainty_data, validated
from g10sim.config.run import UncertaintySpec
from g10sim.errors import ConfigError
from g10sim.experiment.expand import expand
from g10sim.experiment.run import run_experiment
from g10sim.experiment.uncertainty import FACTORS, all_cells, cases, scaled
from g10sim.results.seeds import order_lines, orders, range_lines
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import times_factors

SYSTEM = {"preset": "a100-80g-pcie4-nvme", "gpu": {"memory": "6500 KiB"}}
SPEC = UncertaintySpec(kernels=(0.5, 2.0), links=(0.8, 1.25), drives=(1.0, 2.0), faults=(0.5, 1.0), draws=3)


def config(directory, uncertainty="measured", **changes):
    save_trace(chain(8), directory / "chain.g10t")
    workload = {"trace": str(directory / "chain.g10t"), "iterations": 2}
    run = {"workload": workload, "system": SYSTEM, "policies": ["ideal", "base_uvm"]}
    return Document({"name": "run", **run, "uncertainty": uncertainty, **changes}, "test")


def test_corners_then_draws_that_are_the_same_for_equal_seeds():
    found = cases(SPEC, seed=3)
    corners = [tuple(one.values())[-4:] for one in found[:4]]
    assert corners == [(0.5, 0.8, 1, 0.5), (0.5, 1.25, 2, 1), (2, 0.8, 1, 0.5), (2, 1.25, 2, 1)]
    assert len(found) == 7
    assert cases(SPEC, seed=3) == found != cases(SPEC, seed=4)
    for one in found:
        assert all(0.5 <= factor <= 2 for factor in of_kernels(one))
        assert 0.8 <= one["links"] <= 1.25
    assert len(set(of_kernels(found[4]))) > 1, "each class of operators has a factor of its own"
    assert len(set(of_kernels(found[0]))) == 1


def of_kernels(factors):
    assert tuple(factors) == FACTORS
    return [factor for name, factor in factors.items() if name.startswith("kernels_")]


def test_a_machine_with_slower_parts():
    system = load_system("a100-80g-pcie4-nvme")
    slower = scaled(system, {"links": 2.0, "drives": 4.0, "faults": 0.5})
    assert slower.pcie.to_device == system.pcie.to_device // 2
    assert slower.pcie.duplex == system.pcie.duplex // 2
    assert slower.ssd.read_bandwidth == system.ssd.read_bandwidth // 4
    assert slower.ssd.latency == system.ssd.latency * 4
    assert slower.page_fault.latency == system.page_fault.latency // 2
    assert slower.gpu == system.gpu
    same = scaled(system, dict.fromkeys(FACTORS, 1.0))
    assert same == system


def test_a_drive_of_the_flash_model_has_a_slower_interface():
    system = load_system({"preset": "a100-80g-pcie4-nvme", "ssd": {"preset": "samsung-990-pro-2tb"}})
    slower = scaled(system, {"links": 1.0, "drives": 4.0, "faults": 1.0})
    assert slower.ssd == system.ssd.model_copy(update={"interface": system.ssd.interface // 4})


def test_tiers_are_slower_by_the_links_and_drives_by_their_own():
    drive = {"kind": "ssd", "name": "cold", "capacity": "1 TB", "read": "4 GB/s", "write": "2 GB/s"}
    cache = {"capacity": "1 GB", "sustained": "500 MB/s"}
    tiers = [*load_system("h100-80g-cxl-agilex").model_dump(mode="json")["tiers"]]
    system = load_system(
        {
            "preset": "h100-80g-cxl-agilex",
            "tiers": [*tiers, {**drive, "latency": "10 us", "write_cache": cache}],
        }
    )
    slower = scaled(system, {"links": 2.0, "drives": 4.0, "faults": 1.0})
    (host, memory, ssd, cold), before = slower.tiers, system.tiers
    assert (host, ssd) == (before[0], before[2]) == ("host", "ssd")
    assert (memory.read, memory.write) == (before[1].read // 2, before[1].write // 2)
    assert memory.latency == 2 * before[1].latency
    assert (cold.read, cold.write, cold.latency) == (10**9, 5 * 10**8, 4 * before[3].latency)
    assert cold.write_cache.sustained == 125 * 10**6


def test_kernels_take_the_factor_of_their_class():
    trace = chain(2)
    longer = times_factors(trace, {"matmul": 3.0, "": 1.5})
    assert [kernel.duration for kernel in longer.kernels] == [
        kernel.duration * 3 // 2 for kernel in trace.kernels
    ]
    assert times_factors(trace, {}) is trace


def test_a_run_has_ranges_and_its_cases(tmp_path):
    outcome = run_experiment(config(tmp_path, SPEC.model_dump()), output=tmp_path / "out")
    ideal, paged = outcome.rows
    # 8 x (1 + 2 + 0.1) ms of kernels, between half and twice as long.
    assert (ideal["exec_ms"], ideal["exec_ms_low"], ideal["exec_ms_high"]) == pytest.approx(
        (24.8, 12.4, 49.6)
    )
    assert (ideal["performance_low"], ideal["performance_high"]) == (1.0, 1.0)
    assert paged["exec_ms_low"] < paged["exec_ms"] < paged["exec_ms_high"]
    assert paged["performance_low"] < paged["performance"] < paged["performance_high"]
    assert paged["host_to_gpu_bytes_low"] <= paged["host_to_gpu_bytes"] <= paged["host_to_gpu_bytes_high"]
    with (tmp_path / "out" / "uncertainty.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["case"]) for row in rows] == [*range(8)] * 2
    assert float(rows[0]["exec_ms"]) == pytest.approx(24.8)
    assert [float(row["exec_ms"]) for row in rows[1:5]] == pytest.approx([12.4, 12.4, 49.6, 49.6])
    assert order_lines(tmp_path / "out") == ["chain, 8 cases: Ideal before Base UVM in all"]
    assert range_lines(tmp_path / "out", 0)[0] == "8 cases: 12.4 to 49.6 ms, 100.0% to 100.0% of ideal"


def test_without_uncertainty_nothing_changes(tmp_path):
    plain = run_experiment(config(tmp_path, None), output=tmp_path / "out")
    assert not any(column.endswith(("_low", "_high")) for column in plain.columns)
    assert not (tmp_path / "out" / "uncertainty.csv").exists()
    assert order_lines(tmp_path / "out") == []
    certain = expand(config(tmp_path, {"draws": 0})).cells
    assert [cell.key for cell in certain] == [cell.key for cell in expand(config(tmp_path, None)).cells]
    assert len(list(all_cells(certain))) == 5 * len(certain)


def test_the_order_of_policies_where_it_turns():
    columns = {
        "name": "run",
        "trace": "a/net.g10t",
        "model": "net",
        "batch_size": 1,
        "seed": 0,
        "status": "ok",
    }
    times = {"one": [10, 8, 30], "two": [20, 9, 20], "three": [20, 9, 20]}
    results = pd.DataFrame(
        {"cell": number, "policy": name, **columns, "exec_ms": found[0]}
        for number, (name, found) in enumerate(times.items())
    )[["cell", "name", "trace", "model", "batch_size", "policy", "seed", "status", "exec_ms"]]
    long = pd.DataFrame(
        {"cell": number, "case": case, "exec_ms": value}
        for number, found in enumerate(times.values())
        for case, value in enumerate(found)
    )
    (line,) = orders(results, long)
    assert line == "net, 3 cases: one before two in 2 of 3, two as fast as three in all"


def test_the_preset_builds_on_named_factors(tmp_path):
    spec = run_config(config(tmp_path, {"preset": "measured", "draws": 1})).uncertainty
    data = uncertainty_data("measured", Document({}, ""), ())
    assert spec == validated(UncertaintySpec, {**data, "draws": 1}, Document({}, ""))
    assert set(spec.sources) == {"kernels", "links", "drives", "faults"}


@pytest.mark.parametrize(
    ("uncertainty", "said"),
    [
        ("guessed", "uncertainty: found unknown preset 'guessed'"),
        ({"kernels": [1.5, 2]}, "uncertainty.kernels: found [1.5, 2.0]; allowed: a factor from 0.001 to 1"),
        (
            {"faults": [1, 1001]},
            "found [1.0, 1001.0]; allowed: a factor from 0.001 to 1, and one from 1 to 1000",
        ),
        ({"drives": [1e-320, 1]}, "uncertainty.drives: found"),
        ({"links": [True, 2]}, "uncertainty.links.0: found True"),
        ({"links": [0, 2]}, "uncertainty.links: found"),
        ({"draws": -1}, "uncertainty.draws: found -1"),
        ({"kernel": [0.5, 2]}, "uncertainty.kernel: found"),
    ],
)
def test_bad_factors_are_told_in_one_line(tmp_path, uncertainty, said):
    with pytest.raises(ConfigError) as error:
        expand(config(tmp_path, uncertainty))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
