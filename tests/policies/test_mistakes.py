"""Whoever writes a policy and makes a mistake is told which, where, and what is allowed."""

import sys

import pytest
import yaml
from machines import machine, trace_of
from mistakes import MISTAKES

from g10sim.cli.main import main
from g10sim.trace.format import save_trace


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory to run in, with a workload that needs more memory than there is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setitem(sys.modules, "mine", None)  # so that it is left out again in the end
    del sys.modules["mine"]
    kernels = [(10_000, "w", "a"), (10_000, "a", "b"), (10_000, "b", "c"), (10_000, "w c", "")]
    save_trace(trace_of({"w*": 2, "a": 2, "b": 2, "c": 2}, kernels), tmp_path / "steps.g10t")
    config = {
        "name": "mistakes",
        "workload": {"trace": "steps.g10t"},
        "system": machine(4).model_dump(mode="json", exclude_unset=True),
        "policies": ["mine:Mine"],
        "output": "out",
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_refused_with_what_is_allowed(mistake, directory, monkeypatch, capfd):
    source, said = MISTAKES[mistake]
    (directory / "mine.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["g10sim", "run", "run.yaml", "-j", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capfd.readouterr().err
    line = next(line for line in error.splitlines() if line.startswith("error: "))
    assert ended.value.code in (1, 2)
    assert "mine" in line
    assert said.replace("{mine}", str(directory / "mine.py")) in line
    assert "Traceback" not in error
    assert "internal error" not in error
