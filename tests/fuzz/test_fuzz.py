"""Hard use: damaged files are refused cleanly, and random workloads break no invariant.

``G10SIM_FUZZ_CASES`` sets the number of cases of each kind; the nightly run takes 3,000.
"""

import os

import pytest
from directories import Directories
from files import READERS, Samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workloads import draw_case, outcome

CASES = int(os.environ.get("G10SIM_FUZZ_CASES", "150"))
STRANGE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return Samples(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_are_read_or_refused_in_one_line(samples, kind):
    found = [samples.outcome(kind, seed) for seed in range(CASES)]
    assert set(found) <= {"read", "refused"}
    assert found.count("refused") > CASES // 2


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return Directories(tmp_path_factory.mktemp("results"))


@pytest.mark.slow
def test_damaged_directories_are_read_or_refused_in_one_line(directories):
    found = {directories.outcome(seed).split()[-1] for seed in range(max(15, CASES // 10))}
    assert found <= {"read", "failed", "refused"}
    assert {"read", "refused"} <= found


@settings(max_examples=CASES, deadline=None, suppress_health_check=STRANGE)
@given(st.integers(0, 2**32))
@pytest.mark.slow
def test_random_workloads_under_random_policies_break_no_invariant(seed):
    assert outcome(draw_case(seed)) in {"ran", "CapacityError", "ConfigError", "UnsupportedError"}


@pytest.mark.slow
def test_many_cases_really_run():
    found = [outcome(draw_case(seed)) for seed in range(60)]
    assert found.count("ran") > 20
