"""Plans carried out around the real step (PyTorch is imported on first use)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from g10sim.execute.executor import Executor
    from g10sim.execute.running import execute_source, make_executor, open_source, record
    from g10sim.execute.script import Script

__all__ = ["Executor", "Script", "execute_source", "make_executor", "open_source", "record"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises ConfigError without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from g10sim.capture.source import require

    require("torch")
    from g10sim.execute import running

    return getattr(running, name)
