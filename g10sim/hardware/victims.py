"""Which pages leave a full GPU memory."""

from __future__ import annotations

from typing import Protocol

from g10sim.hardware.memory import GpuMemory
from g10sim.hardware.recency import Run


class VictimRule(Protocol):
    """Answers that the transfers need when GPU memory is full."""

    def choose(self, memory: GpuMemory, demanded: bool) -> Run | None:
        """Return the run that makes room for a demanded or a prefetched page; None when none may go."""
        ...

    def is_worthless(self, tensor: int) -> bool:
        """Whether the tensor's contents will never be read, so that its pages need not be written out."""
        ...
