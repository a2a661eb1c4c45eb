"""Moves of a job that are known before time starts, by kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from g10sim.policies.interface import Fetch, JobPolicy, Move, PolicyView
from g10sim.trace.model import Device, Trace

KernelMoves = Iterable[tuple[int, Move]]
"""Moves, each with its kernel, in order."""


@dataclass
class MovesByKernel(JobPolicy):
    """Moves of one job ``before`` kernels start and ``after`` they end, or were launched.

    They are the same in every iteration. ``homes`` are the tiers in which persistent tensors lie, and
    ``below`` the most bytes of the job in each tier. What has no pinned buffer in host memory is
    ``pageable``.
    """

    before: Mapping[int, Sequence[Move]]
    after: Mapping[int, Sequence[Move]]
    note: str = ""
    homes: Mapping[int, str] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    pageable: Collection[int] = ()

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Return the moves of a kernel that is about to start."""
        return self.before.get(view.kernel, ())

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Return the moves of a kernel that has ended, or was launched."""
        return self.after.get(view.kernel, ())


def births(trace: Trace, ahead: int) -> Iterator[tuple[int, Move]]:
    """Map the new tensors of kernels ``ahead`` of them, as memory of an allocator is mapped.

    A collective maps what it makes.
    """
    firsts = ((uses[0], tensor) for tensor, uses in enumerate(trace.uses) if uses)
    for first, tensor in sorted(firsts):
        is_new = not trace.lasting[tensor] and trace.births[tensor] == first
        if is_new and trace.kernels[first].device is not Device.LINKS:
            yield max(0, first - ahead), Fetch(tensor)
