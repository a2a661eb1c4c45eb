"""Tensors in use by what runs beside the kernels of the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial


class Claims:
    """Tensors of kernels that run beside the GPU's, launched and not ended: nothing else moves them.

    What moves ask for meanwhile is done when these have ended.
    """

    def __init__(self) -> None:
        self._users = Counter[int]()
        self._later: dict[int, list[Callable[[int], None]]] = {}

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._users

    @property
    def tensors(self) -> Collection[int]:
        """The tensors."""
        return self._users.keys()

    def take(self, tensors: Iterable[int]) -> None:
        """Claim the tensors of a kernel that is launched; what was to be done with them is called off."""
        for tensor in tensors:
            self._users[tensor] += 1
            self._later.pop(tensor, None)

    def postpone(self, tensor: int, operation: Callable[[int], None]) -> bool:
        """Tell whether a tensor is claimed; if so, ``operation`` is due when it is not any more."""
        if tensor not in self._users:
            return False
        waiting = self._later.setdefault(tensor, [])
        if operation not in waiting:
            waiting.append(operation)
        return True

    def give_back(self, tensors: Iterable[int]) -> list[Callable[[], None]]:
        """Give up the tensors of a kernel that has ended; returns what is to be done now."""
        due: list[Callable[[], None]] = []
        for tensor in tensors:
            self._users[tensor] -= 1
            if not self._users[tensor]:
                del self._users[tensor]
                due += [partial(operation, tensor) for operation in self._later.pop(tensor, ())]
        return due
