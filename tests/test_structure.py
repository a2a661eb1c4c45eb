"""Rules about the source itself: who may import whom, and where names of policies may stand."""

import ast
import re
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

import g10sim
from g10sim.policies.interface.registry import available

PACKAGE = Path(g10sim.__file__).parent

LAYERS = [
    {"display", "errors", "grouping", "looks"},
    {"places"},
    {"reasons"},
    {"units", "records"},
    {"files"},
    {"config"},
    {"trace"},
    {"analysis"},
    {"policies.interface", "hardware"},
    {"policies.planning"},
    {"policies.designs"},
    {"policies"},
    {"sim", "results"},
    {"policies.checks"},
    {"importers"},
    {"capture", "plots"},
    {"experiment"},
    {"explain", "reproduce", "sizing"},
    {"api"},
    {"execute"},
    {"cli"},
    {"__main__"},
]
"""Parts of the package, lowest first; a part imports itself and lower ones only."""

ROOMS = "checks", "designs", "interface", "planning"
"""Parts of policies, each of its own height: checks run simulations."""
PLOTS = sorted((PACKAGE / "plots").glob("*.py"))
MODULES = PLOTS + sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("data", "plots")
)


def part(path):
    """Part of a module."""
    return part_of(*path.relative_to(PACKAGE).with_suffix("").parts)


def imported_part(name):
    return part_of(*name.split(".")[1:])


def part_of(first, *others):
    return f"{first}.{others[0]}" if first == "policies" and others and others[0] in ROOMS else first


def height(name):
    (found,) = [position for position, layer in enumerate(LAYERS) if name in layer]
    return found


@cache
def parsed(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    return list(imported(path))


def imported(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "g10sim")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path):
    here = part(path)
    if here == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "g10sim" and len(parts) > 1 and parts[1] != "__version__":
            there = imported_part(name)
            assert there == here or height(there) < height(here), f"{here} imports {name}"


def test_references_in_docstrings_name_what_there_is():
    reference = re.compile(r":(?:class|func|meth|mod):`(\.|g10sim\.)([\w.]+)`")
    for path in MODULES:
        package = ".".join(("g10sim", *path.relative_to(PACKAGE).parent.parts))
        for start, name in reference.findall(path.read_text()):
            assert resolve_name(f"{package if start == '.' else 'g10sim'}.{name}"), f"{path}: {name}"


@pytest.mark.parametrize("path", PLOTS, ids=lambda path: path.name)
def test_plots_read_results_only(path):
    used = {name.split(".")[1] for name in imports(path) if name.startswith("g10sim.")}
    assert used <= {
        "plots",
        "results",
        "errors",
        "files",
        "looks",
        "places",
        "registry",
        "units",
    }


def outside(*parts):
    return [path for path in MODULES if part(path) not in parts]


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("torch", {"capture", "execute"}),
        ("transformers", {"capture"}),
        ("matplotlib", {"plots"}),
        ("simpy", {"hardware", "sim"}),
        ("typer", {"cli"}),
        ("rich", {"cli"}),
    ],
)
def test_libraries_are_used_only_where_they_belong(library, homes):
    users = {
        part(path) for path in outside(*homes) if library in {name.split(".")[0] for name in imports(path)}
    }
    assert users == set()


# A CUDA stream, as PyTorch's memory snapshots call it.
OTHER_MEANINGS = {PACKAGE / "importers" / "snapshot.py": {"stream"}}


def test_only_policies_name_policies():
    names = set(available())
    assert len(names) > 3
    rooms = ("policies", *(f"policies.{room}" for room in ROOMS if room != "checks"))
    for path in set(outside(*rooms)) - {PACKAGE / "plots" / "style.py"}:
        constants = {
            node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
        }
        found = {value for value in constants if isinstance(value, str)} & names
        assert found <= OTHER_MEANINGS.get(path, set()), path
