"""Keeps operators from taking real memory for tensors that have shapes only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor

from g10sim.errors import TraceError

MOST_BYTES = 2**28
"""More real memory than an operator of small tensors needs, and little beside a model."""

_IN_PLACE = ("_fused_sgd_",)
"""Operators that return nothing and that PyTorch 2.13 has no form without values for."""

_run_on_zeros = fake_tensor.run_fallback_kernel


def _refuse_large(mode: Any, func: Any, flat_args: Sequence[Any], *others: Any) -> Any:
    needed = sum(arg.untyped_storage().nbytes() for arg in flat_args if isinstance(arg, torch.Tensor))
    if needed > MOST_BYTES:
        raise TraceError(
            f"found the operator {func}, which PyTorch can only run with values, on {needed} bytes; "
            f"allowed: operators with a shape function (torch.library.register_fake), or {MOST_BYTES} bytes"
        )
    return _run_on_zeros(mode, func, flat_args, *others)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Make operators that would be run on real zeros, for want of a shape function, refuse large ones."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in _IN_PLACE:
            library.impl(name, lambda *_, **__: None, "Meta")
        with mock.patch.object(fake_tensor, "run_fallback_kernel", _refuse_large):
            yield
