"""State from before a step, of all that it changes, so that a step which is refused leaves no trace."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from g10sim.capture.moved import mutated_arguments, running_statistics
from g10sim.execute.script import tensors_in


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the tensors among the arguments of an operator that it writes."""
    values = [args[position] for position in running_statistics(func, args)]
    for position, name, _ in mutated_arguments(func):
        values.append(args[position] if position < len(args) else kwargs.get(name))
    return tensors_in(values)


class Undo:
    """Copies of storages from before a step, each made before the step first writes it; and gradients.

    Gradients that the step itself drops stay dropped. Copies lie in host memory, at most as many bytes
    as weights, states and buffers have together.
    """

    def __init__(self, weights: Iterable[Any]) -> None:
        """Note the gradients of weights."""
        self._gradients = [
            (weight, None if weight.grad is None else weakref.ref(weight.grad)) for weight in weights
        ]
        self._before: dict[int, tuple[Any, Any]] = {}

    def note(self, storage: Any) -> None:
        """Copy a storage that is about to be written for the first time in the step."""
        key = storage._cdata
        if key not in self._before:
            copy = torch.UntypedStorage(storage.nbytes())
            copy.copy_(storage)
            self._before[key] = storage, copy

    def apply(self) -> None:
        """Put everything back; all storages are on the device."""
        for storage, copy in self._before.values():
            storage.copy_(copy)
        for weight, gradient in self._gradients:
            weight.grad = None if gradient is None else gradient()
