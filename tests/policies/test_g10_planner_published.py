"""Our planner against the published simulator's plans and results."""

import csv

import pytest
from machines import as_tuples

from g10sim.config.behaviour import GPG
from g10sim.config.presets import load_system
from g10sim.importers.gpg import import_gpg
from g10sim.policies.interface.plan_format import load_plan
from g10sim.policies.interface.registry import create
from g10sim.reproduce.validation import PUBLISHED_SYSTEM
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload


@pytest.mark.parametrize(
    ("policy", "model"),
    [
        ("g10", "BERT_Base/128"),
        ("g10", "BERT_Base/256"),
        ("g10", "BERT_Base/512"),
        ("g10", "BERT_Base/768"),
        ("g10", "BERT_Base/1024"),
        ("g10", "Inceptionv3/512"),
        ("g10", "Inceptionv3/1536"),
        ("g10", "Inceptionv3/1792"),
        ("g10", "SENet154/256"),
        ("g10", "SENet154/768"),
        ("g10_gds", "BERT_Base/256"),
        ("g10_gds", "Inceptionv3/1536"),
        ("g10_gds", "VIT/1280"),
        ("g10_host", "BERT_Base/256"),
        ("g10_host", "Inceptionv3/1536"),
        ("g10_host", "SENet154/1024"),
        ("g10_host", "VIT/1280"),
    ],
)
def test_published_planner_makes_the_published_plan_move_for_move(published, policy, model):
    design, directory = create(policy), published / "traces" / model
    trace = import_gpg(directory)
    plans = directory if model != "VIT/1280" else published / "open" / "VIT-1280"
    theirs = load_plan(plans / design.reference_plan, trace)
    ours = design.plan_job(Job(trace), load_system(PUBLISHED_SYSTEM), GPG)
    assert as_tuples(ours) == as_tuples(theirs)


def published_cycles(published, model, batch):
    with (published / "published.csv").open() as file:
        for row in csv.DictReader(file):
            cell = (row["figure"], row["policy"], row["model"], row["batch"])
            if cell == ("fig15", "g10", model, batch) and row["metric"] == "exec_cycles":
                return float(row["value"])
    raise AssertionError(f"no published result of {model} {batch}")


@pytest.mark.parametrize(
    ("model", "batch", "at_most"),
    [
        ("BERT_Base", "256", 1.0),
        pytest.param("BERT_Base", "512", 0.87, marks=pytest.mark.nightly),
        pytest.param("BERT_Base", "1024", 0.7, marks=pytest.mark.nightly),
        pytest.param("Inceptionv3", "1536", 0.995, marks=pytest.mark.nightly),
        pytest.param("SENet154", "256", 1.0, marks=pytest.mark.nightly),
    ],
)
def test_paced_plans_are_faster_than_the_published_plan(published, model, batch, at_most):
    trace = import_gpg(published / "traces" / model / batch)
    records = run(Workload((Job(trace),)), load_system(PUBLISHED_SYSTEM), create("g10_paced"), GPG)
    fastest = min(iteration.end - iteration.start for iteration in records.iterations)
    assert fastest <= at_most * published_cycles(published, model, batch)
