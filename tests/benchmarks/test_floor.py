"""Cells beside a loop in C: the same cycles, or no ratio."""

import pytest

from benchmarks import floor
from g10sim.errors import ConfigError


@pytest.mark.reference
def test_the_loop_gives_the_same_cycles(reference, monkeypatch):
    monkeypatch.setattr(floor, "TRACES", floor.TRACES[:1])
    (row,) = floor.measure(reference, 1)
    assert row["exec_cycles"] > 10**9
    assert row["ratio"] > 1


def test_without_the_loop_there_is_no_ratio(tmp_path):
    with pytest.raises(ConfigError, match=r"floor\.c: found no such file"):
        floor.measure(tmp_path, 1)
