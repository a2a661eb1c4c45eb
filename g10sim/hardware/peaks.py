"""The most of something that was in use."""

from __future__ import annotations


class Watched:
    """Something of which some is in use. Observers look for its peak, each from some time on."""

    @property
    def used(self) -> int:
        """Units in use."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}
        self.least_peak = 0
        """Lowest peak of any observer: no more than that in use needs no note."""

    def watch(self, observer: int) -> None:
        """Begin to look for the peak anew, for one observer."""
        self._peaks[observer] = self.used
        self.least_peak = min(self._peaks.values())

    def peak(self, observer: int) -> int:
        """Return the most in use since an observer began to watch."""
        return self._peaks[observer]

    def note_peak(self) -> None:
        """Note how much is in use."""
        used = self.used
        if used > self.least_peak:
            for observer, peak in self._peaks.items():
                if used > peak:
                    self._peaks[observer] = used
            self.least_peak = used
