"""GPU memory that several jobs share at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as counter

from g10sim.hardware.memory import GpuMemory, Pool
from g10sim.hardware.recency import Recency


class Frames:
    """The pages of one GPU, whichever job uses them, and one clock for the eviction orders of all jobs."""

    def __init__(self, capacity_pages: int) -> None:
        self.capacity_pages = capacity_pages
        self.free = capacity_pages
        self.clock = counter()
        self._peaks: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Pages in use."""
        return self.capacity_pages - self.free

    def watch(self, observer: int) -> None:
        """Begin to remember the most pages in use, for one of several observers."""
        self._peaks[observer] = self.used

    def note_peak(self) -> None:
        """Remember the largest number of pages in use."""
        for observer, peak in self._peaks.items():
            if self.used > peak:
                self._peaks[observer] = self.used

    def peak(self, observer: int) -> int:
        """Return the most pages in use since an observer began to watch."""
        return self._peaks[observer]


class SharedGpuMemory(GpuMemory):
    """One job's tensors in a GPU memory that other jobs use, too.

    ``free`` counts the GPU's empty pages, ``filled`` those that this job's tensors fill.
    """

    def __init__(
        self, pages: Sequence[int], page_bytes: int, host: Pool, flash: Pool, frames: Frames
    ) -> None:
        self._frames, self._own = frames, 0
        free = frames.free
        super().__init__(pages, frames.capacity_pages, page_bytes, host, flash)
        frames.free, self._own = free, 0
        self.recency = Recency(len(pages), frames.clock)

    @property
    def free(self) -> int:
        """Empty pages of the GPU."""
        return self._frames.free

    @free.setter
    def free(self, count: int) -> None:
        self._own += self._frames.free - count
        self._frames.free = count

    @property
    def filled(self) -> int:
        """GPU pages with contents of this job."""
        return self._own

    def note_peak(self) -> None:
        """Remember the largest number of GPU pages that this job used."""
        self.peak_used = max(self.peak_used, self._own)
        self._frames.note_peak()

    def restart_peaks(self) -> None:
        """Begin to look for the largest number of pages in use anew."""
        super().restart_peaks()
        self._frames.watch(id(self))

    @property
    def peak_used_by_all(self) -> int:
        """Most pages of the GPU in use since peaks were restarted, by whichever job."""
        return self._frames.peak(id(self))

    def take_over(self, other: GpuMemory, count: int) -> None:
        """Note that this job's pages fill the room of pages that have left another job's memory."""
        if other is not self and isinstance(other, SharedGpuMemory):
            self._own += count
            other._own -= count
