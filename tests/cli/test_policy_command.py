"""A package for a policy of one's own: generated, installed in a fresh environment, tested, listed, run."""

import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_generated_package_works_as_generated(g10sim, here):
    (here / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--of-another-project"\n')
    made = g10sim("policy", "new", "far_sighted")
    assert made.code == 0, made.err
    package = here / "far_sighted"
    assert "pip install" in made.out
    home = here / "environment"
    venv.create(home, with_pip=find_spec("pip") is None, system_site_packages=False)
    # The libraries of the environment that runs this test, and nothing installed by hand.
    (site,) = home.glob("lib/python*/site-packages")
    libraries = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "libraries.pth").write_text(f"{libraries}\n{ROOT}\n")
    python = home / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def call(*command):
        done = subprocess.run(
            [str(part) for part in command], cwd=package, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", ".")
    assert " passed" in call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    command = "from g10sim.cli.main import main; main()"
    assert "far_sighted" in call(python, "-c", command, "policies")
    trace = f"workload.trace={ROOT}/traces/bert-base-b256-s128.g10t"
    table = call(
        python, "-c", command, "run", "compare.yaml", "--set", trace, "--set", "policies=[far_sighted]"
    )
    assert "far_sighted" in table
    assert (package / "results" / "far_sighted" / "results.csv").is_file()


@pytest.mark.parametrize("name", ["MyPolicy", "my-policy", "class", "../escape", "1st", "a__b", ""])
def test_names_that_are_no_names_are_refused(g10sim, here, name):
    done = g10sim("policy", "new", name)
    assert done.code == 2
    assert f"policy name: found '{name}'; allowed: lower-case words" in done.err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["numpy", "g10sim", "random"])
def test_names_that_would_hide_another_package_are_refused(g10sim, here, name):
    done = g10sim("policy", "new", name)
    assert done.code == 2
    assert f"policy name: found '{name}', which there is already; allowed: a new name" in done.err
    assert list(here.iterdir()) == []


def test_what_is_there_is_not_overwritten(g10sim, here):
    taken = g10sim("policy", "new", "base_uvm")
    assert (taken.code, "which there is already" in taken.err) == (2, True)
    (here / "mine").mkdir()
    there = g10sim("policy", "new", "mine")
    assert (there.code, "exists already" in there.err) == (2, True)
    assert list((here / "mine").iterdir()) == []
