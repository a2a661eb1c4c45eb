"""Files that a process loads as modules or writes while it simulates a cell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from g10sim.checksums import bytes_hash, file_hash
from g10sim.experiment.program import PlugIn, is_installed

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT


class Watch:
    """Context in which modules are compiled from their sources, whose hashes are kept.

    Python itself may take a compiled module for that of a source of the same size and second, and the source
    of a module that is loaded may have been replaced. ``written`` holds the files that the process opened
    for writing.
    """

    def __init__(self) -> None:
        self.written: set[str] = set()
        self._hashes: dict[str, str] = {}
        self._before: frozenset[str] = frozenset()

    def __enter__(self) -> Watch:
        self._before = frozenset(sys.modules)
        sys.meta_path.insert(0, self)
        _watching().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _watching().remove(self)
        sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as the other finders do; the source of one from a plain file is remembered."""
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                loader = spec.loader
                if type(loader) is SourceFileLoader and not is_installed(Path(loader.path)):
                    spec.loader = _Loader(loader.name, str(loader.path), self._hashes)
                return spec
        return None

    def loaded(self, plug_in: PlugIn) -> dict[str, str]:
        """Hash of every file that was loaded as a module of a plug-in or of its surroundings."""
        found = {}
        for name in sys.modules.keys() - self._before:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and plug_in.is_own(name, Path(file)):
                found[str(Path(file))] = self._hashes.get(file) or file_hash(file)
        return found


@cache
def _watching() -> list[Watch]:
    """Return the watches that are told of files opened for writing."""
    active: list[Watch] = []

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and active:
            path, _, flags = arguments
            if flags & _WRITES and isinstance(path, str | bytes | os.PathLike):
                for watch in active:
                    watch.written.add(os.path.realpath(os.fsdecode(path)))

    sys.addaudithook(opened)  # cannot be removed, so there is one for all
    return active


class _Loader(SourceFileLoader):
    """Compiles modules from their sources, and keeps the hashes of these."""

    def __init__(self, name: str, path: str, hashes: dict[str, str]) -> None:
        super().__init__(name, path)
        self._hashes = hashes

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module, without a look at what was compiled before."""
        source = self.get_data(self.path)
        self._hashes[str(self.path)] = bytes_hash(source)
        code: CodeType = self.source_to_code(source, self.path)
        return code
