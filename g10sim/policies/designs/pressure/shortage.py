"""Bytes that kernels to come lack, kept while tensors leave and return."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressure.order import ByNextUse


@dataclass(frozen=True)
class Settings:
    """Parameters of the policy; ``backlog_cycles`` of the link's time, the others in kernels."""

    backlog_cycles: float
    births: int
    horizon: int

    @property
    def last_single(self) -> int:
        """The last kernel ahead at which a step begins in any case."""
        return min(max(2, self.births), self.horizon - 1)


class Shortage:
    """Bytes that the kernels from one on lack, as far as the horizon: ``lack`` less what is away.

    In a step, the same tensors are away. One begins where some tensor alive is used next, and at each of the
    first kernels.
    """

    def __init__(self, lack: Integers, alive: ByNextUse, settings: Settings) -> None:
        self._lack, self._alive, self._settings = np.tile(lack, 2), alive, settings
        self._levels, self._kernel = self._lack.copy(), 0
        self._added: list[tuple[int, int]] = []
        self._worst: dict[int, int] = {}

    def start_iteration(self) -> None:
        """Forget what is away."""
        self._levels[:] = self._lack
        self._added.clear()
        self._worst.clear()

    def start_kernel(self, kernel: int) -> None:
        """Go on to a kernel, or look at it anew: what was added is gone."""
        for stop, size in self._added:
            self._levels[self._kernel : stop] -= size
        self._added.clear()
        self._worst.clear()
        self._kernel = kernel

    def spare(self, until: int, size_bytes: int) -> None:
        """Take off bytes that are away until a kernel uses them."""
        self._levels[self._kernel : until] -= size_bytes
        self._worst.clear()

    def add(self, ahead: int, size_bytes: int) -> None:
        """Let each of so many kernels lack more, as seen from this one."""
        self._added.append((self._kernel + ahead, size_bytes))
        self._levels[self._kernel : self._kernel + ahead] += size_bytes
        self._worst.clear()

    def worst(self, ahead: int | None = None) -> int:
        """Return what the worst of so many kernels lacks, or the worst of all."""
        ahead = ahead or self._settings.horizon
        if ahead not in self._worst:
            self._worst[ahead] = int(self._levels[self._kernel : self._end(ahead)].max())
        return self._worst[ahead]

    def worst_step(self, ahead: int | None = None) -> int:
        """Return the kernels ahead at which the step of the worst of so many begins, of equals the first."""
        stop = self._end(ahead or self._settings.horizon)
        worst = int(self._levels[self._kernel : stop].argmax())
        single = self._settings.last_single
        if worst <= single:
            return worst
        return max(single, self._alive.last_use_until(self._kernel + worst) - self._kernel)

    def later(self) -> tuple[Integers, Integers]:
        """Return the kernels ahead at which steps begin after the next kernel's, and what these lack."""
        single, horizon = self._settings.last_single, self._settings.horizon
        uses = self._alive.uses() - self._kernel
        starts = np.unique(np.append(np.arange(single + 1), uses[(uses > single) & (uses < horizon)]))
        levels = self._levels[self._kernel : self._kernel + horizon]
        return starts[2:], np.maximum.reduceat(levels, starts)[2:]

    def of_next(self) -> int:
        """Return what the next kernel lacks."""
        return int(self._levels[self._kernel + 1])

    def _end(self, ahead: int) -> int:
        return self._kernel + min(ahead, self._settings.horizon)
