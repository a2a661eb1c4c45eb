"""Results that were not written by a run are refused."""

import pytest

from g10sim.errors import ConfigError
from g10sim.stats.reading import read_results


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kernel,start\n0,1\n", "found no column 'cell'"),
        ("cell,trace,policy,status,exec_cycles\n0,t,p,ok,fast\n", "found text in column 'exec_cycles'"),
    ],
)
def test_a_file_of_something_else_is_no_result(tmp_path, text, found):
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(ConfigError, match=f"results.csv: {found}; allowed: a file written by 'run'"):
        read_results(tmp_path)


def test_a_run_of_which_nothing_succeeded_can_be_read(tmp_path):
    (tmp_path / "results.csv").write_text("cell,trace,policy,status,exec_cycles\n0,t,p,failed,\n")
    assert list(read_results(tmp_path)["status"]) == ["failed"]
