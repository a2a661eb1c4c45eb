import sys
from dataclasses import dataclass

import pytest
import yaml

from g10sim.cli.main import main
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, from which plug-ins are imported too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


@pytest.fixture
def g10sim(here, monkeypatch, capfd):
    """Runs the command line in this process."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["g10sim", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return Ended(ended.value.code, out, err)

    return run


@pytest.fixture
def config(here):
    """Writes ``run.yaml`` of small cells that do not fit in GPU memory, with changes."""
    save_trace(chain(8), here / "chain.g10t")
    base = {
        "name": "small",
        "workload": {"trace": "chain.g10t"},
        "system": {
            "preset": "a100-40g-pcie3-znand",
            "gpu": {"memory": "6500 KiB"},
            "host": {"memory": "4 MiB"},
        },
        "policies": ["ideal", "base_uvm", "deepum"],
        "output": "out",
    }

    def write(**changes):
        path = here / "run.yaml"
        path.write_text(yaml.safe_dump({**base, **changes}, sort_keys=False))
        return path.name

    return write
