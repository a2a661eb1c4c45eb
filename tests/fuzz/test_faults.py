"""Faults in the middle of a sweep."""

import pytest
from faults import FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_sweep_survives(fault, tmp_path):
    assert fault(tmp_path)
