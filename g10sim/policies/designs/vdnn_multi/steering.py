"""Planned prefetches: as late as hides the copy, no earlier than memory allows.

They are issued during an iteration, and the next one is planned by how they went.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from g10sim.analysis.gradients import first_backward_kernel
from g10sim.policies.designs.farthest_use import FarthestUse
from g10sim.policies.designs.vdnn.layers import Layer
from g10sim.policies.designs.vdnn.vdnn import LayerJob
from g10sim.policies.designs.vdnn_multi.offload_set import OffloadTimeline
from g10sim.policies.interface import Evict, Fetch, Move, PolicyView
from g10sim.policies.planning.channel import queued_backwards
from g10sim.trace.model import Trace


@dataclass(frozen=True)
class Trigger:
    """A tensor is prefetched when kernel ``issue`` is about to start; kernel ``needed`` reads it."""

    tensor: int
    issue: int
    needed: int


def plan_prefetches(
    timeline: OffloadTimeline,
    chosen: Iterable[Layer],
    budget_bytes: int,
    copy_cycles: Callable[[int], int],
    shifts: Mapping[int, int],
) -> tuple[Trigger, ...]:
    """Return the triggers of all prefetches, in the order of issue (a reading of Kim et al., FAS*W 2018).

    From the last use to the first the latest start of each copy follows, one after another on the link:
    L = min(time of use, L of the next) - copy. The earliest is the kernel from which on the tensor fits
    next to all that is there until its use. It is issued with the last kernel that starts by L, or the
    earliest one when that is later. ``shifts`` are the kernel boundaries by which triggers move,
    to earlier ones when positive.
    """
    away = [one for layer in chosen for one in layer.absences(timeline.trace, timeline.sizes)]
    away.sort(key=lambda one: (one.end, one.tensor))
    used = timeline.occupancy()
    for one in away:
        used.add(one.start, one.end, -one.size_bytes)
    last_first = [(timeline.times[one.end], copy_cycles(one.size_bytes)) for one in reversed(away)]
    due, lengths = np.array(last_first, dtype=np.int64).reshape(-1, 2).T
    triggers, before = [], first_backward_kernel(timeline.trace)
    for one, start in zip(away, queued_backwards(due, lengths)[::-1].tolist(), strict=True):
        kernel = _shifted(timeline, timeline.kernel_at(max(0, start)), shifts.get(one.tensor, 0))
        earliest = used.within_from(budget_bytes - one.size_bytes, max(before, one.start), one.end)
        before = min(one.end, max(kernel, earliest))
        used.add(before, one.end, one.size_bytes)
        triggers.append(Trigger(one.tensor, before, one.end))
    return tuple(triggers)


def _shifted(timeline: OffloadTimeline, kernel: int, boundaries: int) -> int:
    step = timeline.boundary_before if boundaries > 0 else timeline.boundary_after
    for _ in range(abs(boundaries)):
        kernel = step(kernel)
    return kernel


class Rescue:
    """Names the tensor of the forward pass that the backward pass reads last, then any that is idle."""

    def __init__(self, trace: Trace) -> None:
        backward = first_backward_kernel(trace)
        kept = (t for t, birth in enumerate(trace.births) if birth < backward < trace.deaths[t])
        waiting = (tensor for tensor in kept if not trace.lasting[tensor])
        needed = ((next(use for use in trace.uses[t] if use >= backward), t) for t in waiting)
        self._order = sorted(needed, key=lambda pair: (-pair[0], pair[1]))
        self._farthest = FarthestUse()

    def victim(self, view: PolicyView) -> int | None:
        """Return the tensor that goes to host memory; None where all that is there is in use."""
        for needed, tensor in self._order:
            idle = view.is_whole(tensor) and not view.is_needed(tensor)
            if idle and view.kernel + view.next_use(tensor) == needed:
                return tensor
        return self._farthest.idle(view)


@dataclass(kw_only=True)
class SteeredJob(LayerJob):
    """Moves of one job, with the prefetches of layers for which these are ``planned``.

    Those whose time has come are issued in order, each when it finds room next to what the kernel that is
    about to start still lacks. With ``feedback`` kernel times are taken as last measured, a prefetch that was
    late is issued a kernel boundary earlier in the next iteration, and one that had come more than one layer
    early while its memory was wanted, a boundary later. A ``rescue`` says what leaves when a kernel finds no
    room.
    """

    trace: Trace
    planned: Sequence[Layer]
    feedback: bool
    page_bytes: int
    budget_bytes: int
    copy_cycles: Callable[[int], int]
    rescue: Rescue | None = None

    def __post_init__(self) -> None:
        """Begin without shifts, and without anything under way."""
        self._layer_starts = sorted(layer.backward[0] for layer in self.schedule.layers if layer.backward)
        self._shifts = Counter[int]()
        self._triggers: tuple[Trigger, ...] = ()
        self._due: deque[Trigger] = deque()
        self._under_way: dict[int, Trigger] = {}
        self._early: dict[int, Trigger] = {}

    def state(self, view: PolicyView) -> tuple[int, ...]:
        """Return the tensors that came early and whose memory nobody has wanted yet."""
        return tuple(self._early)

    def on_iteration_start(self, view: PolicyView) -> None:
        """Plan the prefetches of the iteration."""
        if view.iteration == 0 or self.feedback:
            self._triggers = self._planned(view)
        self._due = deque(self._triggers)
        self._under_way.clear()

    def is_steady(self, view: PolicyView) -> bool:
        """Return True if the iteration that has ended gives no reason to plan the next one otherwise."""
        return not self.feedback or self._planned(view) == self._triggers

    def on_out_of_memory(self, view: PolicyView) -> Iterable[Move]:
        """Offload what the rescue names."""
        victim = None if self.rescue is None else self.rescue.victim(view)
        return () if victim is None else (Evict(victim),)

    def _planned(self, view: PolicyView) -> tuple[Trigger, ...]:
        timeline = OffloadTimeline(self.trace, view.measured_cycles, self.page_bytes)
        return plan_prefetches(timeline, self.planned, self.budget_bytes, self.copy_cycles, self._shifts)

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Yield the moves of a kernel and the prefetches that are due; note what came late or early."""
        yield from super().on_kernel_start(view)
        self._look(view)
        missing = self._missing_bytes(view) if self._due else 0
        while self._due and self._due[0].issue <= view.kernel:
            trigger = self._due[0]
            if trigger.needed > view.kernel and not self._has_room(view, trigger.tensor, missing):
                return
            self._due.popleft()
            self._under_way[trigger.tensor] = trigger
            yield Fetch(trigger.tensor)

    def _missing_bytes(self, view: PolicyView) -> int:
        tensors = self.trace.kernels[view.kernel].tensors
        absent = (t for t in tensors if not view.resident_bytes(t) and not view.in_transfer_bytes(t))
        return sum(map(view.size_bytes, absent))

    def _has_room(self, view: PolicyView, tensor: int, missing: int) -> bool:
        if view.in_transfer_bytes(tensor):  # it has not left: it stays
            return True
        size = view.size_bytes(tensor)
        coming = sum(map(view.in_transfer_bytes, self._under_way))
        fits = view.free_bytes - coming - missing >= size
        return fits and view.largest_hole_bytes >= size

    def _look(self, view: PolicyView) -> None:
        """See what has arrived, what is late, and what lies about though its memory is wanted."""
        kernel = view.kernel
        for tensor, trigger in list(self._under_way.items()):
            if view.is_whole(tensor):
                del self._under_way[tensor]
                layers = bisect_right(self._layer_starts, trigger.needed)
                if layers - bisect_right(self._layer_starts, kernel) > 1:
                    self._early[tensor] = trigger
            elif trigger.needed <= kernel:
                del self._under_way[tensor]
                self._shifts[tensor] += 1
        while self._due and self._due[0].needed <= kernel:
            trigger = self._due.popleft()
            if not view.is_whole(trigger.tensor):
                self._shifts[trigger.tensor] += 1
        for tensor, trigger in list(self._early.items()):
            if trigger.needed <= kernel:
                del self._early[tensor]
            elif view.free_bytes < view.size_bytes(tensor):
                del self._early[tensor]
                self._shifts[tensor] -= 1
