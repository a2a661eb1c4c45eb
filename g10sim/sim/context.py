"""The context of a job's run, which all its parts share: the job, its memory, its policy, and the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import SharingSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import InvariantError
from g10sim.hardware.memory import Residency
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy
from g10sim.records import Location
from g10sim.sim.accounts.recorder import Checker, Recorder
from g10sim.sim.accounts.repetition import Iterations
from g10sim.sim.addresses import OwnAddresses
from g10sim.sim.beside.peers import GradientExchange, Peers
from g10sim.sim.fabric import Fabric
from g10sim.sim.gpu import Allotment
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job


class Claims:
    """Tensors of kernels that run next to the GPU's, launched and not ended: nothing else moves them.

    What moves ask for meanwhile is done when these have ended.
    """

    def __init__(self) -> None:
        self._users = Counter[int]()
        self._later: dict[int, list[Callable[[int], None]]] = {}

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._users

    @property
    def tensors(self) -> Collection[int]:
        """The tensors."""
        return self._users.keys()

    def take(self, tensors: Iterable[int]) -> None:
        """Claim the tensors of a kernel that is launched; what was to be done with them is called off."""
        for tensor in tensors:
            self._users[tensor] += 1
            self._later.pop(tensor, None)

    def postpone(self, tensor: int, operation: Callable[[int], None]) -> bool:
        """Return whether a tensor is claimed; if so, ``operation`` is due when it is not any more."""
        if tensor not in self._users:
            return False
        waiting = self._later.setdefault(tensor, [])
        if operation not in waiting:
            waiting.append(operation)
        return True

    def give_back(self, tensors: Iterable[int]) -> list[Callable[[], None]]:
        """Give up the tensors of a kernel that has ended; returns what is to be done now."""
        due: list[Callable[[], None]] = []
        for tensor in tensors:
            self._users[tensor] -= 1
            if not self._users[tensor]:
                del self._users[tensor]
                due += [partial(operation, tensor) for operation in self._later.pop(tensor, ())]
        return due


@dataclass(frozen=True)
class Machine:
    """Fabric and observers of one simulation; ``cpus`` are the processors, one for each socket.

    ``has_replicas``: there are several jobs, all alike and on their own GPUs. ``is_mixed``: there are
    several, and they are not.
    """

    fabric: Fabric
    system: SystemSpec
    behaviour: BehaviourSpec
    recorder: Recorder
    checker: Checker | None
    sharing: SharingSpec
    cpus: Sequence[Allotment]
    has_replicas: bool = False
    is_mixed: bool = False

    @property
    def tiers(self) -> Mapping[str, Location]:
        """Places of the memory tiers by name."""
        return {tier.name: tier.place for tier in self.system.all_tiers}


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """One job of a simulation.

    ``executed`` is the job's trace with the kernel times that it really takes; all decisions are made by
    those of the job. ``ideal_cycles`` is an iteration without any stall. Replicas ``exchange`` gradients;
    collectives and transfers between stages go to ``peers``. Kernels on the CPU have ``claims`` on tensors,
    collectives are ``sending`` some.
    """

    number: int
    job: Job
    executed: Trace
    ideal_cycles: int
    iterations: Iterations
    memory: Residency
    addresses: OwnAddresses
    policy: Policy
    plan: MigrationPlan | None
    machine: Machine
    exchange: GradientExchange | None = None
    peers: Peers | None = None
    claims: Claims = field(default_factory=Claims)
    sending: Claims = field(default_factory=Claims)

    @property
    def gpu(self) -> int:
        """The GPU that the job runs on."""
        return self.job.gpu

    @property
    def fabric(self) -> Fabric:
        """Clock, door of memory, and transfers."""
        return self.machine.fabric

    @property
    def fluid(self) -> FluidTransfers:
        """Transfers that send messages. Raises InvariantError where what needs them was not refused."""
        if not isinstance(self.fabric.transfers, FluidTransfers):
            raise InvariantError(f"job {self.number} sends messages without transfers that can do it")
        return self.fabric.transfers

    @property
    def behaviour(self) -> BehaviourSpec:
        """Parameters of ``compat``."""
        return self.machine.behaviour
