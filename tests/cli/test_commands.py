"""The list of commands: complete, true, and quick, as nothing is imported for it but what writes it."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from g10sim.cli.commands import _imported, _listed, app
from g10sim.experiment.run import _SHOWS_METHODS
from g10sim.experiment.workers import LocalProcesses

GROUP = typer.main.get_command(app)
NAMES = GROUP.list_commands(None)
SLOW = "numpy", "pandas", "pydantic", "simpy", "yaml", "matplotlib", "jinja2", "g10sim.config"


@pytest.mark.parametrize("name", NAMES)
def test_the_list_says_of_a_command_what_it_says_itself(name):
    assert _listed(name).help == _imported(name).help
    assert _imported(name).name == name


def test_help_lists_every_command():
    shown = CliRunner().invoke(app, ["--help"]).output
    assert [name for name in NAMES if f" {name} " not in shown] == []


def test_help_imports_nothing_that_is_slow():
    code = f"""
import sys
from g10sim.cli.commands import app
try:
    app(["--help"], standalone_mode=False)
finally:
    print([name for name in {SLOW} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


def ran(code, *arguments):
    """The lines of a command that runs in its own process, whose last statement is code."""
    program = f"""
import multiprocessing.process, sys
from g10sim.cli.main import run_alone
sys.argv = ["g10sim", *sys.argv[1:]]
start = multiprocessing.process.BaseProcess.start
multiprocessing.process.BaseProcess.start = lambda self: (print(type(self).__name__), start(self))
try:
    run_alone()
finally:
    {code}
"""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_run_leaves_numpy_to_the_processes_of_its_cells(config):
    assert ran("print('numpy._core' in sys.modules)", "run", config(policies=["base_uvm"]))[-1] == "False"


PLUG_IN = """
from g10sim.policies.interface import Policy

class Idle(Policy):
    name = "idle"
"""


@pytest.mark.slow
def test_a_single_worker_is_a_copy_of_the_command_unless_that_has_loaded_code_of_others(here, config):
    (here / "idling.py").write_text(PLUG_IN)
    of_g10sim, with_plug_in = ["base_uvm", "deepum"], ["idling:Idle", "base_uvm"]
    several = "--output", "other", "--workers", "2"
    assert "ForkProcess" in ran("pass", "run", config(policies=of_g10sim))
    assert "ForkServerProcess" in ran("pass", "run", config(policies=of_g10sim), *several)
    found = ran("pass", "run", config(policies=with_plug_in, output="third"))
    assert "ForkServerProcess" in found
    assert "ForkProcess" not in found


BUSY = """
from g10sim.policies.interface import Policy

class Busy(Policy):
    name = "busy"

    def on_kernel_start(self, view):
        return sorted(range(1000), key=lambda number: -number)[:0]
"""


def test_the_command_that_a_warning_of_slow_policies_names_shows_their_methods(here, config):
    config()
    (here / "busy.py").write_text(BUSY)
    told = _SHOWS_METHODS.replace("FILE", "chain.g10t").replace("POLICY", "busy:Busy").split()
    shown = subprocess.run([sys.executable, *told[1:]], capture_output=True, text=True, check=True).stdout
    assert "(on_kernel_start)" in shown


def test_a_misspelt_command_is_told_the_nearest():
    result = CliRunner().invoke(app, ["rnu"])
    assert result.exit_code == 2
    assert "Did you mean 'run'?" in result.output


@pytest.mark.parametrize(
    ("command", "option", "most"),
    [
        (("trace", "block", "chain.g10t", "-o", "out.g10t"), "--batches", 1024),
        (("plan", "swaps", "chain.g10t"), "--steps", 1000),
        (("policy", "step", "chain.g10t", "g10"), "--iterations", 10_000),
        (("policy", "step", "chain.g10t", "g10"), "--count", 10**6),
    ],
)
def test_numbers_that_would_take_forever_are_refused(g10sim, config, command, option, most):
    config()
    ended = g10sim(*command, option, 10**30)
    assert ended.code == 2
    assert f"'{option}': " in ended.err
    assert str(most) in ended.err


def test_any_number_of_workers_is_no_more_than_there_are_cells():
    assert list(LocalProcesses(10**18).run([])) == []
