"""Plans carried out around the real step (PyTorch is imported on first use)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from g10sim.execute.executor import Executor
    from g10sim.execute.running import execute_source
    from g10sim.execute.script import Script, captured_script, record_script

__all__ = ["Executor", "Script", "captured_script", "execute_source", "record_script"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises ConfigError without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from g10sim.capture.libraries import require

    require("torch")
    from g10sim.execute import executor, running, script

    homes = {"Executor": executor, "execute_source": running}
    return getattr(homes.get(name, script), name)
