"""Everything that all jobs of a run share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import SharingSpec
from g10sim.config.system import SystemSpec
from g10sim.records import Location
from g10sim.sim.accounts.checks import Checker
from g10sim.sim.accounts.recorder import Recorder
from g10sim.sim.fabric import Fabric
from g10sim.sim.gpu import Allotment


@dataclass(frozen=True)
class Machine:
    """Fabric and observers of one simulation; ``cpus`` are the processors, one for each socket.

    ``has_replicas``: there are several jobs, all alike and on GPUs of their own. ``is_mixed``: there are
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
