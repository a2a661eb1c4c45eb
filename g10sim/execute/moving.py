"""Moves on a device: those of a plan, and those of a policy that sees the device while the step runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from g10sim.config.system import SystemSpec
from g10sim.errors import ExecutionError, choices_text
from g10sim.execute.account import StorageAccount
from g10sim.execute.memory import Memory
from g10sim.policies.interface.contract import MemoryKind, Move
from g10sim.policies.interface.moves import Evict, eviction_of
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy
from g10sim.sim.hooks import asked, moves_of, plan_of, victims_of
from g10sim.sim.view import kernels_to_next_use
from g10sim.trace.model import Trace

_HOST = "host"
_MOVES = ("await", "evict", "fetch", "free", "protect")


@dataclass(frozen=True)
class Guide:
    """Source of moves: a plan, a policy that is asked while the step runs, or both; or neither.

    ``system`` is the machine that the policy is told of.
    """

    system: SystemSpec
    plan: MigrationPlan | None = None
    policy: Policy | None = None


class DeviceView:
    """Implements ``g10sim.policies.interface.policy.PolicyView`` for a step on a device.

    Tensors are whole: on the device or in host memory. Copies count as there once they are queued. Time is
    that of the trace's kernels in GPU cycles, as if none waited. ``needed`` are the tensors of the kernel.
    """

    job = gpu = 0
    tiers: Sequence[str] = (_HOST,)
    in_place_tiers: Sequence[str] = ()

    def __init__(self, trace: Trace, system: SystemSpec, account: StorageAccount) -> None:
        """Look at an account; ``system`` says how large host memory is, and the clock."""
        self.trace = trace
        self.iteration = self.kernel = 0
        self.needed: Collection[int] = ()
        self.measured_cycles = self.own_cycles = tuple(trace.durations_cycles(system.gpu.clock))
        self._starts = [0, *accumulate(self.own_cycles)]
        self._host_bytes, self._account = system.host.memory, account

    @property
    def now_cycles(self) -> int:
        """Cycles of the kernels launched so far."""
        return self.iteration * self._starts[-1] + self._starts[self.kernel]

    @property
    def free_bytes(self) -> int:
        """Empty memory of the device, within the budget."""
        return max(0, self._account.budget - self._account.used_bytes)

    largest_hole_bytes = free_bytes

    @property
    def host_free_bytes(self) -> int:
        """Empty host memory."""
        return max(0, self._host_bytes - sum(map(self._account.sizes.__getitem__, self._account.host)))

    @property
    def whole_tensors(self) -> frozenset[int]:
        """Tensors on the device."""
        return frozenset(self._account.here)

    def free_bytes_of(self, tier: str) -> int:
        """Empty memory of a tier."""
        return self.host_free_bytes if tier == _HOST else 0

    def bytes_in(self, tensor: int, tier: str) -> int:
        """Bytes of a tensor in a tier."""
        return self.host_bytes(tensor) if tier == _HOST else 0

    def size_bytes(self, tensor: int) -> int:
        """Bytes of a tensor."""
        return self._account.sizes[tensor]

    def resident_bytes(self, tensor: int) -> int:
        """Bytes of a tensor on the device, room that is kept for it counted."""
        account = self._account
        return account.here.get(tensor) or account.room.get(tensor, 0)

    def host_bytes(self, tensor: int) -> int:
        """Bytes of a tensor in host memory."""
        return self._account.sizes[tensor] if tensor in self._account.host else 0

    away_bytes = host_bytes

    def flash_bytes(self, tensor: int) -> int:
        """Return 0: nothing is on flash."""
        return 0

    def in_transfer_bytes(self, tensor: int) -> int:
        """Return 0: what is queued counts as there."""
        return 0

    def is_whole(self, tensor: int) -> bool:
        """Return whether a tensor is on the device."""
        return bool(self.resident_bytes(tensor))

    def is_needed(self, tensor: int) -> bool:
        """Return whether the current kernel needs a tensor."""
        return tensor in self.needed

    def is_dropped(self, tensor: int) -> bool:
        """Return False: nothing is computed again."""
        return False

    def is_dead(self, tensor: int) -> bool:
        """Return whether a tensor's contents will not be read any more in this iteration."""
        return self.kernel >= self.trace.deaths[tensor]

    def next_use(self, tensor: int) -> int:
        """Kernels until the tensor is used again after the current one, at least 1."""
        return kernels_to_next_use(self.trace, tensor, self.kernel)


class Mover:
    """Carries out the moves of a guide; implements ``MoveState`` of moves for whole tensors.

    What cannot be carried out is refused by name, in a plan before anything runs. Delays of moves are left
    out: a move is issued at the start of its kernel.
    """

    keeps_needed = True

    def __init__(self, trace: Trace, guide: Guide, memory: Memory) -> None:
        """Prepare the moves of each kernel. Raises ExecutionError for a plan with others than it can do."""
        self.account = StorageAccount(trace, memory, self._victims)
        self.view = DeviceView(trace, guide.system, self.account)
        policy = guide.policy
        self.memory_kind: MemoryKind = "paged" if policy is None else policy.requirements.placement
        self._policy, self._trace = policy, trace
        self._plan: defaultdict[int, list[Move]] = defaultdict(list)
        self._take(guide.plan)
        self._leaving: defaultdict[int, list[int]] = defaultdict(list)
        self._protected: Collection[int] = ()
        self._pending: list[int] = []
        self._together: Collection[int] = ()
        self._called_off: Collection[int] = ()
        self._last = -1
        self._owed_bytes = 0
        self.is_idle = policy is None and not self._plan

    def start(self, kernel: int, needed: Collection[int], together: Collection[int], last: int) -> None:
        """Issue the moves of a kernel that is about to start.

        ``together`` are the tensors of all kernels of its operator, which ends with kernel ``last``: what one
        of them still needs leaves behind it.
        """
        self._protected = ()
        if kernel == 0 and self.view.iteration:
            self._enter(len(self._trace.kernels), (), (), -1)
            self._perform(self._plan[self.view.kernel])  # those behind the last kernel of the step before
        self._enter(kernel, needed, together, last)
        waiting, self._pending = self._pending, []
        for tensor in waiting:
            self.fetch(tensor)
        self._perform(self._plan[kernel])
        self._perform(self._answer("on_kernel_start", moves_of, kernel) or ())

    def end(self, kernel: int, upcoming: Collection[int]) -> None:
        """Carry out what was to wait for the end of a kernel, and ask for more.

        What the next kernel needs (``upcoming``) stays: it calls an eviction off.
        """
        self._enter(kernel, (), (), kernel)
        for tensor in self._leaving.pop(kernel, ()):
            if tensor not in upcoming:
                self.account.evict(tensor, "planned")
        answer = self._answer("on_kernel_end", moves_of, kernel)
        self._called_off = upcoming
        self._perform(answer or ())
        self._called_off = ()

    def _enter(self, kernel: int, needed: Collection[int], together: Collection[int], last: int) -> None:
        self.view.kernel, self.view.needed = kernel, needed
        self._together, self._last = together, last

    def begin(self, iteration: int) -> None:
        """Begin a step. Raises ExecutionError for a policy that answers with another plan."""
        self.view.iteration, self.view.kernel = iteration, 0
        plan: MigrationPlan | None = self._answer("on_iteration_start", plan_of)
        if plan is not None:
            self._plan.clear()
            self._take(plan)

    def _take(self, plan: MigrationPlan | None) -> None:
        for planned in plan.moves if plan else ():
            self._check(planned.kernel, planned.move)
            self._plan[planned.kernel].append(planned.move)

    def _victims(self) -> Iterable[int]:
        return self._answer("choose_victims", victims_of, self.view.kernel) or ()

    def _answer(self, hook: str, read: Callable[[Any], Any], kernel: int | None = None) -> Any:
        """Return what the policy answers to a hook, as ``read`` reads it; None without a policy."""
        policy, view = self._policy, self.view
        if policy is None:
            return None
        return asked(policy, hook, lambda: read(getattr(policy, hook)(view)), kernel)

    def _perform(self, moves: Iterable[Move]) -> None:
        for move in moves:
            if self._policy is not None:
                self._check(self.view.kernel, move)
            move.apply(self)

    def _check(self, kernel: int, move: object) -> None:
        """Raise ExecutionError for a move that cannot be carried out."""
        where = f"kernel {kernel}"
        if not isinstance(move, Move) or move.name not in _MOVES:
            found = f"move '{move.name}'" if isinstance(move, Move) else repr(move)
            raise ExecutionError(f"{where}: found {found}; allowed: {choices_text(_MOVES)}")
        if flaw := move.flaw(self._trace, None):
            raise ExecutionError(f"{where}: {flaw}")
        for tier in move.tiers():
            if tier != _HOST:
                raise ExecutionError(f"{where}: found a move to tier '{tier}'; allowed: {_HOST}")

    def was_away(self, tensor: int) -> bool:
        """Return False: nothing is known to lie in host memory as it is on the device."""
        return False

    def drop_problem(self, tensor: int) -> str:
        """Say that nothing is computed again."""
        return "has to be computed again; allowed: none, on a device"

    def fetch(self, tensor: int) -> None:
        """Bring a tensor back, or keep room for one that is not born; without room it waits for its turn."""
        account = self.account
        if tensor in account.here or tensor in account.room:
            return
        if tensor not in account.host and account.is_bound(tensor):
            return  # dead
        if not account.fetch(tensor, {*self.view.needed, *self._protected}, "planned"):
            self._pending.append(tensor)

    def recall(self, tensor: int) -> None:
        """Keep a tensor that was to leave behind a kernel."""
        for waiting in self._leaving.values():
            if tensor in waiting:
                waiting.remove(tensor)

    def evict(self, move: Evict | int, target: str = "host", **options: Any) -> None:
        """Send a whole tensor to host memory, with ``until`` behind that kernel, and copy it in any case.

        Of tensors that are to leave in part (``size_bytes``) that many leave that bytes add up as asked for.
        Raises ExecutionError for one that is compressed, or that the kernel needs.
        """
        move = eviction_of(move, target, options)
        tensor, until = move.tensor, move.until
        if move.density is not None:
            raise ExecutionError(f"{self._where(tensor)} is compressed; allowed: evictions without density")
        stays = tensor in self._called_off or not self.account.is_worth_moving(tensor)
        if stays or not self._is_whole(tensor, move.size_bytes):
            return
        if tensor in self._pending:
            self._pending.remove(tensor)
        if until is not None and until >= self.view.kernel:
            self._leaving[until].append(tensor)
        elif tensor in self.view.needed:
            raise ExecutionError(f"{self._where(tensor)} leaves, but the kernel needs it; allowed: others")
        elif tensor in self._together:
            self._leaving[self._last].append(tensor)
        else:
            self.account.evict(tensor, "planned")

    def _is_whole(self, tensor: int, size_bytes: int | None) -> bool:
        """Return whether a tensor leaves that is to leave in part. Rounded bytes are carried to the next."""
        size = self.account.here.get(tensor, 0)
        if size_bytes is None or size_bytes >= size:
            return True
        self._owed_bytes += size_bytes
        leaves = 2 * self._owed_bytes >= size
        self._owed_bytes -= size if leaves else 0
        return leaves

    def _where(self, tensor: int) -> str:
        return f"kernel {self.view.kernel}: tensor {tensor} ('{self._trace.tensors[tensor].name}')"

    def discard(self, tensor: int) -> None:
        """Drop a dead tensor. Raises ExecutionError for one that is alive."""
        trace, kernel = self._trace, self.view.kernel
        if trace.lasting[tensor] or trace.births[tensor] < kernel < trace.deaths[tensor]:
            raise ExecutionError(f"{self._where(tensor)} is freed, but read again; allowed: dead tensors")
        last = trace.uses[tensor][-1]
        if last < min(kernel, len(trace.kernels) - 1):  # what the step leaves behind is the loop's
            self.account.drop(tensor)

    def drop(self, tensor: int) -> None:
        """Refuse: nothing is computed again."""
        raise ExecutionError(f"{self._where(tensor)} {self.drop_problem(tensor)}")

    def protect(self, tensors: Collection[int]) -> None:
        """Keep prefetches from pushing out tensors until the next kernel starts."""
        self._protected = tensors

    def await_transfers(self, tensors: frozenset[int] | None, *, evictions: bool, prefetches: bool) -> None:
        """Let the kernels to come wait for copies: evictions give their blocks back."""
        memory = self.account.memory
        while evictions and memory.reclaim(waits=True):
            pass
        if prefetches:
            for tensor in self.account.here if tensors is None else tensors:
                memory.arrive(tensor)

    def keep_uncompressed(self) -> None:
        """Do nothing: nothing is compressed."""

    def use_in_place(self, tensor: int, tier: str) -> None:
        """Refuse: kernels use tensors on the device."""
        raise ExecutionError(f"{self._where(tensor)} is used in '{tier}'; allowed: on the device")

    def store(self, tensor: int, tier: str, *, is_clean: bool) -> None:
        """Refuse: there is no tier but host memory."""
        raise ExecutionError(f"{self._where(tensor)} is stored in '{tier}'; allowed: {_HOST}")
