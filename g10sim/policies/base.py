"""The former name of ``g10sim.policies.interface.policy``, for plug-ins of version 0.2."""

from g10sim.policies.interface.policy import *  # noqa: F403
from g10sim.policies.interface.specialities import *  # noqa: F403
