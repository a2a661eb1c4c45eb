"""The program that computes the numbers of a simulation, without plug-ins: g10sim's engine and libraries."""

from __future__ import annotations

import marshal
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from importlib.util import cache_from_source
from pathlib import Path

import g10sim
from g10sim.errors import ConfigError
from g10sim.files import bytes_hash, data_hash, file_hash

_PACKAGE = Path(g10sim.__file__).parent
_ENGINE = ("analysis", "config", "hardware", "policies", "results", "sim", "trace")
_NAMES = ("cells", "execution", "known_traces", "reads", "workloads")
_OF_CELLS = tuple(f"experiment/{name}.py" for name in _NAMES)
_LIBRARIES = ("numpy", "pandas", "pyarrow", "scipy", "simpy")
_VERSION = re.compile(r"^Version: *(\S+)$", re.MULTILINE)
_HEAD_OF_COMPILED = 16  # magic number, flags, time of the source, its size: four bytes each


@dataclass(frozen=True)
class Program:
    """Hash of Python (major.minor), library versions and all files of the engine; and these versions."""

    sha256: str
    libraries: dict[str, str]


@cache
def program() -> Program:
    """Look at the program that this process has loaded.

    Raises ConfigError if Python has loaded what a module was compiled to before it was edited.
    """
    files = {str(path.relative_to(_PACKAGE)): path for path in engine_files()}
    for path in files.values():
        _check_compiled(path)
    libraries = {name: found for name in _LIBRARIES if (found := version_of(name))}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    hashes = {name: bytes_hash(path.read_bytes()) for name, path in files.items()}
    return Program(data_hash([python, libraries, hashes]), libraries)


def code_hash(part: str) -> str:
    """Return a hash of the program and of another part of the package."""
    paths = sorted((_PACKAGE / part).rglob("*.py"))
    return data_hash([program().sha256, {str(path.relative_to(_PACKAGE)): file_hash(path) for path in paths}])


def engine_files() -> Iterator[Path]:
    """Yield the files that count."""
    yield from _PACKAGE.glob("*.py")
    yield from map(_PACKAGE.joinpath, _OF_CELLS)
    for part in _ENGINE:
        yield from (_PACKAGE / part).rglob("*.py")


@cache
def version_of(module: str) -> str:
    """Version of the installed package with a module of this name; empty if there is none."""
    with suppress(PackageNotFoundError):
        return version(module)
    found = {name: version(name) for name in packages_distributions().get(module, ())}
    return ", ".join(f"{name} {number}" for name, number in sorted(found.items()))


def version(package: str) -> str:
    """Version of an installed package. Raises PackageNotFoundError."""
    found = distribution(package)
    match = _VERSION.search(found.read_text("METADATA") or "")  # to parse all of it takes milliseconds
    return match[1] if match else found.version


def _check_compiled(path: Path) -> None:
    """Refuse a source that is not what it was compiled to, though of the same size and time.

    A source whose inode has changed since is compiled for that. Raises ConfigError.
    """
    compiled = Path(cache_from_source(str(path)))
    try:
        source_is, compiled_is = path.stat(), compiled.stat()
        if source_is.st_ctime_ns < compiled_is.st_ctime_ns:
            return
        data = compiled.read_bytes()
    except OSError:  # it was not compiled before
        return
    time, size = (int.from_bytes(data[start : start + 4], "little") for start in (8, 12))
    if (time, size) != (int(source_is.st_mtime), source_is.st_size):  # Python compiles it itself
        return
    with suppress(OSError):
        compiled_now = compile(path.read_bytes(), path, "exec", dont_inherit=True)
        if marshal.loads(data[_HEAD_OF_COMPILED:]) == compiled_now:
            os.utime(compiled, ns=(compiled_is.st_atime_ns, compiled_is.st_mtime_ns))  # renews its inode
            return
        compiled.unlink()
    problem = "was edited without a change of size and time, and Python has loaded what it was before"
    raise ConfigError(f"{path}: {problem}; allowed: the same command again")
