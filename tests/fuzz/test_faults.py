"""Faults in the middle of a sweep."""

import pytest
from faults import FAULTS, two_at_once, worker_killed

pytestmark = pytest.mark.slow

DAILY = (worker_killed, two_at_once)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=() if fault in DAILY else pytest.mark.nightly) for fault in FAULTS],
    ids=lambda fault: fault.__name__,
)
def test_a_sweep_survives(fault, tmp_path):
    assert fault(tmp_path)
