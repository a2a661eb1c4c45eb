import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from g10sim.results.seeds import interval, over_seeds


def test_the_interval_is_that_of_students_t():
    values = [1.0, 2.0, 4.0, 5.5]
    mean, width = interval(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (mean - width, mean + width) == pytest.approx((low, high))
    assert interval(values, 0.99)[1] > width
    assert interval([3, 3, 3]) == (3.0, 0.0)


def test_one_value_has_no_interval():
    mean, width = interval([7])
    assert mean == 7
    assert math.isnan(width)
    with pytest.raises(ValueError, match="found none"):
        interval([])


def test_intervals_cover_the_mean_as_often_as_they_say():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        mean, width = interval(list(generator.normal(10, 3, 4)))
        covered += abs(mean - 10) <= width
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def results(*rows):
    columns = ["cell", "trace", "policy", "swept", "seed", "status", "message", "exec_cycles", "performance"]
    return pd.DataFrame(rows, columns=columns)


def test_columns_of_some_systems_and_of_jobs_are_averaged_too():
    names = ["job", "priority", "seed", "status", "cpu_cycles", "ssd_erased_bytes", "slowdown"]
    rows = [(job, 1, seed, "ok", 10 + seed, 20 * seed, 2.0) for seed in (0, 1, 2) for job in (0, 1)]
    found = over_seeds(pd.DataFrame(rows, columns=names)).to_dict("records")
    assert [(row["job"], row["priority"], row["seeds"]) for row in found] == [(0, 1, 3), (1, 1, 3)]
    assert [(row["cpu_cycles"], row["ssd_erased_bytes"], row["slowdown"]) for row in found] == [
        (11, 20, 2)
    ] * 2


def test_cells_are_averaged_over_their_seeds():
    table = over_seeds(
        results(
            (0, "t", "b", "x", 0, "ok", "", 10, 0.5),
            (1, "t", "b", "x", 1, "ok", "", 20, 0.7),
            (2, "t", "a", None, 0, "ok", "", 5, 1.0),
            (3, "t", "a", None, 1, "unsupported", "why", None, None),
            (4, "t", "b", "y", 0, "ok", "", 7, 0.9),
        )
    )
    assert list(table.columns) == [
        "trace", "policy", "swept", "seeds", "status", "message",
        "exec_cycles", "exec_cycles_interval", "performance", "performance_interval",
    ]  # fmt: skip
    assert list(table["policy"]) == ["b", "a", "b"]
    assert list(table["seeds"]) == [2, 2, 1]
    assert list(table["status"]) == ["ok", "unsupported", "ok"]
    assert list(table["message"]) == ["", "why", ""]
    assert table["exec_cycles"][0] == 15
    assert table["exec_cycles_interval"][0] == pytest.approx(interval([10, 20])[1])
    assert table.loc[1, ["exec_cycles", "performance", "exec_cycles_interval"]].isna().all()
    assert table["exec_cycles"][2] == 7
    assert math.isnan(table["exec_cycles_interval"][2])


def test_other_columns_can_be_averaged():
    table = over_seeds(
        results((0, "t", "b", "x", 0, "ok", "", 10, 0.5)).assign(share=0.25), metrics=["share"]
    )
    assert list(table.columns)[:5] == ["trace", "policy", "swept", "seeds", "status"]
    assert list(table.columns)[5:] == ["message", "share", "share_interval"]
    assert table["share"][0] == 0.25


def test_ranges_under_uncertainty_are_averaged_too():
    rows = [("g10", seed, "ok", 10.0 + seed, 8.0 + seed, 20.0) for seed in (0, 1, 2)]
    names = ["policy", "seed", "status", "exec_ms", "exec_ms_low", "exec_ms_high"]
    (row,) = over_seeds(pd.DataFrame(rows, columns=names), ["exec_ms"]).to_dict("records")
    assert (row["exec_ms"], row["exec_ms_low"], row["exec_ms_high"]) == (11.0, 9.0, 20.0)
