"""GPU memory of address ranges that stay mapped: discarded pages stay, too, until they make room first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from g10sim.hardware.door import Door
from g10sim.hardware.memory import Residency
from g10sim.hardware.pools import Frames, Pool
from g10sim.records import Location


class Mapped(Residency):
    """Memory whose driver orders evictions by chunks: what arrives takes its chunk along.

    ``chunks`` are the ranges that lie in one together. Source: the root chunks of 2 MiB of NVIDIA's open
    driver (open-gpu-kernel-modules, uvm_pmm_gpu.c): a chunk becomes the most recent when pages of it become
    resident, and chunks of discarded pages are evicted before all others.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        frames: Frames,
        page_bytes: int,
        pools: Sequence[Pool],
        door: Door | None = None,
        chunks: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__(sizes, frames, page_bytes, pools, door)
        self._in_chunks = frozenset(chain.from_iterable(chunks))
        self._arrived: dict[int, None] = {}
        self.notes_arrivals = bool(chunks)
        self.recency.join_chunks(chunks)

    def discard(self, tensor: int, *, but_for_gpu: bool = True) -> None:
        """Forget contents: pages on the GPU are the next to go; pages in transfer are not touched."""
        super().discard(tensor, but_for_gpu=but_for_gpu)
        self.recency.retire(tensor)

    def arrived(self, tensor: int, source: Location) -> None:
        """Remember what has arrived: transfers under way hold on to the order as it is."""
        if tensor in self._in_chunks:
            self._arrived[tensor] = None

    def joins_last(self, tensor: int) -> bool:
        """Return whether any number of pages join the last run: each takes its chunk along."""
        return tensor not in self._in_chunks and super().joins_last(tensor)

    def reorder(self) -> bool:
        """Make what else is in the chunks as recent as what has arrived."""
        if not self._arrived:
            return False
        self.door.enter()
        self.recency.renew_around(self._arrived, self.idle)
        self._arrived.clear()
        return True
