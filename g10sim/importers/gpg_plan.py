"""Plans of the published G10 simulator."""

from g10sim.policies.plan_format import read_prefetch_guide

__all__ = ["read_prefetch_guide"]
