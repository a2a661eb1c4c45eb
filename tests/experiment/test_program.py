"""The key of a cell changes with every file of the engine, and with no other of g10sim."""

import os
import py_compile
import re
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import g10sim
from g10sim.config.document import Document
from g10sim.errors import ConfigError, UnsupportedError
from g10sim.experiment import program
from g10sim.experiment.cells import CellTask
from g10sim.experiment.execution import run_cell, simulate
from g10sim.experiment.expand import expand

TABLES = ("kernels", "migrations", "memory", "timeline")


def forget():
    program.program.cache_clear()
    program.version_of.cache_clear()


def looked_at():
    forget()
    try:
        return program.program()
    finally:
        forget()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package, hashed in place of it."""
    copy = tmp_path / "g10sim"
    copytree(Path(g10sim.__file__).parent, copy, ignore=ignore_patterns("__pycache__", "data"))
    monkeypatch.setattr(program, "_PACKAGE", copy)
    return copy


@pytest.mark.parametrize(
    "part", ["sim/engine.py", "hardware/links.py", "policies/designs/g10/g10.py", "units.py"]
)
def test_files_of_the_engine_count(package, part):
    before = looked_at().sha256
    assert looked_at().sha256 == before
    with (package / part).open("a") as file:
        file.write("\nADDED = 1\n")
    assert looked_at().sha256 != before


def test_other_parts_do_not_count(package):
    before = looked_at().sha256
    outside = [*package.glob("cli/*.py"), *package.glob("capture/*.py"), *package.glob("importers/*.py")]
    for path in (*outside, *package.glob("plots/*.py"), package / "explain" / "report.py"):
        path.write_text(path.read_text() + "\nADDED = 1\n")
    assert looked_at().sha256 == before


@pytest.mark.parametrize("library", ["numpy", "scipy", "simpy"])
def test_versions_of_libraries_count(monkeypatch, library):
    before, real = looked_at().sha256, program.version
    monkeypatch.setattr(program, "version", lambda name: "0" if name == library else real(name))
    assert looked_at().sha256 != before


@pytest.mark.parametrize("policy", ["g10", "deepum", "flashneuron", "autoswap", "vdnn"])
def test_all_that_a_simulation_executes_counts(config, policy):
    (cell,) = expand(Document({**config, "policies": [policy]}, "")).cells
    executed = set()
    sys.setprofile(lambda frame, event, argument: executed.add(frame.f_code.co_filename))
    try:
        with suppress(UnsupportedError):
            simulate(cell.workload(), cell.system, cell.make_policy(), cell.behaviour, tables=TABLES)
    finally:
        sys.setprofile(None)
    home = Path(g10sim.__file__).parent
    own = {str(Path(name).relative_to(home)) for name in executed if Path(name).is_relative_to(home)}
    assert len(own) > 10
    assert own <= {str(path.relative_to(home)) for path in program.engine_files()}


def test_code_that_python_did_not_load_is_refused_once(package):
    path = package / "units.py"
    compiled = Path(program.cache_from_source(str(path)))
    py_compile.compile(str(path), doraise=True)
    before, text = path.stat(), path.read_text()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # touched, but the same
    assert looked_at()
    path.write_text(text.replace("1024", "1025", 1) if "1024" in text else text.replace("2", "3", 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ConfigError, match=r"units\.py: was edited without a change of size and time"):
        looked_at()
    assert not compiled.exists()
    assert looked_at()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("key", "g10sim was edited while this run lasts"),
        ("settings", "found {.*}; allowed: of another process"),
    ],
)
def test_a_cell_that_is_another_in_its_process_fails(config, tmp_path, name, says):
    cell = g10sim.run(config, output=tmp_path / "out").cells[0]
    cell.__dict__[name] = "of another process"
    result = run_cell(CellTask(cell, tmp_path / "again"), 0)
    assert result.status == "failed"
    assert re.search(says, result.message)
