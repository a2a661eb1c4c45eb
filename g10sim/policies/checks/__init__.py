"""Conformance of policies: what every policy must do, and tests that see to it.

Unlike the rest of ``g10sim.policies`` this runs simulations. A policy that a check does not apply to names it
in ``check_exemptions``, with the reason.
"""

from g10sim.policies.checks.battery import CHECKS, Check, check_policy, parametrize_with_policy_checks
from g10sim.policies.checks.subject import PolicyCheckError, Subject

__all__ = ["CHECKS", "Check", "PolicyCheckError", "Subject", "check_policy", "parametrize_with_policy_checks"]
