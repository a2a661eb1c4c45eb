"""Files that a cell reads: a stored result is reused where all of it is as it was.

An audit hook of the process that simulates notes every file that Python opens, with its contents then.
Libraries, g10sim itself and devices are left out: versions and the hash of the program stand for them. What
other processes read, what libraries written in C open themselves, what is opened by a descriptor of its
directory, and environment variables are not seen.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import ENOENT
from functools import cache
from importlib import invalidate_caches
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

import g10sim
from g10sim.experiment.program import version_of
from g10sim.files import data_hash, file_hash

_ABSENT, _PRESENT = "", "present"
_WRITES = os.O_WRONLY | os.O_RDWR
_LIBRARIES = (f"{os.sep}site-packages", f"{os.sep}dist-packages")
_ASIDE = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")},
    *(str(Path(g10sim.__file__).parent) + os.sep, "/dev/", "/proc/", "/sys/"),
)
_MAIN, _MAIN_OF_WORKERS = "__main__", "__mp_main__"


class Reads:
    """Notes of what this process reads.

    ``files`` holds for each path the hash of its first contents, nothing if it was not there, ``present`` if
    only its existence was asked for; ``names`` for the beginning of a path the hash of the names in its
    directory that begin so. ``mixed`` is a file that was read in two states.
    """

    def __init__(self) -> None:
        self._busy = threading.local()
        self.active = self.from_start = False
        self.begin()

    def begin(self, own: str = "", aside: Collection[str] = ()) -> None:
        """Forget what has been noted; see :meth:`restrict`."""
        self.files: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.mixed = ""
        self._read, self._written, self._made = set[str](), set[str](), set[str]()
        self._imports = set[str]()
        self.restrict(own, aside)

    def restrict(self, own: str, aside: Collection[str]) -> None:
        """Leave files and directories ``aside``; count a package of one's ``own`` even if it is installed."""
        self._own, self._aside = own, frozenset(map(os.path.realpath, aside))
        self._path = list(sys.path)

    def counts(self, path: str) -> bool:
        """Return whether a path is neither that of a library, nor of g10sim, nor a device."""
        path = os.path.abspath(path)
        for mark in _LIBRARIES:
            _head, found, rest = path.partition(mark)
            if found:
                return bool(self._own) and rest.strip(os.sep).split(os.sep)[0].partition(".")[0] == self._own
        real = os.path.realpath(path)
        is_aside = not self._aside.isdisjoint((real, os.path.dirname(real)))
        return not is_aside and not (path + os.sep).startswith(_ASIDE)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event."""
        note = _NOTES.get(event)
        if note is not None and self.active and not getattr(self._busy, "now", False):
            with self._quietly():
                note(self, *arguments)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Note nothing of what this thread does itself."""
        before = getattr(self._busy, "now", False)
        self._busy.now = True
        try:
            yield
        finally:
            self._busy.now = before

    def _opened(self, given: Any, _: Any, flags: int) -> None:
        """Note a file that is opened; a compiled module is refused, so that its source is compiled."""
        path = _path(given)
        if path is None or not self.counts(path):
            return
        writes, real = flags & _WRITES, os.path.realpath(path)
        if not writes and _has_source(path):
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
        is_empty = flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.lexists(real))
        if writes and is_empty and real not in self._read:
            self._made.add(real)
        if writes != os.O_WRONLY and real not in self._made:
            self._note(path)
            self._read.add(real)
        if writes:
            self._written.add(real)

    def _note(self, path: str) -> None:
        now, before = contents(path), self.files.get(path, _PRESENT)
        if before == _PRESENT:
            self.files[path] = now
        elif now != before and os.path.realpath(path) not in self._written:
            self.mixed = path

    def find_spec(self, name: str, path: Iterable[object] | None = None, _: object = None) -> None:
        """Note a library, and the names that may be a module where it is looked for; others find it."""
        if not self.active or getattr(self._busy, "now", False):
            return
        with self._quietly():
            self._imports.add(name.partition(".")[0])
            for place in sys.path if path is None else path:
                if isinstance(place, str) and self.counts(place):
                    self._begins(os.path.join(place, name.rpartition(".")[2]))

    def _listed(self, given: Any = None) -> None:
        """Note the names in a directory, except where Python looks for modules."""
        path = "." if given is None else _path(given)
        asks = sys._getframe(3).f_code.co_filename  # above this method are __call__ and its context
        if path is not None and self.counts(path) and "importlib" not in asks:
            self._begins(os.path.join(path, ""))

    def _begins(self, path: str) -> None:
        if path not in self.names:
            self.names[path] = names(path)

    def _loaded(self, given: Any) -> None:
        """Note a library, an extension or a database, which what is written in C opens itself."""
        path = _path(given)
        if path is not None and os.path.isfile(path) and self.counts(path):
            self._note(path)

    def _changed(self, given: Any, *_: Any) -> None:
        path = _path(given)
        if path is not None:
            self._written.add(os.path.realpath(path))

    def asked(self, given: Any, exists: bool) -> None:
        """Note that the existence of a file was asked for."""
        path = _path(given)
        if path is not None and self.active and not getattr(self._busy, "now", False):
            with self._quietly():
                if self.counts(path):
                    self.files.setdefault(path, _PRESENT if exists else _ABSENT)

    def named(self, value: object) -> None:
        """Note the files that a parameter may name: texts and paths, also in lists and mappings."""
        if isinstance(value, Mapping):
            value = [*value, *value.values()]
        if isinstance(value, list | tuple | set):
            for one in value:
                self.named(one)
        elif isinstance(value, str | Path) and str(value):
            path = os.path.expanduser(value)
            with self._quietly(), suppress(ValueError):
                if self.counts(path):
                    self.files.setdefault(path, contents(path))

    def of_plug_in(self, home: str) -> dict[str, Any]:
        """Return what decides the result of a plug-in, whose module is ``home``, in this process.

        ``files`` and ``names`` are those of this class without what the plug-in has only written;
        ``packages`` the versions of libraries that it has imported; ``written`` are files that it has read
        and changed itself, its code aside; ``place``: see :meth:`place`, before the plug-in ran.
        """
        with self._quietly():
            main = _code([_MAIN, _MAIN_OF_WORKERS])
            code = {path for path in _code(sys.modules) - main if self.counts(path)}
            code |= main if home in (_MAIN, _MAIN_OF_WORKERS) else set()
            real = {path: os.path.realpath(path) for path in self.files}
            for path in code - set(real.values()):
                self._note(path)
            aside = (self._written - self._read | main) - code
            counted = filter(self.counts, self.files)  # some were noted before the cell began
            files = {path: self.files[path] for path in counted if real.get(path, path) not in aside}
            written = sorted(path for path in files if real.get(path, path) in self._written - code)
            return {
                "files": dict(sorted(files.items())),
                "names": dict(sorted(self.names.items())),
                "packages": {name: version_of(name) for name in filter(_is_library, sorted(self._imports))},
                "written": written,
                "place": self.place(home, self.names, self._path),
            }

    def place(self, home: str, names: Iterable[str], looked_in: Iterable[str]) -> list[str]:
        """Return the working directory, and where modules of a plug-in are found, libraries aside.

        ``home`` is its module, ``names`` are those that it has ``looked_in`` directories for.
        """
        modules = {home.partition(".")[0], *map(os.path.basename, names)}
        found = dict.fromkeys(path for path in map(os.path.abspath, looked_in) if self.counts(path))
        return [os.getcwd(), *(path for path in found if _holds(path, modules))]


_NOTES: dict[str, Callable[..., None]] = {
    "open": Reads._opened,
    "import": lambda reads, _, extension, *__: reads._loaded(extension),
    "os.listdir": Reads._listed,
    "os.scandir": Reads._listed,
    "os.mkdir": Reads._changed,
    "os.remove": Reads._changed,
    "sqlite3.connect": Reads._loaded,
    "ctypes.dlopen": Reads._loaded,
}


NOTHING_ELSE: Mapping[str, Any] = {"names": {}, "packages": {}, "written": [], "place": []}
"""Readings besides files of policies that come with g10sim: none."""


@cache
def reads() -> Reads:
    """Return the notes of this process and its copies, one for all: of what they read while active."""
    found = Reads()
    sys.addaudithook(found)  # cannot be removed
    sys.meta_path.insert(0, found)  # the hook is not told of what importlib imports by name
    return found


def note_from_start() -> None:
    """Count what this process and its copies read from now on for the plug-in that each may run."""
    found = reads()
    found.active = found.from_start = True


@contextmanager
def of_cell(aside: Collection[str]) -> Iterator[Reads]:
    """Note what a policy that comes with g10sim reads."""
    found = reads()
    found.begin(aside=aside)
    found.active = True
    try:
        yield found
    finally:
        found.active = found.from_start


@contextmanager
def of_plug_in(package: str, parameters: Mapping[str, Any], aside: Collection[str]) -> Iterator[Reads]:
    """Note what a plug-in of a package reads, besides what this process has read already.

    ``os.stat``, which tells nobody of its calls, notes whose existence is asked for.
    """
    found, stat = reads(), os.stat
    if not found.from_start:
        found.begin()
    found.restrict(package, aside)
    invalidate_caches()  # archives of modules are remembered by the process that this is a copy of
    found.named([value for name, value in parameters.items() if name != "name"])

    def asked(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        try:
            result = stat(path, *arguments, **named)
        except (FileNotFoundError, NotADirectoryError):
            found.asked(path, exists=False)
            raise
        found.asked(path, exists=True)
        return result

    os.stat, found.active = asked, True
    try:
        yield found
    finally:
        os.stat, found.active = stat, found.from_start


class Now:
    """Files and names as they are now, each looked at once."""

    def __init__(self) -> None:
        self._contents, self._names = cache(contents), cache(names)

    def first_change(self, origin: Mapping[str, Any], *, own: bool = True) -> str:
        """Return the first path that is not as a result has read it, if any.

        What the cell has changed itself counts if ``own``.
        """
        aside = () if own else origin["written"]
        for path, before in origin["files"].items():
            now = self._contents(path)
            if path not in aside and now != before and not (before == _PRESENT and now):
                return str(path)
        for name, before in origin["packages"].items():
            if version_of(name) != before:
                return f"version of {name}"
        changed = (path for path, before in origin["names"].items() if self._names(path) != before)
        return next(changed, "")


def contents(path: str) -> str:
    """Hash of a file; ``present`` for what is no plain file, nothing where there is none."""
    with suppress(OSError, ValueError):
        if os.path.isfile(path):
            return file_hash(path)
        return _PRESENT if os.path.exists(path) else _ABSENT
    return _ABSENT


def names(beginning: str) -> str:
    """Hash of the names in a directory that begin like the last part of a path."""
    directory, part = os.path.split(beginning)
    with suppress(OSError, ValueError):
        found = [name for name in os.listdir(directory or ".") if name.startswith(part)]
        return data_hash(sorted(name for name in found if name != "__pycache__"))
    return _ABSENT


def _holds(path: str, modules: Collection[str]) -> bool:
    """Return whether a directory, or an archive, may have one of some modules."""
    with suppress(OSError):
        return any(name.partition(".")[0] in modules for name in os.listdir(path))
    return os.path.isfile(path)


def _path(given: Any) -> str | None:
    """Return the absolute path of an event, as a plug-in may change directories; None for a descriptor."""
    if isinstance(given, str | bytes | os.PathLike):
        with suppress(ValueError):
            return os.path.abspath(os.fsdecode(given))
    return None


def _is_library(module: str) -> bool:
    """Return whether a loaded module is one of an installed package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and any(mark in file for mark in _LIBRARIES)


def _has_source(path: str) -> bool:
    """Return whether a file is the compiled form of a module whose source is there."""
    if not path.endswith(".pyc"):
        return False
    with suppress(ValueError, NotImplementedError):
        return os.path.isfile(source_from_cache(path))
    return False


def _code(modules: Collection[str]) -> set[str]:
    """Return the files of loaded modules, links followed."""
    found = (getattr(sys.modules.get(name), "__file__", None) for name in list(modules))
    return {os.path.realpath(path) for path in found if isinstance(path, str) and os.path.isfile(path)}
