"""g10sim: simulates training with tensors in GPU memory, host memory and flash.

The names below are the Python interface; they are loaded when first used, so that importing a part of
the package costs no more than that part.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # typing takes a while to import, time in which Ctrl-C ends in a traceback

if TYPE_CHECKING:
    from typing import Any

    from g10sim import plots
    from g10sim.api import (
        Outcome,
        Result,
        load_trace,
        read_results,
        read_table,
        run,
        save_trace,
        simulate,
        system,
        write_report,
    )

    __version__: str

__all__ = ["Outcome", "Result", "load_trace", "plots", "read_results", "read_table", "run"]
__all__ += ["save_trace", "simulate", "system", "write_report", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name == "plots":
        return importlib.import_module("g10sim.plots")
    if name not in __all__:
        raise AttributeError(f"module 'g10sim' has no attribute '{name}'")
    return getattr(importlib.import_module("g10sim.api"), name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("g10sim")
    except PackageNotFoundError:  # used from a source tree that was never installed
        return "0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
