"""Copies that slow kernels down: both use the bandwidth of GPU memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.sim.gpu import Gpu

# Fine enough for any share, and denominators stay powers of two however often the pace changes.
_STEPS = 1 << 20


class CopyContention:
    """Keeps the pace of the kernels on every GPU true to what crosses the GPU's link.

    Copies that fill the link in both directions take ``share`` of the bandwidth of GPU memory, and of a
    kernel's speed; others take as much less as they are slower. What kernels use in place does not count.
    """

    def __init__(
        self,
        transfers: FluidTransfers,
        gpus: Mapping[int, Gpu],
        jobs: Mapping[int, Iterable[int]],
        share: float,
    ) -> None:
        self._transfers, self._gpus, self._jobs, self._share = transfers, gpus, jobs, share
        self._paces = dict.fromkeys(gpus, Fraction(1))

    def update(self) -> None:
        """Let kernels go on at the pace that copies leave them."""
        for number, gpu in self._gpus.items():
            pace = Fraction(round((1 - self._share * self._transfers.link_use(number)) * _STEPS), _STEPS)
            if pace != self._paces[number]:
                self._paces[number] = pace
                for job in self._jobs[number]:
                    gpu.compute.set_pace(job, pace)
