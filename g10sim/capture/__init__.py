"""Traces of real PyTorch models, captured without a GPU (PyTorch is imported on first use)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from g10sim.capture.source import capture_source
    from g10sim.capture.step import capture_step

__all__ = ["capture_source", "capture_step"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises ConfigError without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from g10sim.capture.source import require

    require("torch")
    from g10sim.capture import source, step

    return {"capture_source": source.capture_source, "capture_step": step.capture_step}[name]
