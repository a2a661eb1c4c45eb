"""Pictures of figures as pages show them: small, and the same bytes every time."""

from __future__ import annotations

from pathlib import Path

from g10sim import plots
from g10sim.plots import style

_DOTS_PER_INCH = 150


def draw(name: str, results: Path, images: Path) -> Path:
    """Draw a figure from its results into a directory of images; return its path. Raises ConfigError."""
    images.mkdir(parents=True, exist_ok=True)
    figure = plots.draw(name, results)
    with style.settings():
        figure.savefig(images / f"{name}.png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return images / f"{name}.png"
