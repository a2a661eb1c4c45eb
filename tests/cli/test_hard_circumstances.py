"""Full disks, closed output, Ctrl-C at the worst moment, and a working directory full of traps."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

pytestmark = pytest.mark.slow

STEADY = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}, "host": {"memory": "4 MiB"}}
"""A machine on which small cells repeat their iterations."""

G10SIM = Path(sys.executable).with_name("g10sim")
MODULE = (sys.executable, "-m", "g10sim")


def run(*arguments, command=(G10SIM,), **more):
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120, **more}
    return subprocess.run([*command, *arguments], **given)


def one_line(errors):
    return errors.startswith("error: ") and errors.count("\n") == 1


@pytest.mark.parametrize("arguments", [("policies",), ("--help",), ("run", "--schema")])
def test_output_that_nobody_reads_ends_a_command_quietly(here, arguments):
    read, write = os.pipe()
    os.close(read)
    ended = run(*arguments, stdout=write)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [("policies",), ("run", "--schema")])
def test_output_that_is_full_is_one_line(here, arguments):
    with Path("/dev/full").open("w") as full:
        ended = run(*arguments, stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == "error: standard output: cannot be written: No space left on device\n"


def test_output_that_is_closed_is_one_line(here):
    ended = run("policies", stdout=None, preexec_fn=lambda: os.close(1))
    assert ended.returncode == 1
    assert ended.stderr == "error: standard output: cannot be written: Bad file descriptor\n"


def test_a_full_error_stream_leaves_the_exit_code_alone(here):
    with Path("/dev/full").open("w") as full:
        assert run("run", "nothing.yaml", stderr=full).returncode == 2


def test_a_removed_working_directory_does_not_matter(here):
    gone = here / "gone"
    gone.mkdir()
    shell = f"rmdir ../gone && exec {G10SIM} system"
    ended = subprocess.run(["sh", "-c", shell], cwd=gone, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


TRAP = "import sys\nsys.stderr.write('shadowed')\nraise SystemExit(9)\n"


@pytest.mark.parametrize(
    "command", [(G10SIM,), pytest.param(MODULE, marks=pytest.mark.nightly)], ids=["g10sim", "module"]
)
def test_files_in_the_working_directory_do_not_shadow_libraries(here, config, command):
    for name in ("statistics", "pandas", "pyarrow", "numpy", "random", "matplotlib", "jinja2"):
        (here / f"{name}.py").write_text(TRAP)
    (here / "mine.py").write_text(
        "from g10sim.policies.interface import Policy\n"
        "class Mine(Policy):\n    name = label = paper = 'mine'\n"
    )
    name = config(policies=["base_uvm", "mine:Mine"], record=["summary", "kernels"], system=STEADY)
    for arguments in (("run", name, "-j", "2"), ("report", "out")):
        ended = run(*arguments, command=command)
        assert (ended.returncode, ended.stderr) == (0, "")
    assert Path("out/report.html").is_file()


INTERRUPT_ON_IMPORT = """\
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and {wanted}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


def interrupted_on_import(here, module, wanted):
    """Run a small sweep that gets SIGINT when a module is imported by a process where ``wanted`` holds."""
    (here / "start").mkdir()
    (here / "start" / "sitecustomize.py").write_text(INTERRUPT_ON_IMPORT.format(module=module, wanted=wanted))
    search_path = os.pathsep.join([str(here / "start"), os.environ.get("PYTHONPATH", "")])
    return run(
        "run",
        "run.yaml",
        env={**os.environ, "PYTHONPATH": search_path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("module", ["numpy", "g10sim.cli.run"])
def test_an_interruption_while_libraries_are_imported_is_one_line(here, config, module):
    config()
    ended = interrupted_on_import(here, module, "sys.argv[0] != '-c'")
    assert (ended.returncode, ended.stderr) == (130, "error: interrupted\n")


def test_an_interruption_does_not_reach_workers_that_start(here, config):
    config(system=STEADY)
    ended = interrupted_on_import(here, "g10sim.sim.engine", "sys.argv[0] == '-c'")
    assert (ended.returncode, ended.stderr) == (0, "")


def write_sweep(directory):
    save_trace(chain(8), directory / "chain.g10t")
    sweep = {
        "workload": {"trace": "chain.g10t"},
        "system": {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}},
        "policies": ["base_uvm", "deepum"],
        "seed": [0, 1],
        "record": ["summary", "kernels"],
        "output": "out",
    }
    (directory / "run.yaml").write_text(yaml.safe_dump(sweep))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Results of the same sweep where all files fit."""
    directory = tmp_path_factory.mktemp("whole")
    write_sweep(directory)
    assert run("run", "run.yaml", cwd=directory).returncode == 0
    return directory / "out"


@pytest.mark.parametrize(
    "large",
    [
        pytest.param("config.yaml", marks=pytest.mark.nightly),
        "results.csv",
        pytest.param("cells/*.json", marks=pytest.mark.nightly),
        pytest.param("cells/*.parquet", marks=pytest.mark.nightly),
        pytest.param("kernels.parquet", marks=pytest.mark.nightly),
    ],
)
def test_a_full_disk_is_one_line_whatever_is_being_written(here, whole, large):
    """No file can grow to the size of one that is ``large``."""
    limit = min(path.stat().st_size for path in whole.glob(large)) - 1

    def restrict():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    write_sweep(here)
    # Python takes as much of a compiled module as it could write for the whole module.
    unwritten = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ended = run("run", "run.yaml", preexec_fn=restrict, env=unwritten)
    assert ended.returncode in (1, 2)
    assert one_line(ended.stderr), ended.stderr
    assert "File too large" in ended.stderr
    assert "standard output" not in ended.stderr
    assert not list(Path("out").rglob("*.tmp"))
    assert run("run", "run.yaml").returncode == 0
    for name in ("results.csv", "kernels.parquet"):
        assert Path("out", name).read_bytes() == (whole / name).read_bytes()


def test_a_limit_of_open_files_that_is_too_low_is_said(here):
    def restrict():
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))

    write_sweep(here)
    ended = run("run", "run.yaml", preexec_fn=restrict)
    assert (ended.returncode, one_line(ended.stderr)) == (2, True), ended.stderr
    assert "open files: found a limit of 16; allowed: 32 or more (see ulimit -n)" in ended.stderr
    assert run("run", "run.yaml").returncode == 0


def test_equal_failures_share_a_line(g10sim, config, here):
    (here / "raises.py").write_text(
        "from g10sim.policies.interface import Policy\n"
        "class Raises(Policy):\n"
        "    name = 'raises'\n"
        "    def plan_job(self, job, system, behaviour):\n"
        "        raise RuntimeError('no plan today')\n"
    )
    ended = g10sim("run", config(policies=["raises:Raises"], seed=[0, 1, 2, 3, 4]))
    assert ended.code == 1
    assert one_line(ended.err)
    assert "cell 2 (chain.g10t, raises:Raises) and 2 more failed: " in ended.err


def test_many_cells_are_asked_for_twice(g10sim, config, monkeypatch):
    huge = config(
        policies=["ideal", {"name": "deepum", "look_ahead": 4}],
        seed=list(range(100)),
        sweep={"system.host.memory": [f"{size} MiB" for size in range(400)], "policies.1.look_ahead": [4, 8]},
    )
    ended = g10sim("run", huge)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "sweep: found 120,000 cells; allowed: up to 100,000, or more with --yes" in ended.err
    assert not Path("out").exists()
    monkeypatch.setattr("g10sim.cli.run._MANY_CELLS", 1)
    assert g10sim("run", config(policies=["ideal"], seed=[0, 1])).code == 2
    assert g10sim("run", config(policies=["ideal"], seed=[0, 1]), "--yes").code == 0
