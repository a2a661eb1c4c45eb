"""Paths of the bundled data, and the search for files named in a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from g10sim.errors import ConfigError, nearest, shown

_PACKAGE = Path(__file__).resolve().parents[1]
_MOST_SHOWN = 200
_ALIKE = 0.7
"""Share of letters that a name has in common with that of a bundled file which may be meant."""
_FOLDERS = ("configs", "traces", "experiments")
_WILDCARDS = frozenset("*?[")


def data_path(*parts: str) -> Path:
    """Path of bundled data (``configs``, ``traces``, ``experiments``), in a clone or an installed wheel."""
    installed = _PACKAGE / "data"
    return (installed if installed.is_dir() else _PACKAGE.parent).joinpath(*parts)


def _directories(beside: Path | None) -> list[Path]:
    return [Path(), *([] if beside is None else [beside]), data_path()]


def find_file(name: str | Path, beside: Path | None = None) -> Path:
    """Find a file named in a configuration, or in a command.

    A relative name is tried in the working directory, then in ``beside`` (the configuration's own
    directory), then in the bundled data. Raises ConfigError when there is none.
    """
    for directory in _directories(beside):
        if _is_file(directory / name):
            return directory / name
    problem = f"found {shown(str(name), _MOST_SHOWN)}, which is no file in {_places(beside)}"
    raise ConfigError(f"{problem}{nearest(str(name), _bundled(), _ALIKE)}; allowed: an existing file")


def find_files(pattern: str, beside: Path | None = None) -> list[tuple[str, Path]]:
    """Find the files that a name or glob pattern stands for, as sorted pairs (name, path).

    A file of exactly that name counts, whatever its letters; otherwise the first of the three places of
    :func:`find_file` with a match. A name is spelled as the pattern is (relative to the place it was found
    in). Raises ConfigError when nothing matches.
    """
    try:
        return [(pattern, find_file(pattern, beside))]
    except ConfigError:
        if not _WILDCARDS & set(pattern):
            raise
    for directory in _directories(beside):
        anchor = Path(pattern).anchor
        root = Path(anchor) if anchor else directory
        try:
            found = sorted(path for path in root.glob(pattern[len(anchor) :]) if _is_file(path))
        except (ValueError, OSError, RecursionError) as error:
            text = f"found pattern {shown(pattern, _MOST_SHOWN)}: {error}; allowed: a valid pattern"
            raise ConfigError(text) from error
        if found:
            return [(str(path if anchor else path.relative_to(directory)), path) for path in found]
    text = f"found pattern {shown(pattern, _MOST_SHOWN)}, which matches no file in {_places(beside)}"
    raise ConfigError(f"{text}; allowed: existing files")


def _bundled() -> Iterator[str]:
    """Yield the names of the bundled files, as configurations give them."""
    root = data_path()
    for folder in _FOLDERS:
        yield from (path.relative_to(root).as_posix() for path in (root / folder).rglob("*.*"))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # of a name that is too long for any file
        return False


def _places(beside: Path | None) -> str:
    return f"the working directory{'' if beside is None else f', {beside}'} or the bundled data"
