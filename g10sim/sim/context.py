"""The context of a job's run, which all its parts share: the job, its memory, its policy, and the machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from g10sim.config.behaviour import BehaviourSpec
from g10sim.hardware.memory import Residency
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy
from g10sim.sim.accounts.iterations import Iterations
from g10sim.sim.addresses import OwnAddresses
from g10sim.sim.beside.exchange import GradientExchange, Peers
from g10sim.sim.fabric import Fabric
from g10sim.sim.machine import Machine
from g10sim.sim.stages.claims import Claims
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job


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
    def behaviour(self) -> BehaviourSpec:
        """Parameters of ``compat``."""
        return self.machine.behaviour
