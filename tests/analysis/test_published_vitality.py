"""Live ranges and inactive periods against the published simulator's own list."""

import gzip
import re

import pytest

from g10sim.analysis.timeline import kernel_starts
from g10sim.analysis.vitality import inactive_periods, live_ranges
from g10sim.importers.gpg import import_gpg

CELLS = ["BERT_Base/256", "Inceptionv3/512", "SENet154/256"]
NEVER_READ = -1


class PublishedList:
    """``interval.config``: live ranges (None: global) and periods with their length in microseconds."""

    def __init__(self, path):
        self.live = {}
        self.periods = {}
        self.times_us = {}
        with gzip.open(path, "rt") as lines:
            for line in lines:
                self._read(line.rstrip())

    def _read(self, line):
        numbers = [int(number) for number in re.findall(r"-?\d+", line.replace("--------", " "))]
        if line.startswith("tensor"):
            self.tensor = numbers[0]
        elif line.startswith("Liveness"):
            self.live[self.tensor] = tuple(numbers)
        elif line == "Global!":
            self.live[self.tensor] = None
        elif line.startswith("interval"):
            self.periods.setdefault(self.tensor, []).append(tuple(numbers[1:]))
        elif line.startswith("Estimated Time:"):
            self.times_us.setdefault(self.tensor, []).append(float(line.split(":")[1]))


@pytest.mark.parametrize("cell", CELLS)
def test_live_ranges_and_periods(published, cell):
    trace = import_gpg(published / "traces" / cell)
    listed = PublishedList(published / "traces" / cell / "interval.config.gz")
    for tensor, live in zip(trace.tensors, live_ranges(trace), strict=True):
        if tensor.persistent:
            assert listed.live[tensor.id] is None
        elif listed.live[tensor.id][1] == NEVER_READ:
            assert live.death == live.birth + 1 == listed.live[tensor.id][0] + 1
        else:
            assert (live.birth, live.death) == listed.live[tensor.id]
    starts = kernel_starts(trace, 1_200_000_000)
    periods, times_us = {}, {}
    for period in inactive_periods(trace):
        periods.setdefault(period.tensor, []).append((period.start, period.end))
        times_us.setdefault(period.tensor, []).append(period.cycles(starts) / 1200)
    assert periods == listed.periods
    for tensor, expected in listed.times_us.items():
        assert times_us[tensor] == pytest.approx(expected, rel=1e-5)  # printed with six digits
