"""Names for authors of policies: the class, what it sees, the moves that it answers with, and plans."""

from g10sim.policies.interface.jobs import JobPolicy, PolicyPerJob
from g10sim.policies.interface.machine import PlannedMachine, PlannedTier
from g10sim.policies.interface.moves import (
    Access,
    Await,
    Drop,
    Evict,
    Fetch,
    Free,
    KeepUncompressed,
    Move,
    Protect,
    Store,
)
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import (
    Compressed,
    Place,
    PlannedPlace,
    Policy,
    PolicyView,
    Requirements,
    Trials,
)

__all__ = [
    "Access",
    "Await",
    "Compressed",
    "Drop",
    "Evict",
    "Fetch",
    "Free",
    "JobPolicy",
    "KeepUncompressed",
    "MigrationPlan",
    "Move",
    "Place",
    "Planned",
    "PlannedMachine",
    "PlannedPlace",
    "PlannedTier",
    "Policy",
    "PolicyPerJob",
    "PolicyView",
    "Protect",
    "Requirements",
    "Store",
    "Trials",
]
