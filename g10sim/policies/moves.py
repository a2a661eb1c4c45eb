"""The former name of ``g10sim.policies.interface.moves``, for plug-ins of version 0.2."""

from g10sim.policies.interface.contract import *  # noqa: F403
from g10sim.policies.interface.moves import *  # noqa: F403
