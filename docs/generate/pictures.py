"""Pictures of figures as pages show them: small, and the same bytes every time."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from g10sim import plots
from g10sim.plots import style

_DOTS_PER_INCH = 150


def draw(name: str, results: Path, images: Path) -> Path:
    """Draw a figure from its results into a directory of images; return its path. Raises ConfigError."""
    return save(plots.draw(name, results), images / f"{name}.png")


def save(figure: Figure, path: Path) -> Path:
    """Save a figure as a picture; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with style.settings():
        figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return path
