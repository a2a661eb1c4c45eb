"""The only writer of residency between kernels: checks what policies ask for and sets it going."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import PlanError, PolicyError
from g10sim.hardware.memory import GpuMemory
from g10sim.policies.base import (
    Action,
    Drop,
    DropCompression,
    Evict,
    Free,
    Policy,
    Prefetch,
    Protect,
    Synchronize,
)
from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.records import Location
from g10sim.sim.recomputation import Recomputation
from g10sim.trace.model import Trace


def moves_by_kernel(plan: MigrationPlan | None, trace: Trace) -> list[tuple[PlannedMove, ...]]:
    """Group a plan's moves by the kernel that issues them; one group more than there are kernels.

    Raises PlanError for a kernel or tensor that the trace does not have.
    """
    groups: list[list[PlannedMove]] = [[] for _ in range(len(trace.kernels) + 1)]
    for number, move in enumerate(plan.moves if plan is not None else ()):
        if not 0 <= move.kernel < len(groups):
            raise PlanError(
                f"plan, move {number}: kernel {move.kernel} does not exist; allowed: 0 to {len(groups) - 1}"
            )
        if not 0 <= move.tensor < len(trace.tensors):
            raise PlanError(
                f"plan, move {number}: tensor {move.tensor} does not exist; "
                f"allowed: 0 to {len(trace.tensors) - 1}"
            )
        if move.delay_cycles < 0 or (move.delay_cycles and move.target is Location.NONE):
            raise PlanError(
                f"plan, move {number}: delay_cycles {move.delay_cycles} with target {move.target.name}; "
                "allowed: 0, or more with GPU, HOST and FLASH"
            )
        groups[move.kernel].append(move)
    return [tuple(group) for group in groups]


class Migrator:
    """Carries out planned moves and actions on one job's memory."""

    def __init__(
        self,
        trace: Trace,
        memory: GpuMemory,
        policy: Policy,
        behaviour: BehaviourSpec,
        recomputation: Recomputation,
    ) -> None:
        self._trace, self._memory, self._policy = trace, memory, policy.name
        self._recomputation = recomputation
        self._births, self._deaths, self._uses = trace.births, trace.deaths, trace.uses
        self._persistent = tuple(tensor.persistent for tensor in trace.tensors)
        self._pinned = behaviour.running_tensors == "pinned"

    def issue(self, kernel: int, moves: Iterable[PlannedMove]) -> None:
        """Set planned moves going. Raises PolicyError for an illegal one."""
        for move in moves:
            if move.target is Location.GPU:
                self._prefetch(kernel, move.tensor)
            elif move.recompute:
                self._drop(kernel, move.tensor)
            elif move.target is Location.NONE:
                self._free(kernel, move.tensor)
            else:
                self._evict(kernel, move.tensor, move.target)

    def perform(self, kernel: int, actions: Iterable[Action]) -> bool:
        """Set a policy's actions going; returns whether there were any. Raises PolicyError."""
        acted = False
        for action in actions:
            acted = True
            if isinstance(action, Prefetch):
                self._known(kernel, action.tensor)
                self._prefetch(kernel, action.tensor)
            elif isinstance(action, Protect):
                running = self._memory.needed if self._pinned else frozenset()
                self._memory.protected = frozenset(action.tensors) | running
            elif isinstance(action, Evict):
                self._known(kernel, action.tensor)
                self._perform_eviction(kernel, action)
            elif isinstance(action, Free):
                self._known(kernel, action.tensor)
                self._free(kernel, action.tensor)
            elif isinstance(action, Drop):
                self._known(kernel, action.tensor)
                self._drop(kernel, action.tensor)
            elif isinstance(action, Synchronize):
                self._memory.await_transfers(
                    action.tensors, evictions=action.evictions, prefetches=action.prefetches
                )
            elif isinstance(action, DropCompression):
                self._memory.drop_compression()
            else:
                raise PolicyError(
                    f"policy '{self._policy}', kernel {kernel}: found action {action!r}; "
                    "allowed: Prefetch, Evict, Free, Drop, Protect, Synchronize, DropCompression"
                )
        return acted

    def release(self, tensors: Iterable[int]) -> None:
        """Free dead tensors for good: nothing of them stays queued."""
        for tensor in tensors:
            self._memory.cancel(tensor)
            self._memory.discard(tensor)

    def _prefetch(self, kernel: int, tensor: int) -> None:
        if tensor in self._recomputation.dropped:
            raise self._refuse(
                kernel,
                tensor,
                "prefetches",
                "was dropped, to be computed again; allowed: others",
            )
        self._memory.request_prefetch(tensor)

    def _drop(self, kernel: int, tensor: int) -> None:
        if tensor in self._recomputation.dropped:
            return
        if tensor in self._memory.needed:
            raise self._refuse(
                kernel, tensor, "drops", "the running kernel needs; allowed: tensors that it does not need"
            )
        problem = self._recomputation.problem(tensor, kernel)
        if problem:
            raise self._refuse(kernel, tensor, "drops", problem)
        self.release((tensor,))
        self._recomputation.dropped.add(tensor)

    def _known(self, kernel: int, tensor: object) -> None:
        if not isinstance(tensor, int) or not 0 <= tensor < len(self._persistent):
            raise PolicyError(
                f"policy '{self._policy}', kernel {kernel}: tensor {tensor!r} does not exist; "
                f"allowed: 0 to {len(self._persistent) - 1}"
            )

    def _refuse(self, kernel: int, tensor: int, what: str, rule: str) -> PolicyError:
        name = self._trace.tensors[tensor].name
        return PolicyError(
            f"policy '{self._policy}', kernel {kernel} ({self._trace.kernels[kernel].name}): {what} tensor "
            f"'{name}', which {rule}"
        )

    def _perform_eviction(self, kernel: int, action: Evict) -> None:
        """Carry out an eviction with whatever was asked for beside it. Raises PolicyError."""
        tensor, until, memory = action.tensor, action.until, self._memory
        if until is None and action.density is None and not action.is_clean:
            self._evict(kernel, tensor, action.target)
            return
        if not memory.moves_whole_tensors:
            raise self._refuse(
                kernel, tensor, "evicts", "is read, compressed or clean; allowed: with contiguous memory"
            )
        if action.target is not Location.HOST:
            raise self._refuse(kernel, tensor, "evicts", "is read, compressed or clean; allowed: to HOST")
        if action.density is not None and not 0 <= action.density <= 1:
            raise self._refuse(kernel, tensor, "compresses", f"has density {action.density}; allowed: 0 to 1")
        last = -1 if until is None else until
        if tensor in memory.needed and last < kernel:
            raise self._refuse(
                kernel,
                tensor,
                "evicts",
                "the running kernel needs; allowed: until that kernel or a later one",
            )
        uses = self._uses[tensor]
        for use in uses[bisect_left(uses, kernel) : bisect_right(uses, last)]:
            if tensor in self._trace.kernels[use].outputs:
                raise self._refuse(kernel, tensor, "copies", f"kernel {use} writes; allowed: read-only ones")
        memory.copy_out(tensor, action.target, until=until, density=action.density, is_clean=action.is_clean)

    def _evict(self, kernel: int, tensor: int, target: Location) -> None:
        if target not in (Location.HOST, Location.FLASH):
            raise PolicyError(
                f"policy '{self._policy}', kernel {kernel}: eviction to {target!r}; allowed: HOST, FLASH"
            )
        if self._pinned and tensor in self._memory.needed:
            raise self._refuse(
                kernel, tensor, "evicts", "the running kernel needs; allowed: tensors that it does not need"
            )
        self._memory.request_eviction(tensor, target)

    def _free(self, kernel: int, tensor: int) -> None:
        live = self._births[tensor] < kernel < self._deaths[tensor]
        if live or self._persistent[tensor]:
            raise self._refuse(kernel, tensor, "frees", "will be read again; allowed: dead tensors")
        self._memory.discard(tensor)
