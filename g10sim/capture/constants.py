"""Small tensors whose values are known while a model is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode

MOST_ELEMENTS = 65536
"""More than any table of layers, heads or positions that decides how a model is built."""

_FACTORIES = frozenset(
    {"aten::arange", "aten::linspace", "aten::logspace", "aten::full", "aten::scalar_tensor"}
)


class _KnownValues(TorchDispatchMode):  # type: ignore[misc]
    """Gives the results of factories of known values their values, if they are small."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func._schema.name not in _FACTORIES or made.device.type != "cpu" or made.numel() > MOST_ELEMENTS:
            return made
        with fake_tensor.unset_fake_temporarily():
            values = func(*args, **(kwargs or {}))
        return torch.ops.aten.lift_fresh(values)


@contextmanager
def known_values() -> Iterator[None]:
    """Let code read values that follow from numbers alone (rates that grow with the layer), while open.

    Fake tensors carry such values along (``FakeTensor.constant``), but by default of literals and single
    elements only.
    """
    with mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", MOST_ELEMENTS), _KnownValues():
        yield
