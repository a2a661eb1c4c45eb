"""Our planner against the published simulator's plans and results."""

import csv

import pytest
from machines import as_tuples
from memories import FLASH, HOST

from g10sim.config.behaviour import GPG
from g10sim.config.presets import load_system
from g10sim.experiment.published import PUBLISHED_SYSTEM
from g10sim.importers.gpg import import_gpg
from g10sim.policies.g10_planning import PlanningParameters, plan_g10
from g10sim.policies.plan_format import load_plan
from g10sim.policies.planning.machine import planned_machine
from g10sim.policies.registry import create
from g10sim.records import Location
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

AWAY = (HOST, FLASH)


def moves(plan):
    return set(as_tuples(plan))


@pytest.mark.parametrize(
    ("model", "least_moves", "least_evictions"),
    [
        ("BERT_Base/128", 1.0, 1.0),
        ("BERT_Base/256", 0.995, 1.0),
        ("BERT_Base/640", 0.98, 0.97),
        ("BERT_Base/1024", 0.985, 0.99),
        ("Inceptionv3/512", 1.0, 1.0),
        ("Inceptionv3/768", 1.0, 1.0),
        ("Inceptionv3/1792", 0.99, 0.99),
        ("SENet154/256", 0.98, 0.99),
        ("SENet154/1024", 0.99, 0.998),
    ],
)
def test_published_method_makes_the_published_plan(published, model, least_moves, least_evictions):
    """All allocations and frees agree; equal benefits are decided by an unstable sort there."""
    directory = published / "traces" / model
    trace = import_gpg(directory)
    theirs = moves(load_plan(directory / "prefetch_guide.config.gz", trace))
    machine = planned_machine(load_system(PUBLISHED_SYSTEM), GPG)
    plan = plan_g10(trace, machine, PlanningParameters(planner="published"))
    ours = moves(plan)
    assert {move for move in ours if move[2] is Location.NONE} == {
        move for move in theirs if move[2] is Location.NONE
    }
    assert len(ours & theirs) >= least_moves * len(theirs)
    evictions = [{move for move in found if move[2] in AWAY} for found in (ours, theirs)]
    assert len(evictions[0] & evictions[1]) >= least_evictions * len(evictions[1])


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
