"""Rows of results by what somebody calls them."""

import pandas as pd
import pytest

from g10sim.errors import ConfigError
from g10sim.results.swept import rows_where

RESULTS = pd.DataFrame(
    {"trace": ["in/one.g10t", "in/two.g10t"], "system.host.memory": ["16 GiB", "32 GiB"], "cell": [0, 1]}
).assign(steady=float("nan"))


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("trace", "in/two.g10t"),
        ("trace", "two.g10t"),
        ("trace", "two"),
        ("system.host.memory", "32GiB"),
        ("cell", "1"),
    ],
)
def test_rows_are_found_by_any_name_of_a_value(column, text):
    assert rows_where(RESULTS, {column: text})["cell"].tolist() == [1]


def test_all_conditions_hold():
    assert rows_where(RESULTS, {"trace": "two", "system.host.memory": "32 GiB"})["cell"].tolist() == [1]
    with pytest.raises(ConfigError, match=r"--where system\.host\.memory: found '32 GiB'"):
        rows_where(RESULTS, {"trace": "one", "system.host.memory": "32 GiB"})
    assert len(rows_where(RESULTS, {})) == 2


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("trace", "three", "--where trace: found 'three'; allowed: in/one.g10t, in/two.g10t"),
        ("steady", "1", r"--where steady: found '1'; allowed: none \(the column has no values\)"),
        ("trce", "one", r"--where: found 'trce' \(did you mean 'trace'\?\)"),
    ],
)
def test_what_is_not_there_is_refused(column, text, message):
    with pytest.raises(ConfigError, match=message):
        rows_where(RESULTS, {column: text})
