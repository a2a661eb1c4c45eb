"""Ratios to published costs count what a fixed piece of code takes on either machine."""

import pytest

from benchmarks.cells import PUBLISHED, Cell
from benchmarks.measure import Measurement
from benchmarks.report import summarize

RUN = Measurement(0.25, 0.5, 0.25, 2.0, 10, 0, 0, 7)


def row(yardsticks, published=40.0):
    return summarize(Cell(PUBLISHED, "net", 1, "g10", {}, {}, published=published), [RUN], yardsticks)


def test_costs_count_in_yardsticks():
    found = row((0.48, 0.52))
    assert found["yardstick_seconds"] == 0.5
    assert found["ratio"] == 40 * 0.5 / 1.0
    assert found["process_ratio"] == 40 * 0.5 / 2.0


@pytest.mark.parametrize("yardsticks", [(0.4, 0.5), (0.5, 0.4)])
def test_no_ratio_where_the_machine_changed(yardsticks):
    found = row(yardsticks)
    assert found["drifted"]
    assert found["ratio"] is None is found["process_ratio"]


def test_no_ratio_without_a_published_cost():
    assert row((0.5, 0.5), published=None)["ratio"] is None
