"""The memory that storages are moved in: main memory with an account, or what a CUDA device replaces."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from g10sim.errors import ConfigError


def null(storage: Any) -> Any:
    """Return a storage of the same size without memory: views of it work, whatever reads it fails.

    Swapped with a storage it takes the memory over, while views, versions and what autograd saved stay.
    """
    return torch._C._construct_storage_from_data_pointer(0, storage.device, storage.nbytes())


def require_swap() -> None:
    """Raise ConfigError for a PyTorch whose storages cannot swap their memory."""
    if not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
        raise ConfigError(f"found PyTorch {torch.__version__}; allowed: 2.13 or newer, to execute plans")


class Memory(Protocol):
    """Moves storages between the device and the host; tensors are numbers of a trace.

    ``leaving_bytes`` are those of blocks whose copies out may not have ended.
    """

    leaving_bytes: int

    def evict(self, tensor: int, storage: Any) -> Any:
        """Copy a storage to the host, take its memory away, and return what ``fetch`` is given."""

    def fetch(self, tensor: int, storage: Any, host: Any) -> None:
        """Give a storage memory again, and its contents."""

    def drop(self, tensor: int, storage: Any) -> None:
        """Take away the memory of a storage whose contents nothing reads."""

    def arrive(self, tensor: int) -> None:
        """Let what is launched next wait for a tensor on its way in."""

    def reclaim(self, *, waits: bool) -> bool:
        """Give back the block of the oldest copy out; what is launched next waits for it if it ``waits``.

        Returns False where there is none, or none that has ended.
        """

    def pace(self) -> None:
        """Note that the next kernel is about to be launched."""

    def gone(self, tensor: int) -> None:
        """Note that a tensor's storage has died on the device."""


class MainMemory:
    """Main memory as a device: copies are made at once, and nothing is ever under way."""

    leaving_bytes = 0

    def evict(self, tensor: int, storage: Any) -> Any:
        """Copy a storage, take its memory away, and return the copy."""
        block = null(storage)
        storage._swap_data_ptr_(block)
        return block.clone()

    def fetch(self, tensor: int, storage: Any, host: Any) -> None:
        """Give a storage memory again, and its contents."""
        block = torch.UntypedStorage(storage.nbytes(), device=storage.device)
        block.copy_(host)
        storage._swap_data_ptr_(block)

    def drop(self, tensor: int, storage: Any) -> None:
        """Take away the memory of a storage."""
        storage._swap_data_ptr_(null(storage))

    def arrive(self, tensor: int) -> None:
        """Do nothing: it is there."""

    def reclaim(self, *, waits: bool) -> bool:
        """Return False: no copy is under way."""
        return False

    def pace(self) -> None:
        """Do nothing: kernels have run when they were launched."""

    def gone(self, tensor: int) -> None:
        """Do nothing: nothing is on its way in."""
