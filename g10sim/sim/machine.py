"""What all jobs of a run share."""

from __future__ import annotations

import simpy

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import SharingSpec
from g10sim.config.system import SystemSpec
from g10sim.hardware.transfers import Transfers
from g10sim.sim.checks import Checker
from g10sim.sim.clockwork import Clockwork
from g10sim.sim.recorder import Recorder


class Machine:
    """Clock, transfers and observers of one simulation."""

    def __init__(
        self,
        env: simpy.Environment,
        system: SystemSpec,
        behaviour: BehaviourSpec,
        transfers: Transfers,
        recorder: Recorder,
        checker: Checker | None,
        sharing: SharingSpec,
    ) -> None:
        self.env, self.system, self.behaviour, self.sharing = env, system, behaviour, sharing
        self.transfers, self.recorder, self.checker = transfers, recorder, checker
        self.clockwork = Clockwork(env, transfers)

    @property
    def now(self) -> int:
        """Current cycle."""
        return int(self.env.now)
