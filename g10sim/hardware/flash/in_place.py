"""A medium that is overwritten in place: nothing is erased or moved."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from g10sim.hardware.flash.ftl import TranslationLayer


class InPlaceLayer(TranslationLayer):
    """Counts what is written; where it lies does not matter."""

    def __init__(self) -> None:
        super().__init__(superblocks=1, superblock_bytes=1)

    def lay_out(self, extent: Hashable, size_bytes: int) -> None:
        """Put data on the medium before time starts."""

    def wear_in(self, erased: int) -> None:
        """Fill the medium with dead data before time starts."""

    def write_together(self, writes: Sequence[tuple[Hashable, int]], stream: int = 0) -> None:
        """Overwrite what was there."""
        self.host_bytes += sum(size for _, size in writes)

    def discard(self, extent: Hashable, size_bytes: int) -> None:
        """Forget bytes; nothing has to be done for it."""
