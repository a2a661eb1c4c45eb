"""What statistics say about recorded cells, compared with what they said: see ``test_recorded_cells.py``."""

import pytest
from recorded_cells import differences, read_table
from recorded_machines import MACHINES
from recorded_statistics import TABLE, statistics


@pytest.mark.parametrize("machine", MACHINES)
def test_statistics_are_those_recorded(machine):
    lines = differences({machine: read_table(TABLE)[machine]}, {machine: statistics(machine)})
    if lines:
        pytest.fail(
            f"other statistics than recorded (recorded -> found):\n{lines[0]}\n"
            f"If that is meant: python tests/recorded {TABLE}",
            pytrace=False,
        )
