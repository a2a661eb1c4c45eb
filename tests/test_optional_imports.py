"""Tests skip where an optional package is missing: who imports one asks ``pytest.importorskip`` before."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PATHS = sorted(path for path in TESTS.rglob("*.py") if path.name.startswith(("test_", "conftest")))
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def packages(requirements):
    return {re.split(r"[^\w-]", one)[0] for one in requirements}


@cache
def optional():
    """Packages that neither g10sim nor its tests bring: what comes with other extras alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    brought = packages([*project["dependencies"], *extras["dev"]])
    return {name for extra in extras.values() for name in packages(extra)} - brought


@cache
def helpers():
    return {path.stem: path for path in TESTS.rglob("*.py")}


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def asks(node):
    calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr == "importorskip" for call in calls)


def is_for_types(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(node, *, inside):
    """Yield the names that a statement imports; of functions in it only if ``inside``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif inside or not (
        isinstance(node, FUNCTIONS)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ):
        for inner in ast.iter_child_nodes(node):
            yield from imported(inner, inside=inside)


def files_of(name):
    """Files of the package, or of helpers of the tests, that an import runs."""
    parts = name.split(".")
    if parts[0] != "g10sim":
        return [helpers()[parts[0]]] if parts[0] in helpers() else []
    within = [ROOT.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    return [
        file for base in within for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()
    ]


def needed(names):
    """Return the optional packages that imports need, themselves or through what they run."""
    found = {name.split(".")[0] for name in names} & optional()
    return found.union(*(needed_by(file) for name in names for file in files_of(name)))


_NEEDED = {}


def needed_by(file):
    """Return the optional packages that importing a file needs, up to where it asks for one."""
    if file not in _NEEDED:
        _NEEDED[file] = set()  # of a circle of imports
        for statement in parsed(file).body:
            if not isinstance(statement, FUNCTIONS) and asks(statement):
                break
            _NEEDED[file] |= needed(list(imported(statement, inside=False)))
    return _NEEDED[file]


def fixtures(path):
    """Fixtures that a file of tests can use, by name; the nearest of a name."""
    around = [path.parent, *path.parent.parents]
    files = [path, *(folder / "conftest.py" for folder in around[: around.index(TESTS) + 1])]
    made = [
        node for file in files if file.is_file() for node in parsed(file).body if isinstance(node, FUNCTIONS)
    ]
    return {
        node.name: node
        for node in reversed(made)
        if "fixture" in "".join(map(ast.unparse, node.decorator_list))
    }


def is_asked(function, known):
    """Tell whether a function asks for a package, or a fixture that it uses does."""
    used = [known[argument.arg] for argument in function.args.args if argument.arg in known]
    return asks(function) or any(is_asked(one, known) for one in used if one is not function)


def unasked(path):
    """Return functions of tests, and fixtures, with the optional packages that nobody has asked for."""
    body = parsed(path).body
    if any(asks(statement) for statement in body if not isinstance(statement, FUNCTIONS)):
        return {}
    known = fixtures(path)
    functions = [
        one for one in body if isinstance(one, FUNCTIONS) and (one.name[:5] == "test_" or one.name in known)
    ]
    found = {
        one.name: needed(list(imported(one, inside=True))) for one in functions if not is_asked(one, known)
    }
    return {name: packages for name, packages in found.items() if packages}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(TESTS)))
def test_optional_packages_are_asked_for_before_they_are_imported(path):
    assert {"torch", "transformers"} <= optional()
    assert needed_by(path) == set(), "allowed: pytest.importorskip before it"
    assert unasked(path) == {}, "allowed: pytest.importorskip in it, or in a fixture that it uses"


ASKING = "import pytest\n@pytest.fixture\ndef torch():\n    return pytest.importorskip('torch')\n"


@pytest.mark.parametrize(
    ("text", "found", "within"),
    [
        ("import torch.nn", {"torch"}, {}),
        ("import pytest\npytest.importorskip('torch')\nimport torch", set(), {}),
        ("import pytest\nimport torch\npytest.importorskip('torch')", {"torch"}, {}),
        ("from g10sim.capture.step import capture_step", {"torch"}, {}),
        ("from g10sim.capture import step", {"torch"}, {}),
        ("from g10sim.trace import model\nimport numpy", set(), {}),
        ("if True:\n    from torch import nn", {"torch"}, {}),
        ("def test_it():\n    import torch", set(), {"test_it": {"torch"}}),
        ("def test_it():\n    from g10sim.capture.step import capture_step", set(), {"test_it": {"torch"}}),
        ("import pytest\ndef test_it():\n    pytest.importorskip('torch')\n    import torch", set(), {}),
        (ASKING + "def test_it(torch):\n    import torch", set(), {}),
        (ASKING + "@pytest.fixture\ndef net(torch): ...\ndef test_it(net):\n    import torch", set(), {}),
    ],
)
def test_what_a_file_of_tests_imports_is_found(monkeypatch, tmp_path, text, found, within):
    monkeypatch.setattr("test_optional_imports.TESTS", tmp_path)
    path = tmp_path / "test_it.py"
    path.write_text(text)
    assert needed_by(path) & {"torch"} == found
    assert {name: packages & {"torch"} for name, packages in unasked(path).items()} == within
