"""The code that can change the numbers of a simulation: that of g10sim, of libraries, and of plug-ins."""

from __future__ import annotations

import ast
import marshal
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import g10sim
from g10sim.checksums import bytes_hash, data_hash
from g10sim.policies import registry
from g10sim.trace.format import without_cycle_collection

_PACKAGE = Path(g10sim.__file__).parent
_SIMULATES = "g10sim.experiment.execution"
_LIBRARIES = ("numpy", "scipy", "simpy")
_MAIN = "__main__"
_MAIN_OF_WORKERS = "__mp_main__"
_PLAIN = 0  # later versions of the format write equal data in more than one way
_MEANINGLESS = frozenset({"annotation", "ctx", "kind", "returns", "type_comment"})


@dataclass(frozen=True)
class Source:
    """A file with code of a plug-in, and the hash of its contents."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Program:
    """Code of simulations under some policies without that of plug-ins: its hash, and library versions."""

    sha256: str
    libraries: dict[str, str]


@dataclass(frozen=True)
class PlugIn:
    """Modules of a policy that are not installed, by name, and all other modules that these import.

    A policy that comes with g10sim has no sources. ``packages`` are the top-level packages that count as the
    plug-in's own even if they are installed.
    """

    sources: dict[str, Source]
    imports: frozenset[str]
    packages: frozenset[str]

    @property
    def program(self) -> Program:
        """Code that simulations execute besides the plug-in."""
        return _program(self.imports)

    def is_own(self, name: str, path: Path) -> bool:
        """Return True if a module is neither installed, except by the plug-in itself, nor part of g10sim."""
        top = name.partition(".")[0]
        return top != "g10sim" and (top in self.packages or not is_installed(path))


def program_hash(*policies: str) -> str:
    """Hash of Python (major.minor), the libraries that compute numbers, and the code of simulations.

    The code is what a simulation under these policies can execute: the modules of g10sim that follow through
    imports, and those of plug-ins that are not installed. Raises PolicyError for an unknown policy.
    """
    found = [plug_in(policy) for policy in policies]
    programs = sorted({one.program.sha256 for one in found})
    sources = {name: source.sha256 for one in found for name, source in one.sources.items()}
    return programs[0] if len(programs) == 1 and not sources else data_hash([programs, sources])


def plug_in(policy: str) -> PlugIn:
    """Follow the imports of a policy's modules, also those inside functions, as the files are now.

    Raises PolicyError for an unknown policy.
    """
    home = registry.find(policy).__module__
    roots = [_MAIN if home == _MAIN_OF_WORKERS else home]
    if ":" in policy:
        roots.append(policy.partition(":")[0])
    packages = frozenset(root.partition(".")[0] for root in roots) - {"g10sim"}
    found = PlugIn({}, frozenset(), packages)
    waiting, imports = list(roots), set[str]()
    while waiting:
        name = waiting.pop()
        if name in found.sources or name in imports:
            continue
        path = _located(name)
        if path is None or not found.is_own(name, path):
            imports.add(name)
            continue
        code = path.read_bytes() if path.is_file() else b""
        found.sources[name] = Source(str(path), bytes_hash(code))
        for imported in _imports(code if path.suffix == ".py" else b"", name, path.name == "__init__.py"):
            waiting += _with_parents(imported)
    return PlugIn(dict(sorted(found.sources.items())), frozenset(imports), packages)


def _with_parents(name: str) -> Iterator[str]:
    """Yield a module and the packages that are imported with it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _located(name: str) -> Path | None:
    """Path of a module's file, without importing it; None for g10sim, and for what has no file."""
    if name.partition(".")[0] == "g10sim":
        return None
    file = getattr(sys.modules.get(name), "__file__", None)  # a module typed at a prompt has none
    if file is None or not Path(file).is_file():
        spec = _spec(name)
        file = None if spec is None or not spec.has_location else spec.origin
    return None if file is None else Path(file)


def _spec(name: str) -> ModuleSpec | None:
    parent = name.rpartition(".")[0]
    where = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and where is None:
        package = None if parent in sys.modules else _spec(parent)
        where = None if package is None else package.submodule_search_locations
        if where is None:
            return None
    with suppress(ImportError, ValueError):
        found = (finder.find_spec(name, where) for finder in sys.meta_path)
        return next((spec for spec in found if spec is not None), None)
    return None


@cache
def _installation() -> tuple[Path, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(Path(path) for path in {*paths, *site.getsitepackages(), site.getusersitepackages()})


def is_installed(path: Path) -> bool:
    """Return True for a file of the standard library or of an installed package."""
    return any(path.is_relative_to(place) for place in _installation())


@cache
def _program(imports: frozenset[str]) -> Program:
    """Follow g10sim from what simulates, and from what a plug-in imports."""
    own = [name for name in imports if name.startswith("g10sim.")]
    with without_cycle_collection():  # syntax trees have no cycles, and the search for some doubles the time
        code, others = _followed(own)
    tops = {name.partition(".")[0] for name in others | imports} - set(sys.stdlib_module_names)
    libraries = {name: found for name in sorted(tops | {*_LIBRARIES}) if (found := _version(name))}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Program(data_hash([python, libraries, code]), libraries)


def _version(top: str) -> str:
    """Version of the installed package that a module belongs to; empty if it belongs to none."""
    if top == "g10sim":
        return ""
    with suppress(PackageNotFoundError):
        return version(top)
    names = packages_distributions().get(top, ())
    return ", ".join(f"{name} {version(name)}" for name in sorted(set(names)))


def _followed(modules: list[str]) -> tuple[dict[str, str], set[str]]:
    """Return the modules of g10sim that simulations can execute with hashes, and all others they import."""
    waiting, found, others = [_SIMULATES, *modules], dict[str, str](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in found or name in others:
            continue
        path = _own_source(name)
        if path is None:
            others.add(name)
        else:
            found[name], imports = _code(path, name)
            waiting += imports
    return found, others


@cache
def _own_source(name: str) -> Path | None:
    """Path of a module of g10sim; None for the package itself and for other names."""
    top, *parts = name.split(".")
    if top != "g10sim" or not parts:
        return None
    path = _PACKAGE.joinpath(*parts)
    paths = (path / "__init__.py", path.with_suffix(".py"))
    return next((path for path in paths if path.is_file()), None)


@cache
def _code(path: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """Hash of the code of a module of g10sim, and the modules that it imports."""
    tree = ast.parse(path.read_bytes())
    return bytes_hash(meaning(tree)), tuple(_imports_of(tree, name, path.name == "__init__.py"))


@cache
def _imports(code: bytes, name: str, is_package: bool) -> tuple[str, ...]:
    """Return the modules that a plug-in's module imports; none for code with errors, which cannot run."""
    with suppress(SyntaxError, ValueError, RecursionError):
        return tuple(_imports_of(ast.parse(code), name, is_package))
    return ()


def _imports_of(tree: ast.AST, name: str, is_package: bool) -> Iterator[str]:
    """Yield what may be names of modules that a module imports, in functions too."""
    package = name if is_package else name.rpartition(".")[0]
    for statement in _statements(tree):
        yield from _imported(statement, package)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
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


def meaning(tree: ast.AST) -> bytes:
    """Bytes that are the same for sources that differ in formatting, comments, docstrings or annotations.

    Annotations in the body of a class count: they make its fields, and say how some of these are read.
    """
    return marshal.dumps(_meaning(tree), _PLAIN)


def _meaning(node: ast.AST) -> list[object]:
    parts: list[object] = [type(node).__name__]
    for name in _meaningful(node._fields):
        value = getattr(node, name)
        if isinstance(value, ast.AST):
            value = _meaning(value)
        elif isinstance(value, list):
            value = [_meaning(one) if isinstance(one, ast.AST) else one for one in value if not _is_text(one)]
        parts.append(value)
    if isinstance(node, ast.ClassDef):
        parts += [_meaning(one.annotation) for one in node.body if isinstance(one, ast.AnnAssign)]
    return parts


@cache
def _meaningful(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in fields if name not in _MEANINGLESS)


def _is_text(node: object) -> bool:
    """Return True for a docstring, or another statement that is only a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
