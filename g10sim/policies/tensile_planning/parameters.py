"""What can be chosen about TENSILE's planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from g10sim.policies.swap_planning.peak import Accounting

Channels = Literal["per_job", "shared"]


@dataclass(frozen=True)
class PlanningParameters:
    """Parameters of ``plan_jobs``; the policy's documentation says what they mean."""

    across_iterations: bool = True
    recomputation: bool = True
    channels: Channels = "per_job"
    duplex: bool = False
    accounting: Accounting = "physical"
    swap_share: float = 1.0
    target_bytes: int | None = None
