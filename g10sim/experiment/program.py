"""Hash of the code that can change the numbers of a simulation."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import g10sim
from g10sim.policies import registry
from g10sim.trace.format import without_cycle_collection

_PACKAGE = Path(g10sim.__file__).parent
_SIMULATES = "g10sim.experiment.execution"
_LIBRARIES = ("numpy", "scipy", "simpy")
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_MEANINGLESS = frozenset({"annotation", "ctx", "kind", "returns", "type_comment"})


@cache
def program_hash(*policies: str) -> str:
    """Hash of Python (major.minor), the libraries that compute numbers, and the code of simulations.

    The code is what a simulation under these policies can execute: the modules of g10sim that follow through
    imports, and those of a plug-in that are not installed. Raises PolicyError for an unknown policy.
    """
    libraries = [f"{name} {version(name)}" for name in _LIBRARIES]
    text = [f"Python {sys.version_info.major}.{sys.version_info.minor}", *libraries]
    with without_cycle_collection():  # syntax trees have no cycles, and the search for some doubles the time
        text += sorted(_followed({registry.find(policy).__module__ for policy in policies}))
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _followed(policies: set[str]) -> Iterator[str]:
    """Yield the modules that simulations can execute, each with the hash of its code."""
    tops = {policy.partition(".")[0] for policy in policies}
    waiting, seen = [_SIMULATES, *policies], set[str]()
    while waiting:
        name = waiting.pop()
        path = None if name in seen else _source(name, tops)
        seen.add(name)
        if path is not None:
            code, imports = _code(path, name)
            yield f"{name} {code}"
            waiting += imports


def _source(name: str, plugins: set[str]) -> Path | None:
    """Path of a module, if it belongs to g10sim, to the package of a plug-in, or to no installed one."""
    top = name.partition(".")[0]
    if top == "g10sim":
        return _own_source(name)
    file = getattr(sys.modules.get(name), "__file__", None)  # a module typed at a prompt has none
    if file is None or (top not in plugins and any(Path(file).is_relative_to(place) for place in _INSTALLED)):
        return None
    return Path(file)


@cache
def _own_source(name: str) -> Path | None:
    path = _PACKAGE.joinpath(*name.split(".")[1:])
    paths = (path / "__init__.py", path.with_suffix(".py"))
    return next((path for path in paths if path.is_file()), None) if path != _PACKAGE else None


@cache
def _code(path: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """Hash of a module's code, and the modules that it imports.

    Functions of g10sim may import, too; of a plug-in only the imports at its top count.
    """
    if path.suffix != ".py":
        return file_hash(path), ()
    tree = ast.parse(path.read_bytes())
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    statements = _statements(tree) if name.startswith("g10sim.") else tree.body
    imports = [one for statement in statements for one in _imported(statement, package)]
    return hashlib.sha256(repr(_meaning(tree)).encode()).hexdigest(), tuple(imports)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("body", "orelse", "handlers", "finalbody"):
        for statement in getattr(node, name, ()):
            yield statement
            yield from _statements(statement)


def _imported(statement: ast.AST, package: str) -> Iterator[str]:
    """Yield what may be the names of modules that a statement of a package imports."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        above = package.rsplit(".", statement.level - 1)[0] if statement.level else ""
        base = ".".join(part for part in (above, statement.module) if part)
        yield from (base, *(f"{base}.{alias.name}" for alias in statement.names))


def meaning(source: str | bytes) -> str:
    """Text that is the same for sources that differ in formatting, comments, docstrings or annotations.

    Annotations in the body of a class count: they make its fields, and say how some of these are read.
    """
    return repr(_meaning(ast.parse(source)))


def _meaning(node: ast.AST) -> list[object]:
    parts: list[object] = [type(node).__name__]
    for name in node._fields:
        value = None if name in _MEANINGLESS else getattr(node, name)
        if isinstance(value, ast.AST):
            value = _meaning(value)
        elif isinstance(value, list):
            value = [_meaning(one) if isinstance(one, ast.AST) else one for one in value if not _is_text(one)]
        parts.append(value)
    if isinstance(node, ast.ClassDef):
        parts += [_meaning(one.annotation) for one in node.body if isinstance(one, ast.AnnAssign)]
    return parts


def _is_text(node: object) -> bool:
    """Return True for a docstring, or another statement that is only a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def file_hash(path: Path) -> str:
    """SHA-256 of a file's contents; empty where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
