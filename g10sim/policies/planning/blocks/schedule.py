"""The zig-zag schedule of one job: what is loaded when a part begins, and what leaves when it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from g10sim.policies.interface.moves import Await, Evict, Fetch, Move, Store
from g10sim.policies.interface.policy import PolicyView
from g10sim.policies.planning.blocks.parts import Part
from g10sim.policies.planning.blocks.visits import Overlap, Visit
from g10sim.policies.planning.offloading.births import Births
from g10sim.trace.model import Device, Trace


class Schedule:
    """Moves of one job, whose tensors have ``homes``.

    When a part begins, what comes meanwhile is asked for; before the next one, it is there, and what left
    after the part before is away. Where nothing overlaps, a part waits for its own data, and what leaves
    after it is away before the next one.
    """

    def __init__(
        self,
        trace: Trace,
        parts: Sequence[Part],
        homes: Mapping[int, str],
        visits: Sequence[Visit],
        overlap: Overlap,
        births: int,
    ) -> None:
        self._trace, self._homes, self._births = trace, homes, Births(trace, births)
        self._starts = {part.first: number for number, part in enumerate(parts)}
        self._ends = {part.last: number for number, part in enumerate(parts)}
        self._loads: list[list[int]] = [[] for _ in parts]
        self._now: list[list[int]] = [[] for _ in parts]
        self._leaves: list[list[Visit]] = [[] for _ in parts]
        for visit in visits:
            if visit.loaded is not None:
                at_once = visit.loaded == visit.first
                (self._now if at_once else self._loads)[visit.loaded].append(visit.tensor)
            if visit.leaves:
                self._leaves[visit.last].append(visit)
        self._overlaps = overlap != "none"

    def before(self, view: PolicyView) -> Iterator[Move]:
        """Yield the moves of a kernel that is about to start."""
        part = self._starts.get(view.kernel)
        if part is not None:
            yield from map(Fetch, self._now[part])
            if self._now[part]:
                yield Await(frozenset(self._now[part]), evictions=False, prefetches=True)
            yield from map(Fetch, self._loads[part])
        yield from self._births.before(view.kernel)

    def after(self, view: PolicyView) -> Iterator[Move]:
        """Yield the moves of a kernel that has ended, or was launched."""
        kernel = self._trace.kernels[view.kernel]
        if kernel.device is Device.CPU and kernel.outputs:
            yield from self._after_attention(kernel.touched, kernel.outputs)
        part = self._ends.get(view.kernel)
        if part is None:
            return
        if self._overlaps:
            yield from self._synchronize(self._leaves[part - 1], self._loads[part])
        for visit in self._leaves[part]:
            yield Evict(visit.tensor, self._homes[visit.tensor], is_clean=visit.is_clean)
        if not self._overlaps:
            yield from self._synchronize(self._leaves[part])

    def _synchronize(self, left: Sequence[Visit], loaded: Sequence[int] = ()) -> Iterator[Move]:
        waits = frozenset([*(visit.tensor for visit in left), *loaded])
        if waits:
            yield Await(waits, evictions=True, prefetches=True)

    def _after_attention(self, touched: Sequence[int], outputs: Sequence[int]) -> Iterator[Move]:
        """Bring what the CPU makes for the GPU; what lies on the SSD leaves host memory again."""
        for tensor in touched:
            home = self._homes.get(tensor)
            if home == "ssd":
                yield Store(tensor, "ssd", is_clean=tensor not in self._trace.rewritten)
            elif home is None and tensor in outputs and self._trace.uses[tensor]:
                yield Fetch(tensor)
