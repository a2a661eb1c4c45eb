"""The command: what it says, what it writes, and what it refuses in one line."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("torch")

import yaml
from executed_steps import Loop, transformer

from g10sim.cli.commands import app
from g10sim.cli.output import exit_code
from g10sim.execute.memory import Memory, swap
from g10sim.execute.running import guided, machine, record
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.plan_format import save_plan

pytestmark = pytest.mark.slow

STEP = """
import itertools

from executed_steps import BEHAVIOUR, Loop, transformer, perceptron

def small(batch_size=4):
    return Loop(transformer).__call__

def model(batch_size=64):
    return perceptron()

def failing():
    def step():
        raise ValueError("no data")
    return step

builds = itertools.count()

def varying(batch_size=64):
    model, inputs = perceptron()
    model[0].weight.data *= 1 + next(builds)
    return model, inputs
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    (tmp_path / "steps_to_execute.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = exit_code(lambda: app(["execute", *words], standalone_mode=False))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_policy_is_compared_with_the_plain_step_and_the_simulation(command):
    code, out, _ = command(
        "steps_to_execute:small", "--policy", "pressure", "-o", "kernels.csv", "--steps", "2"
    )
    assert code == 0
    assert "weights, states and buffers equal those of the plain step, bit for bit" in out
    assert "simulated" in out
    with Path("kernels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"kernel", "name", "resident_bytes", "simulated_bytes"} == set(rows[0])


def test_a_lost_byte_is_told_and_exits_with_1(command, monkeypatch):
    monkeypatch.setattr(Memory, "fetch", lambda _, tensor, storage, host: swap(storage, host.fill_(0)))
    code, out, err = command("steps_to_execute:small", "--policy", "pressure", "--steps", "1")
    assert (code, "bit for bit" in out) == (1, False)
    assert "weights, states and buffers differ from the plain step's\n" in err


def test_a_step_that_does_not_repeat_its_values_is_told(command):
    code, out, err = command("steps_to_execute:varying", "--steps", "1")
    assert (code, "bit for bit" in out) == (0, False)
    assert "so do those of a second plain step" in err.replace("\n", " ")


def test_a_saved_plan_is_executed_and_one_of_another_trace_refused(command):
    script = record(Loop(transformer))
    spec = machine("a100-40g-pcie3-znand", 10**6)
    plan = guided("g10", script.trace, spec).plan
    save_plan(plan, "step.g10p", script.trace)
    save_plan(MigrationPlan(()), "empty.g10p")
    code, out, _ = command("steps_to_execute:model", "--plan", "empty.g10p", "--steps", "1")
    assert (code, "bit for bit" in out) == (0, True)
    code, _, err = command("steps_to_execute:model", "--plan", "step.g10p")
    assert code == 2
    assert "found a plan for the trace with sha256" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["steps_to_execute:small", "--device", "cuda"], "found cuda, but no CUDA device; allowed: cpu"),
        (["steps_to_execute:small", "--device", "tpu"], "device: found 'tpu'"),
        (["steps_to_execute:small", "--budget", "x%"], "--budget: found 'x%'; allowed: a size such as 12GiB"),
        (["steps_to_execute:small", "--plan", "a", "--policy", "g10"], "--plan: found with --policy"),
        (["steps_to_execute:small", "--policy", "ideal"], "policy 'ideal' has unlimited memory"),
        (["steps_to_execute:small", "--policy", "zero_offload"], "policy 'zero_offload' runs other kernels"),
        (["steps_to_execute:small", "--policy", "ssdtrain"], "ssd"),
        (["steps_to_execute:small", "--budget", "4KiB"], "found a working set of"),
        (["steps_to_execute:failing"], "ValueError: no data"),
        (["steps_to_execute:none"], "found no function 'none'"),
        (["some.yaml", "--measure"], "--measure: found no -o"),
    ],
)
def test_what_cannot_be_executed_is_refused_in_a_line(command, words, said):
    code, _, err = command(*words)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.nightly
def test_a_measurement_writes_predictions_before_it_executes_and_goes_on(command):
    plan = {
        "models": [{"source": "steps_to_execute:small"}],
        "budgets": ["80%"],
        "policies": ["g10", "pressure"],
        "gpu": "a100-40g",
        "system": "a100-40g-pcie3-znand",
        "steps": 1,
        "largest_copy": "1 MiB",
    }
    Path("plan.yaml").write_text(yaml.safe_dump(plan))
    code, out, _ = command("plan.yaml", "--measure", "-o", "measured")
    assert code == 0
    assert "2 cells: median ratio" in out
    assert {path.name for path in Path("measured").iterdir()} == {
        "kernels.csv", "measured.csv", "predicted.csv", "system.yaml", "timeline.json",
    }  # fmt: skip
    with Path("measured/measured.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == ["demand", "g10", "pressure"]
    before = Path("measured/measured.csv").read_bytes()
    code, out, _ = command("plan.yaml", "--measure", "-o", "measured")
    assert code == 0
    assert Path("measured/measured.csv").read_bytes() == before
