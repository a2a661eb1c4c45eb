"""Packages that are imported when something of them is first used."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


# importlib.util.LazyLoader loads a package at the next ``import`` of it, which asks for its __spec__.
class _Later(ModuleType):
    def __getattr__(self, name: str) -> Any:
        spec: Any = self.__spec__
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__path__ = spec.submodule_search_locations
        # Libraries turn an interruption of their import into errors of their own.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            spec.loader.exec_module(self)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return getattr(self, name)


def import_on_first_use(package: str) -> None:
    """Let ``import`` of a package take no time until something of it is used, if it is not imported yet."""
    if package in sys.modules:
        return
    spec: Any = find_spec(package)
    later = sys.modules[package] = module_from_spec(spec)
    later.__class__ = _Later
    del later.__path__  # to import a part of the package is to use it
