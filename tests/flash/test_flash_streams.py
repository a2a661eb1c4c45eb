"""Streams of a drive: what it is told of the tensors that are written to it."""

import pytest
from drives import drive, with_drive
from machines import trace_of

from g10sim.hardware.flash.pool import FlashPool
from g10sim.policies.interface.policy import Policy
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload


@pytest.mark.interpreted
def test_a_drive_with_streams_is_told_when_tensors_are_needed_next(monkeypatch):
    deaths, told = [], []
    monkeypatch.setattr(FlashPool, "expect_deaths", lambda pool, memory, death: deaths.append(death))

    class Asks(Policy):
        """Asks at every kernel what the drive would be told of the first tensor."""

        name = "asks"

        def on_kernel_start(self, view):
            told.append(deaths[0](0))
            return ()

    trace = trace_of({"w*": 1, "a": 1}, [(100, "", "a"), (100, "w", ""), (100, "a", ""), (100, "", "")])
    system = with_drive(drive(streams=4), gpu_pages=10)
    run(Workload((Job(trace, iterations=1),)), system, Asks())
    # w is read by the second of four kernels: written before, at or after it, its copy dies there.
    assert told == [0.25, 0.25, 0.25, 0.25]
