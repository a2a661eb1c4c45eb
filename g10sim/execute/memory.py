"""The memory that storages are moved in: main memory with an account, or what a CUDA device replaces.

Also the state from before a step, so that a step that is refused leaves no trace.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from g10sim.capture.moved import mutated_arguments, running_statistics
from g10sim.execute.script import tensors_in

_SWAP = """
void swap_memory(c10::Storage one, c10::Storage other) {
  auto* first = one.unsafeGetStorageImpl();
  auto* second = other.unsafeGetStorageImpl();
  at::DataPtr held = first->set_data_ptr(std::move(second->_mutable_data_ptr_no_checks()));
  second->set_data_ptr_noswap(std::move(held));
}
"""


def null(storage: Any) -> Any:
    """Return a storage of the same size without memory: views of it work, whatever reads it fails.

    Swapped with a storage it takes the memory over, while views, versions and what autograd saved stay.
    """
    return torch._C._construct_storage_from_data_pointer(0, storage.device, storage.nbytes())


def swap(storage: Any, block: Any) -> None:
    """Exchange the memory of two storages of the same size on the same device."""
    if hasattr(storage, "_swap_data_ptr_"):
        storage._swap_data_ptr_(block)
    else:
        _compiled().swap_memory(storage, block)


@cache
def _compiled() -> Any:
    """Compile the exchange for a PyTorch before 2.13, which needs a C++ compiler and ninja."""
    from torch.utils.cpp_extension import load_inline  # takes long to import

    return load_inline("g10sim_swap", _SWAP, functions=["swap_memory"])


class Memory:
    """Moves storages between the device and the host; tensors are numbers of a trace.

    Here main memory is the device, too: copies are made at once, and nothing is ever under way. What belongs
    to another device replaces all of it. ``leaving_bytes`` are those of blocks whose copies out may not have
    ended. Tensors of fewer than ``least_bytes`` leave only where nothing else makes room.
    """

    leaving_bytes = least_bytes = 0

    def evict(self, tensor: int, storage: Any) -> Any:
        """Copy a storage to the host, take its memory away, and return what ``fetch`` is given."""
        block = null(storage)
        swap(storage, block)
        return block.clone()

    def fetch(self, tensor: int, storage: Any, host: Any) -> None:
        """Give a storage memory again, and its contents."""
        block = torch.UntypedStorage(storage.nbytes(), device=storage.device)
        block.copy_(host)
        swap(storage, block)

    def drop(self, tensor: int, storage: Any) -> None:
        """Take away the memory of a storage whose contents nothing reads."""
        swap(storage, null(storage))

    @property
    def awaits_copies(self) -> bool:
        """True while any tensor is on its way in."""
        return False

    def arrive(self, tensor: int) -> None:
        """Let what is launched next wait for a tensor on its way in."""

    def reclaim(self, *, waits: bool) -> bool:
        """Give back the block of the oldest copy out; what is launched next waits for it if it ``waits``.

        Returns False where there is none, or none that has ended.
        """
        return False

    def hand_over(self, size_bytes: int, *, waits: bool) -> bool:
        """Let the next ``fetch`` use the block of a copy out of that size, which may have to end first.

        Returns False where there is none, or none that has ended, unless the fetch ``waits``.
        """
        return False

    def pace(self) -> Any:
        """Mark the time at which the next kernel, which is about to be launched, begins."""
        return time.perf_counter()

    def mark(self) -> Any:
        """Mark the time at which what was launched so far has ended."""
        return time.perf_counter()

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds from the first mark to each, once all that was launched has ended."""
        return [mark - marks[0] for mark in marks]

    def allocated_bytes(self) -> int:
        """Return the most bytes that an allocator gave out since it was asked last; 0 where there is none."""
        return 0

    def gone(self, tensor: int) -> None:
        """Note that a tensor's storage has died on the device."""

    def finish(self) -> None:
        """Wait until all copies and kernels have ended."""


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
