"""Turns what went wrong inside PyTorch into one line that says what and where."""

from __future__ import annotations

import traceback
from pathlib import Path

from g10sim.errors import G10SimError, TraceError

_INSIDE = ("torch", "g10sim")
_DATA_DEPENDENT = frozenset({"DataDependentOutputException", "DynamicOutputShapeException"})


def refusal(error: Exception, source: str, activity: str) -> G10SimError:
    """Make the error for a model that cannot be captured: source, place in its code and reason."""
    if isinstance(error, G10SimError):
        return error
    where = f"{source}: {activity} stopped at {_place(error)}: "
    if type(error).__name__ in _DATA_DEPENDENT:
        operator = getattr(error, "func", None)
        return TraceError(
            f"{where}found the operator {operator}, whose result depends on values; "
            "allowed: operators whose shapes follow from shapes (tensors have no values during capture); "
            "--routing gives values to the choice of experts"
        )
    reason = " ".join(str(error).split()) or "no message"
    return TraceError(f"{where}{type(error).__name__}: {reason[:300]}; allowed: a step that runs on the CPU")


def _place(error: Exception) -> str:
    """Innermost line outside PyTorch and this package, or the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown line"
    own = [frame for frame in frames if not _is_inside(frame.filename)]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno} ({frame.name})"


def _is_inside(filename: str) -> bool:
    package = Path(__file__).resolve().parents[1]
    parts = Path(filename).parts
    library = "site-packages" in parts and parts[parts.index("site-packages") + 1] in _INSIDE
    return library or package in Path(filename).resolve().parents
