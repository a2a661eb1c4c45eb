"""The most of something that was in use."""

from __future__ import annotations


class Watched:
    """Something of which some is in use. Observers look for its peak, each from some time on."""

    @property
    def used(self) -> int:
        """Units in use."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._observers: dict[int, set[int]] = {}
        self.least_peak = 0
        """Lowest peak of any observer: no more than that in use needs no note."""

    def watch(self, observer: int) -> None:
        """Begin to look for the peak anew, for one observer."""
        for peak in [peak for peak, observers in self._observers.items() if observers <= {observer}]:
            del self._observers[peak]
        for observers in self._observers.values():
            observers.discard(observer)
        self._observers.setdefault(self.used, set()).add(observer)
        self.least_peak = min(self._observers)

    def peak(self, observer: int) -> int:
        """Return the most in use since an observer began to watch."""
        return next(peak for peak, observers in self._observers.items() if observer in observers)

    def note_peak(self) -> None:
        """Note how much is in use: those with lower peaks have one in common from then on."""
        used, found = self.used, self._observers
        if used > self.least_peak:
            lower = [found.pop(peak) for peak in list(found) if peak < used]
            if lower:
                lower[0].update(found.pop(used, ()), *lower[1:])
                found[used] = lower[0]
            self.least_peak = used
