"""Steps that ask for ``torch.compile``: their operators are captured one by one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch

_FUNCTION, _MODULE = "_torchdynamo_orig_callable", "_orig_mod"
"""Attributes that PyTorch gives a function, and a module, that it compiles."""

ONE_BY_ONE = "operators were captured one by one, as without it"


@contextmanager
def uncompiled() -> Iterator[list[Any]]:
    """Let ``torch.compile`` change nothing while open; yields what it was asked to compile."""
    asked: list[Any] = []

    def leave(model: Any = None, **options: Any) -> Any:
        if model is None:
            return leave
        asked.append(model)
        return model

    # What was compiled before, by a decorator, runs as it was written, too.
    is_loaded = "torch._dynamo" in sys.modules
    with (
        mock.patch.object(torch, "compile", leave),
        torch.compiler.set_stance("force_eager") if is_loaded else nullcontext(),
    ):
        yield asked


def is_compiled(value: Any) -> bool:
    """Return True if ``torch.compile`` made a function or a module."""
    modules = getattr(value, "_modules", None) or {}
    return _FUNCTION in getattr(value, "__dict__", {}) or _MODULE in modules


def as_written(network: Any) -> Any:
    """Return the module that ``torch.compile`` has wrapped; any other as it is."""
    return (getattr(network, "_modules", None) or {}).get(_MODULE, network)
