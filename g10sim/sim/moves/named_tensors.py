"""Tensors that a policy names before time starts, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from g10sim.config.tiers import Tier
from g10sim.errors import PolicyError
from g10sim.policies.interface.policy import Policy
from g10sim.records import Location
from g10sim.registry import choices_text
from g10sim.sim.addresses import OwnAddresses
from g10sim.sim.hooks import asked
from g10sim.trace.workload import Job

_Found = TypeVar("_Found", bound=Collection[int])


class NamedTensors:
    """Asks for the tensors of one job, which share addresses with none, and checks the answers."""

    def __init__(self, policy: Policy, number: int, job: Job, addresses: OwnAddresses) -> None:
        self._policy, self._number = policy, number
        self._lasting, self._addresses = job.trace.lasting, addresses

    def pageable(self) -> frozenset[int]:
        """Return the tensors that are not pinned in host memory. Raises PolicyError for unknown ones."""
        return self._found("pageable", lambda: frozenset(self._policy.pageable(self._number)))

    def host_reserved(self) -> int:
        """Return the bytes of host memory that the job keeps reserved. Raises PolicyError for no bytes."""
        found = asked(self._policy, "host_reserved", lambda: self._policy.host_reserved(self._number))
        if type(found) is not int or found < 0:
            raise PolicyError(
                f"policy '{self._policy.name}': host_reserved: found {found!r}; allowed: an int from 0"
            )
        return found

    def homes(self, tiers: Sequence[Tier]) -> dict[int, Location]:
        """Return where tensors lie before time starts. Raises PolicyError for unknown tensors and tiers."""
        places = {tier.name: tier.place for tier in tiers}
        homes = self._found("homes", lambda: dict(self._policy.homes(self._number)))
        for tensor, tier in homes.items():
            if not self._lasting[tensor]:
                raise PolicyError(
                    f"policy '{self._policy.name}': homes names tensor {tensor}, which is not persistent; "
                    "allowed: persistent ones"
                )
            if tier not in list(places):  # whatever it is
                raise PolicyError(
                    f"policy '{self._policy.name}': homes names the tier {tier!r}; "
                    f"allowed: {choices_text(places)}"
                )
        return {tensor: places[tier] for tensor, tier in homes.items()}

    def _found(self, hook: str, ask: Callable[[], _Found]) -> _Found:
        found = asked(self._policy, hook, ask)
        if found and self._addresses.are_shared:
            raise PolicyError(
                f"policy '{self._policy.name}': {hook} names tensors that share addresses; allowed: with "
                "requirements.addresses 'own'"
            )
        for tensor in found:
            if type(tensor) is not int or not 0 <= tensor < len(self._lasting):
                raise PolicyError(
                    f"policy '{self._policy.name}': {hook} names tensor {tensor!r}; allowed: 0 to "
                    f"{len(self._lasting) - 1}"
                )
        return found
