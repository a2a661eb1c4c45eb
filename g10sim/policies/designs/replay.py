"""Replay of a saved migration plan."""

from __future__ import annotations

from pathlib import Path

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import PALE, Look
from g10sim.policies.interface import MigrationPlan, Policy
from g10sim.policies.interface.parameters import Declared, PlanFile, parameter
from g10sim.policies.interface.plan_format import load_plan
from g10sim.policies.interface.registry import register_policy
from g10sim.trace.workload import Job


@register_policy
class Replay(Declared, Policy):
    """Carries out the moves of a plan file: ours, or a prefetch guide of the published G10 simulator."""

    name = "replay"
    label = "Replay"
    look = Look(PALE, "..xx", "H", "8 2")
    paper = "A saved plan"

    plan_file: PlanFile = parameter()
    """Path of the plan file."""

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan:
        """Load the plan for a job's trace. Raises PlanError when it does not fit."""
        return load_plan(Path(self.plan_file), job.trace)
