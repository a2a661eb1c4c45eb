"""Designs without unified memory, and their victims when GPU memory has run out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import ClassVar

from g10sim.config.behaviour import BehaviourSpec
from g10sim.policies.interface import JobPolicy, MigrationPlan, Place, PlannedPlace, PolicyPerJob, PolicyView
from g10sim.policies.interface.moves import Evict, Move
from g10sim.policies.interface.parameters import Declared
from g10sim.trace.workload import Job

_Entry = tuple[int, int, int]


class FarthestUse:
    """Tensors of one job on the GPU in one iteration, those first that are used last.

    An entry is (less the kernel of the next use, less the size, tensor). A tensor has a new one when it has
    been used; what does not hold any more goes when it comes first. ``_known`` were there the last time.
    """

    def __init__(self) -> None:
        self._iteration = self._kernel = -1
        self._entries: list[_Entry] = []
        self._known: frozenset[int] = frozenset()

    def idle(self, view: PolicyView) -> int | None:
        """Return the tensor on the GPU whose next use is farthest away (Belady), of equal ones the largest.

        None where every tensor on the GPU is in use or in transfer.
        """
        if view.iteration != self._iteration:
            self._iteration, self._kernel = view.iteration, view.kernel
            self._entries, self._known = [], frozenset()
        entries, there, never = self._entries, view.whole_tensors, 2 * len(view.trace.kernels)
        kernels = view.trace.kernels[self._kernel + 1 : view.kernel + 1]
        used = (tensor for kernel in kernels for tensor in kernel.tensors)
        for tensor in {*(there - self._known), *there.intersection(used)}:
            distance = view.next_use(tensor)
            use = distance + (never if distance == never else view.kernel)  # the same in all of an iteration
            heappush(entries, (-use, -view.size_bytes(tensor), tensor))
        self._known, self._kernel = there, view.kernel
        in_use, found = list[_Entry](), None
        while found is None and entries:
            use, _, tensor = entries[0]
            if tensor not in there or -use <= view.kernel:
                heappop(entries)
            elif view.is_needed(tensor):
                in_use.append(heappop(entries))
            else:
                found = tensor
        for entry in in_use:
            heappush(entries, entry)
        return found


class WholeTensorsJob(JobPolicy):
    """Follows the plan of a job; where memory has run out, what is used last leaves for a tier."""

    def __init__(self, plan: MigrationPlan, tier: str) -> None:
        self.plan, self._tier, self._farthest = plan, tier, FarthestUse()

    def on_out_of_memory(self, view: PolicyView) -> Iterable[Move]:
        """Evict the tensor whose next use is farthest away."""
        victim = self._farthest.idle(view)
        return () if victim is None else (Evict(victim, self.way_out(view, victim)),)

    def way_out(self, view: PolicyView, tensor: int) -> str:
        """Return the tier for a tensor that leaves without being planned."""
        return self._tier


class WholeTensors(Declared, PolicyPerJob):
    """Base of designs that copy whole tensors into contiguous memory, and plan ahead what leaves it."""

    job_class: ClassVar[type[WholeTensorsJob]] = WholeTensorsJob
    shares_gpus = False

    def places(
        self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec
    ) -> Sequence[Place | PlannedPlace]:
        """Put tensors that the plan ever evicts at the right, all others at the left."""
        evicted = plan.tensors(Evict) if plan is not None else set()
        return [Place.RIGHT if tensor.id in evicted else Place.LEFT for tensor in job.trace.tensors]
