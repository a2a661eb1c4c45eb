"""Designs without unified memory, and their victims when GPU memory has run out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.interface.machine import PlannedMachine
from g10sim.policies.interface.moves import Evict, Move
from g10sim.policies.interface.parameters import Declared
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import JointPolicy, Place, PlannedPlace, PolicyView
from g10sim.trace.workload import Job

_Entry = tuple[int, int, int]


class FarthestUse:
    """Finds what is needed last of the tensors on the GPU, job by job."""

    def __init__(self) -> None:
        self._orders: dict[int, _Order] = {}

    def idle(self, view: PolicyView) -> int | None:
        """Return the tensor on the GPU whose next use is farthest away (Belady), of equal ones the largest.

        None where every tensor on the GPU is in use or in transfer.
        """
        order = self._orders.get(view.job)
        if order is None or not order.is_of(view):
            order = self._orders[view.job] = _Order(view)
        return order.farthest()


class WholeTensors(Declared, JointPolicy):
    """Base of designs that copy whole tensors into contiguous memory, and plan ahead what leaves it."""

    def _set_up(self) -> None:
        self._farthest = FarthestUse()

    def places(
        self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec
    ) -> Sequence[Place | PlannedPlace]:
        """Put tensors that the plan ever evicts at the right, all others at the left."""
        evicted = plan.tensors(Evict) if plan is not None else set()
        return [Place.RIGHT if tensor.id in evicted else Place.LEFT for tensor in job.trace.tensors]

    def on_out_of_memory(self, view: PolicyView) -> Iterable[Move]:
        """Evict the tensor whose next use is farthest away."""
        victim = self._farthest.idle(view)
        return () if victim is None else (Evict(victim, self._way_out(view, victim)),)

    @abstractmethod
    def _way_out(self, view: PolicyView, tensor: int) -> str:
        """Return the tier for a tensor that leaves without being planned."""

    def _with_ssd(self, machines: Sequence[PlannedMachine]) -> Sequence[PlannedMachine]:
        """Return machines that have an SSD. Raises UnsupportedError for those that have none."""
        if machines[0].ssd.kind != "ssd":
            raise UnsupportedError(
                f"policy '{self.name}': found a system without an SSD; allowed: one with it"
            )
        return machines


class _Order:
    """Tensors on the GPU in one iteration, those first that are used last.

    An entry is (less the kernel of the next use, less the size, tensor). A tensor has a new one when it has
    been used; what does not hold any more goes when it comes first. ``_known`` were there the last time.
    """

    def __init__(self, view: PolicyView) -> None:
        self._view, self._iteration = view, view.iteration
        self._entries: list[_Entry] = []
        self._known: frozenset[int] = frozenset()
        self._kernel = view.kernel

    def is_of(self, view: PolicyView) -> bool:
        """Return True if this is the order of a job's iteration."""
        return self._view is view and self._iteration == view.iteration

    def farthest(self) -> int | None:
        """Return the first tensor that is not in use, or None."""
        view, entries, there = self._view, self._entries, self._view.whole_tensors
        kernels = view.trace.kernels[self._kernel + 1 : view.kernel + 1]
        used = (tensor for kernel in kernels for tensor in kernel.tensors)
        for tensor in {*(there - self._known), *there.intersection(used)}:
            heappush(entries, self._entry(tensor))
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

    def _entry(self, tensor: int) -> _Entry:
        view = self._view
        never = 2 * len(view.trace.kernels)
        distance = view.next_use(tensor)
        use = distance + (never if distance == never else view.kernel)  # the same in all of an iteration
        return -use, -view.size_bytes(tensor), tensor
