"""Jobs that arrive one after another, as the configuration says."""

import pytest

import g10sim
from g10sim.config.document import load_document
from g10sim.config.run import JobSpec
from g10sim.errors import ConfigError
from g10sim.experiment.workloads import arrivals

MICROSECOND = 10**6  # in picoseconds


def job(**options):
    return JobSpec(trace="some.g10t", **options)


def test_copies_arrive_one_interval_apart():
    times = arrivals(job(arrival="5 us", copies=3, interval="10 us"), seed=0, position=0)
    assert times == (5 * MICROSECOND, 15 * MICROSECOND, 25 * MICROSECOND)


def test_random_arrivals_follow_the_seed_and_the_mean():
    spec = job(copies=1000, interval="10 us", arrivals="poisson")
    times = arrivals(spec, seed=3, position=0)
    assert times == arrivals(spec, seed=3, position=0)
    assert times != arrivals(spec, seed=4, position=0)
    assert times != arrivals(spec, seed=3, position=1)
    assert (len(times), times[0]) == (1000, 0)
    assert list(times) == sorted(times)
    assert times[-1] / 999 == pytest.approx(10 * MICROSECOND, rel=0.1)


def test_random_arrivals_need_a_rate():
    with pytest.raises(ValueError, match="'poisson' without 'interval'; allowed: a mean interval above 0"):
        job(copies=2, arrivals="poisson")


def test_copies_are_jobs_of_their_own(config, trace_file, tmp_path):
    config["workload"] = {
        "jobs": [{"trace": str(trace_file), "copies": 3, "interval": "1 us", "priority": 2}],
        "sharing": {"compute": "time_sliced", "time_slice": "10 us"},
    }
    seeds = {**config, "policies": ["ideal", "base_uvm"], "seed": [1, 2]}
    table = g10sim.run(seeds, output=tmp_path / "out").table
    assert list(table["job"]) == [0, 1, 2] * 4
    assert set(table["priority"]) == {2}
    assert list(table["arrival_cycles"][:3]) == [0, 1200, 2400]
    ideal = table[table.policy == "ideal"]
    assert (ideal["stall_compute_sharing_cycles"] > 0).all()
    assert (ideal["slowdown"] >= 1).all()


def test_sharing_is_about_jobs(config):
    config["workload"]["sharing"] = {"compute": "concurrent"}
    with pytest.raises(ConfigError, match="found 'sharing' without 'jobs'"):
        g10sim.run(config)


def test_random_arrivals_give_equal_bytes_for_an_equal_seed(config, trace_file, tmp_path):
    config["workload"] = {
        "jobs": [{"trace": str(trace_file), "copies": 4, "interval": "50 us", "arrivals": "poisson"}],
        "sharing": {"compute": "concurrent", "slowdown": 0.7},
    }
    for name in ("one", "two"):
        g10sim.run({**config, "policies": ["base_uvm", "g10"]}, output=tmp_path / name)
    first, second = ((tmp_path / name / "results.csv").read_bytes() for name in ("one", "two"))
    assert first == second


def test_replicas_have_a_row_each(config, trace_file, tmp_path):
    config["system"] = {**config["system"], "gpu": {"memory": "8 MiB", "count": 4}}
    config["workload"] = {"trace": str(trace_file), "gradient_exchange": "ring"}
    outcome = g10sim.run(
        {**config, "policies": ["base_uvm"], "sweep": {"workload.replicas": [1, 4]}}, output=tmp_path / "out"
    )
    table = outcome.table
    assert outcome.failures == []
    assert list(zip(table["cell"], table["gpu"], strict=True)) == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3)]
    alone, replicas = table[table["cell"] == 0], table[table["cell"] == 1]
    assert alone["stall_barrier_cycles"].sum() == 0
    assert (replicas["exec_cycles"] > alone["exec_cycles"].iloc[0]).all()
    again = g10sim.run(load_document(tmp_path / "out" / "config.yaml").data, output=tmp_path / "again").table
    assert again.equals(table)


def test_more_replicas_than_gpus_are_refused(config):
    config["workload"]["replicas"] = 2
    with pytest.raises(ConfigError, match=r"workload\.replicas: found 2; allowed: 1 to 1, one on a GPU"):
        g10sim.run(config)
