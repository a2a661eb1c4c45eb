"""Measurements predict, write and refuse; the host keeps pace with a device."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("torch")

import yaml

from g10sim.errors import ConfigError
from g10sim.execute.cuda import AHEAD, CudaMemory
from g10sim.execute.links import link
from g10sim.execute.measuring import measure_cells
from g10sim.units import parse_rate

MODEL = {"source": "steps_to_measure:small"}
PLAN = {
    "models": [MODEL],
    "budgets": ["80%"],
    "policies": ["g10"],
    "on_demand": "base_uvm",
    "gpu": "a100-40g",
    "system": "a100-40g-pcie3-znand",
    "steps": 1,
    "largest_copy": "1 MiB",
}


STEP = """
from executed_steps import Loop, transformer

def small(batch_size=4):
    return Loop(transformer).__call__
"""


@pytest.fixture
def measured(tmp_path, monkeypatch):
    (tmp_path / "steps_to_measure.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)

    def run(**changes):
        Path("plan.yaml").write_text(yaml.safe_dump(PLAN | changes))
        said = list(measure_cells(Path("plan.yaml"), "cpu", Path("out")))
        tables = {}
        for name in ("kernels", "predicted", "measured"):
            with Path(f"out/{name}.csv").open() as file:
                tables[name] = list(csv.DictReader(file))
        return said, tables

    return run


@pytest.mark.nightly
@pytest.mark.slow
def test_moves_of_simulations_are_measured_within_a_reserve(measured):
    """Simulated traffic grows with the reserve; what is executed is what the simulation moved."""
    moved = {}
    for reserve in ("0%", "10%"):
        for path in Path("out").glob("*.csv"):
            path.unlink()
        said, tables = measured(reserve=reserve, live=False)
        demand, planned = tables["measured"]
        assert demand["predicted_in_bytes"] == planned["predicted_out_bytes"] or int(demand["faults"]) > 0
        assert planned["faults"] == "0"
        moved[reserve] = int(planned["measured_out_bytes"])
        assert moved[reserve] == pytest.approx(int(planned["predicted_out_bytes"]), rel=0.1)
    assert moved["10%"] > moved["0%"]
    assert "2 cells: median ratio" in said[-1]


@pytest.mark.slow
def test_times_by_operator_add_up_to_the_steps(measured):
    _, tables = measured(policies=[])
    spent = sum(float(row["measured_ms"]) for row in tables["kernels"])
    row = tables["predicted"][0]
    assert spent <= 1.05 * float(row["unlimited_ms"])
    assert sum(int(row["kernels"]) for row in tables["kernels"]) > 100
    slowdown = float(row["predicted_ms"]) / spent
    assert float(row["predicted_slowdown"]) == pytest.approx(slowdown, rel=0.01)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_cell_that_cannot_be_simulated_is_told_and_not_executed(measured):
    said, tables = measured(budgets=["5%"])
    assert all("working set" in row["refused"] and not row.get("measured_ms") for row in tables["measured"])
    assert "working set" in said[-1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"models": [MODEL, MODEL]}, "models: found 'steps_to_measure:small' twice"),
        ({"models": [MODEL | {"name": "a"}, MODEL | {"name": "a"}]}, "models: found 'a' twice"),
    ],
)
def test_models_have_names_of_their_own(measured, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        measured(**changes)


@pytest.mark.parametrize(("key", "value"), [("budgets", ["much"]), ("reserve", "some")])
def test_shares_are_numbers(measured, key, value):
    with pytest.raises(ConfigError, match=f"{key}: found '{value[0] if key == 'budgets' else value}'"):
        measured(**{key: value})
    assert not Path("out").exists()


def test_a_link_carries_both_ways_at_least_what_one_carries():
    found = link("cpu", 2**20)
    into, out, both = (parse_rate(found["pcie"][key]) for key in ("to_device", "from_device", "duplex"))
    assert max(into, out) <= both <= into + out
    assert found["page_fault"]["latency"] == found["pcie"]["per_copy"]
    assert "copy_contention" not in found["gpu"]


class Counted:
    """Streams whose events are numbers; each takes a second."""

    def __init__(self):
        self.events, self.waited_for = 0, []

    def current(self):
        return 0

    def stream(self):
        return 1

    def event(self, stream):
        self.events += 1
        return self.events

    def synchronize(self, event):
        self.waited_for.append(event)

    def seconds_between(self, first, second):
        return float(second - first)


def test_the_host_is_some_kernels_ahead_and_no_more():
    streams = Counted()
    memory = CudaMemory(streams)
    marks = [memory.pace() for _ in range(AHEAD + 3)]
    assert streams.waited_for == marks[:3]
    assert memory.seconds(marks[2:5]) == [0.0, 1.0, 2.0]
    assert streams.waited_for[-1] == marks[4]
