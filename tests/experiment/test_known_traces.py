import json

import pytest

from g10sim.config.document import Document
from g10sim.experiment.expand import expand
from g10sim.experiment.store import CellStore
from g10sim.files import sealed
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

CLOCKS = "100 MHz", "1 GHz"


@pytest.fixture
def expanded(config, tmp_path):
    """Expand a configuration as runs of one directory do."""

    def expanded(**changes):
        store = CellStore(tmp_path / "out")
        store.prepare()
        known = store.known_traces
        experiment = expand(Document({**config, **changes}, ""), known=known)
        known.save()
        return experiment

    return expanded


@pytest.fixture
def unreadable(monkeypatch):
    """Let no trace be read from now on."""

    def read(path):
        raise AssertionError(f"{path} is read")

    return lambda: monkeypatch.setattr("g10sim.experiment.workloads.load_trace", read)


def at_clock(config, clock):
    return {**config["system"], "gpu": {**config["system"]["gpu"], "clock": clock}}


def test_an_equal_file_is_not_read_again(expanded, unreadable, trace_file):
    first = expanded()
    unreadable()
    trace_file.touch()
    assert expanded() == first


def test_a_warning_about_times_is_that_of_the_clock(config, expanded, trace_file):
    save_trace(chain(8, forward_ticks=15, backward_ticks=15, optimizer_ticks=15), trace_file)
    slow, fast = ({**config["system"], "gpu": {"memory": "8 MiB", "clock": clock}} for clock in CLOCKS)
    first = expanded(system=slow)
    assert "whole cycles of 100 MHz cut 33.33% off" in first.warnings[0]
    assert expanded(system=fast).warnings == ()
    assert expanded(system=slow) == first


def test_a_file_with_other_contents_is_read(expanded, trace_file):
    before = expanded()
    save_trace(chain(9), trace_file)
    assert expanded().cells[0].key != before.cells[0].key


@pytest.mark.parametrize(
    "written",
    [
        "no JSON",
        "[]",
        json.dumps({"sha256": "0"}),
        json.dumps(sealed({"key": {"sha256": 1}})),
        json.dumps(sealed({"key": ["sha256"]})),
    ],
)
def test_a_file_of_facts_that_is_not_as_it_was_written_counts_for_nothing(expanded, tmp_path, written):
    first = expanded()
    (facts,) = (tmp_path / "out" / "cells").glob("traces")
    kept = facts.read_text()
    facts.write_text(written)
    assert expanded() == first
    assert facts.read_text() == kept
