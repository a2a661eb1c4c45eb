"""Issues planned prefetches during an iteration, and plans the next one by how they went."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from g10sim.policies.base import PolicyView, Prefetch
from g10sim.policies.vdnn_multi_planning.prefetch import Trigger, plan_prefetches
from g10sim.policies.vdnn_multi_planning.timeline import Timeline
from g10sim.policies.vdnn_planning.layers import Layer
from g10sim.trace.model import Trace


class Steering:
    """The prefetches of one job.

    Those whose time has come are issued in order, each when it finds room beside what the kernel that is
    about to start still lacks. With ``feedback`` kernel times are taken as last measured, a prefetch that was
    late is issued a kernel boundary earlier in the next iteration, and one that had come more than one layer
    early while its memory was wanted, a boundary later.
    """

    def __init__(
        self,
        trace: Trace,
        layers: Sequence[Layer],
        chosen: Sequence[Layer],
        page_bytes: int,
        budget_bytes: int,
        copy_cycles: Callable[[int], int],
        *,
        feedback: bool,
    ) -> None:
        self._trace, self._chosen, self._page_bytes = trace, chosen, page_bytes
        self._budget, self._copy_cycles, self._feedback = budget_bytes, copy_cycles, feedback
        self._layer_starts = sorted(layer.backward[0] for layer in layers if layer.backward)
        self._shifts: dict[int, int] = {}
        self._triggers: tuple[Trigger, ...] = ()
        self._due: deque[Trigger] = deque()
        self._under_way: dict[int, Trigger] = {}
        self._waiting_for_use: dict[int, Trigger] = {}
        self._early: set[int] = set()

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers of the iteration under way."""
        return self._triggers

    def start_iteration(self, view: PolicyView) -> None:
        """Plan an iteration."""
        if view.iteration == 0 or self._feedback:
            timeline = Timeline(self._trace, view.measured_cycles, self._page_bytes)
            offloads = [timeline.offloaded(layer) for layer in self._chosen]
            self._triggers = plan_prefetches(
                timeline, offloads, self._budget, self._copy_cycles, self._shifts
            )
        self._due = deque(self._triggers)
        self._under_way.clear()
        self._waiting_for_use.clear()
        self._early.clear()

    def prefetches(self, view: PolicyView) -> Iterable[Prefetch]:
        """Return what to prefetch as a kernel is about to start, and note what came late or early."""
        self._look(view)
        missing = self._missing_bytes(view)
        while self._due and self._due[0].issue <= view.kernel:
            trigger = self._due[0]
            if trigger.needed > view.kernel and not self._has_room(view, trigger.tensor, missing):
                return
            self._due.popleft()
            self._under_way[trigger.tensor] = trigger
            yield Prefetch(trigger.tensor)

    def _missing_bytes(self, view: PolicyView) -> int:
        tensors = self._trace.kernels[view.kernel].tensors
        return sum(
            view.size_bytes(tensor)
            for tensor in tensors
            if not view.resident_bytes(tensor) and not view.in_transfer_bytes(tensor)
        )

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
                self._waiting_for_use[tensor] = self._under_way.pop(tensor)
                layers = bisect_right(self._layer_starts, trigger.needed)
                if layers - bisect_right(self._layer_starts, kernel) > 1:
                    self._early.add(tensor)
            elif trigger.needed <= kernel:
                del self._under_way[tensor]
                self._move(tensor, 1)
        while self._due and self._due[0].needed <= kernel:
            trigger = self._due.popleft()
            if not view.is_whole(trigger.tensor):
                self._move(trigger.tensor, 1)
        for tensor, trigger in list(self._waiting_for_use.items()):
            if trigger.needed <= kernel:
                del self._waiting_for_use[tensor]
            elif tensor in self._early and view.free_bytes < view.size_bytes(tensor):
                self._early.remove(tensor)
                self._move(tensor, -1)

    def _move(self, tensor: int, boundaries: int) -> None:
        self._shifts[tensor] = self._shifts.get(tensor, 0) + boundaries
