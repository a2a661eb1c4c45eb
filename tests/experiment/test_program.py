"""The key of a cell changes with the code that can change its numbers, and with no other."""

import ast
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import g10sim
from g10sim.config.document import Document
from g10sim.errors import UnsupportedError
from g10sim.experiment import program
from g10sim.experiment.execution import simulate
from g10sim.experiment.expand import expand
from g10sim.experiment.program import meaning, program_hash
from g10sim.policies import registry

TABLES = ("kernels", "migrations", "memory", "timeline")
SOURCE = '''
"""A module."""

from dataclasses import dataclass

LIMIT = 3
"""How many."""


@dataclass
class Box:
    """A box."""

    size: int
    count: int = 2

    def full(self, used: int, *, spare: int = 1) -> bool:
        """Whether it is full."""
        left: int = self.size - used
        return left < spare
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""Another text."""'),
        ('"""A module."""', ""),
        ('    """A box."""', ""),
        ('    """A box."""', '    """Something with a size."""'),
        ('"""How many."""', ""),
        ('        """Whether it is full."""', "        # It is full where nothing is left."),
        ("LIMIT = 3", "LIMIT = (\n    3  # three\n)"),
        ("used: int, *, spare: int = 1", "used, *, spare: float = 1"),
        (" -> bool", ""),
        ("left: int = ", "left: float = "),
        ("return left < spare", "return (left\n            < spare)"),
    ],
)
def test_words_and_layout_have_no_meaning(old, new):
    assert old in SOURCE
    assert meaning(ast.parse(SOURCE.replace(old, new))) == meaning(ast.parse(SOURCE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 3.0"),
        ("self.size - used", "self.size + used"),
        ("left < spare", "left <= spare"),
        ("spare: int = 1", "spare: int = 2"),
        ("count: int = 2", "count: int = 3"),
        ("    size: int\n", ""),
        ("size: int\n", "size: float\n"),
        ("@dataclass\n", ""),
        ("        return left < spare", "        return\n        left < spare"),
        ("return left < spare", "return not left < spare"),
    ],
)
def test_code_has_meaning(old, new):
    assert old in SOURCE
    ast.parse(SOURCE.replace(old, new))
    assert meaning(ast.parse(SOURCE.replace(old, new))) != meaning(ast.parse(SOURCE))


def forget():
    for function in (program._program, program._code, program._own_source):
        function.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package, hashed in place of it."""
    copy = tmp_path / "g10sim"
    copytree(Path(g10sim.__file__).parent, copy, ignore=ignore_patterns("__pycache__", "data", "plots"))
    monkeypatch.setattr(program, "_PACKAGE", copy)
    forget()
    yield copy
    forget()


def hash_after(path, old, new, policy="g10"):
    """Hash of the program under a policy with a text of a file replaced."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    forget()
    try:
        return program_hash(policy)
    finally:
        path.write_text(text)
        forget()


def with_another_number(path):
    """Text of the first line with a whole number as a default, and the line with another number."""
    lines = path.read_text().splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        given = [node.value] if isinstance(node, ast.Assign | ast.AnnAssign) else []
        given += [*node.defaults, *node.kw_defaults] if isinstance(node, ast.arguments) else []
        for one in given:
            if isinstance(one, ast.Constant) and type(one.value) is int:
                line = lines[one.lineno - 1]
                return line, f"{line[: one.col_offset]}({one.value} + 1){line[one.end_col_offset :]}"
    return None


def modules(policies=("g10",)):
    """Names of the modules that count."""
    homes = [registry.find(policy).__module__ for policy in policies]
    return list(program._followed(homes)[0])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["sim", "hardware", "policies"])
def test_changed_numbers_of_the_simulation_change_the_key(package, part):
    before = program_hash("g10")
    assert program_hash("g10") == before
    paths = [program._own_source(name) for name in modules() if name.startswith(f"g10sim.{part}.")]
    path = next(path for path in paths if with_another_number(path))
    assert hash_after(path, *with_another_number(path)) != before, path
    assert hash_after(path, "\n\n\n", "\n# A comment.\n\n\n\n") == before, path
    assert hash_after(path, '"""', '""" Else: ') == before, path


def test_other_parts_and_other_policies_do_not_change_the_key(package):
    before = program_hash("g10")
    outside = [*package.glob("cli/*.py"), *package.glob("capture/*.py"), *package.glob("importers/*.py")]
    outside += [package / "experiment" / "report.py", package / "api.py", package / "policies" / "vdnn.py"]
    for path in outside:
        path.write_text(path.read_text() + "\nADDED = 1\n")
    forget()
    assert program_hash("g10") == before
    with (package / "policies" / "vdnn.py").open("a") as file:
        file.write("\nMORE = 2\n")
    assert hash_after(package / "policies" / "vdnn.py", "MORE = 2", "MORE = 3", "vdnn") != hash_after(
        package / "policies" / "vdnn.py", "MORE = 2", "MORE = 4", "vdnn"
    )


@pytest.mark.parametrize("library", ["numpy", "scipy", "simpy"])
def test_versions_of_libraries_count(monkeypatch, library):
    before, real = program_hash("ideal"), program.version
    forget()
    monkeypatch.setattr(program, "version", lambda name: "0" if name == library else real(name))
    assert program_hash("ideal") != before
    forget()


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
    own = {Path(name) for name in executed if Path(name).is_relative_to(program._PACKAGE)}
    assert len(own) > 10
    assert own <= {program._own_source(name) for name in modules([policy])}


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A policy in a file with a helper beside it."""
    (tmp_path / "house_helper.py").write_text("LIMIT = 1\n")
    policy = "from g10sim.policies.base import Policy\nfrom house_helper import LIMIT\n\n\n"
    policy += "class Mine(Policy):\n    name = 'mine'\n    limit = LIMIT\n"
    (tmp_path / "house_policy.py").write_text(policy)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path
    forget()
    for name in ("house_helper", "house_policy"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("file", ["house_policy.py", "house_helper.py"])
def test_a_plug_in_counts_with_its_helpers(plugin, config, file):
    def key():
        document = Document({**config, "policies": ["house_policy:Mine"]}, "")
        return expand(document).cells[0].key

    before = key()
    assert key() == before
    with (plugin / file).open("a") as text:
        text.write("\n\nMORE = 1\n")
    assert key() != before
