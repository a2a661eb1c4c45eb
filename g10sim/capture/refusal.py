"""Turns what went wrong inside PyTorch into one line that says what and where."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from g10sim.errors import ConfigError, G10SimError, TraceError

_INSIDE = ("torch", "g10sim")
_LOOK = "_local_scalar_dense"
_SHAPES = "DynamicOutputShapeException"
_DATA_DEPENDENT = frozenset({"DataDependentOutputException", _SHAPES})
_BRANCHES = ("if ", "elif ", "while ", "assert ")
_ENGINES: Mapping[tuple[str, str], str] = {
    ("transformers", "Trainer"): "return (trainer.model, a batch), or a step that does what your training "
    "does",
    ("torch.distributed.fsdp", "FullyShardedDataParallel"): "return the module without FSDP: weights that "
    "replicas share are simulated (docs/distributed.md)",
    ("torch.distributed.fsdp", "FSDPModule"): "return the module without fully_shard: weights that replicas "
    "share are simulated (docs/distributed.md)",
    ("torch.nn.parallel", "DistributedDataParallel"): "return its module: replicas are simulated "
    "(docs/multi-gpu.md)",
    ("deepspeed", "DeepSpeedEngine"): "return (engine.module, a batch): offloading is simulated "
    "(zero_offload, zero_infinity)",
}
"""Wrappers that run a step by themselves, by package and class, and what to do instead."""
_FILES = {
    "transformers/trainer.py": "Trainer",
    "transformers/training_args.py": "Trainer",
    "torch/distributed/fsdp/_fully_shard": "FSDPModule",
    "torch/distributed/fsdp": "FullyShardedDataParallel",
    "torch/nn/parallel/distributed.py": "DistributedDataParallel",
    "deepspeed": "DeepSpeedEngine",
}


def refuse_engines(source: str, found: Iterable[Any]) -> None:
    """Raise ConfigError for an object that runs a step by itself, with what to do instead."""
    for value in found:
        for base in type(value).__mro__:
            for (package, name), instead in _ENGINES.items():
                if base.__name__ == name and f"{base.__module__}.".startswith(f"{package}."):
                    raise ConfigError(f"{source}: found a {name} of {package}; allowed: {instead}")


def refusal(error: Exception, source: str, activity: str) -> G10SimError:
    """Make the error for a model that cannot be captured: source, place in its code and reason."""
    if isinstance(error, G10SimError):
        return error
    frame = _frame(error)
    where = f"{source}: {activity} stopped at {frame.filename}:{frame.lineno} ({frame.name}): "
    if type(error).__name__ in _DATA_DEPENDENT:
        operator = getattr(error, "func", None)
        return TraceError(
            f"{where}found the operator {operator}, whose result depends on values; {_hint(error)}; "
            "allowed: operators whose shapes follow from shapes (tensors have no values during capture); "
            "--routing gives values to the choice of experts"
        )
    reason = " ".join(str(error).split()) or "no message"
    allowed = _instead(error) or "a step that runs on the CPU"
    return TraceError(f"{where}{type(error).__name__}: {reason[:300]}; allowed: {allowed}")


def _hint(error: Exception) -> str:
    """Say what to change in the line that asks for a value."""
    line = (_frame(error).line or "").strip()
    if type(error).__name__ == _SHAPES or _LOOK not in str(getattr(error, "func", "")):
        return "use an operator whose result has a size of its own, such as torch.where"
    if line.startswith(_BRANCHES) and ".item(" not in line:
        return "take one side of the branch, or use torch.where"
    return "remove .item(), float(), int() or print() of a tensor"


def _instead(error: Exception) -> str:
    """Say what to do where a wrapper that runs steps by itself has stopped; nothing elsewhere."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).as_posix()
        for part, name in _FILES.items():
            if f"/site-packages/{part}" in path:
                return next(f"no {name}: {text}" for (_, one), text in _ENGINES.items() if one == name)
    return ""


def _frame(error: Exception) -> traceback.FrameSummary:
    """Return the innermost line outside PyTorch and this package, or the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_inside(frame.filename)]
    return (own or frames)[-1]


def _is_inside(filename: str) -> bool:
    package = Path(__file__).resolve().parents[1]
    parts = Path(filename).parts
    library = "site-packages" in parts and parts[parts.index("site-packages") + 1] in _INSIDE
    return library or package in Path(filename).resolve().parents
