"""Labels and looks of the policies of some results, also where their code is not at hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from g10sim.looks import Look
from g10sim.policies.interface.registry import available, find

if TYPE_CHECKING:
    import pandas as pd

ATTRIBUTE = "policies"
"""Attribute of results (and key of their provenance): legends by the keys of policies."""


@dataclass(frozen=True)
class Design:
    """A policy of some results, taken apart: its key, the look and label of that, and its parameters."""

    policy: str
    key: str
    look: Look
    parameters: Mapping[str, str]

    @property
    def label(self) -> str:
        """Name of the policy as papers write it, without parameters."""
        return self.look.label

    @property
    def title(self) -> str:
        """Name of the policy, with its parameters as results write them."""
        return self.policy.replace(self.key, self.label, 1)

    @property
    def variant(self) -> str:
        """Values of the parameters, such as ``conv``."""
        return " ".join(self.parameters.values())


def legends(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the legends of policies that can be loaded, as plain data. Raises PolicyError."""
    return {key: asdict(find(key).legend()) for key in dict.fromkeys(keys)}


def designs(results: pd.DataFrame) -> dict[str, Design]:
    """Return the policies of column ``policy``, such as ``vdnn(mode=conv)``, in order of appearance."""
    known = {key: policy.legend() for key, policy in available().items()}
    given = results.attrs.get(ATTRIBUTE, {})
    known |= {key: look for key, value in given.items() if (look := _look(value)) is not None}
    found = {}
    for policy in dict.fromkeys(results["policy"]):
        key, _, parameters = str(policy).partition("(")
        look = known.get(key) or Look(label=key.rpartition(":")[2].replace("_", " "))
        found[policy] = Design(str(policy), key, look, dict(re.findall(r"(\w+)=([^,)]+)", parameters)))
    return found


def legend(key: str) -> Look:
    """Return the look and label of a policy that comes with g10sim or is installed."""
    return available()[key].legend()


def policy_labels(results: pd.DataFrame) -> dict[str, str]:
    """Return the name of each policy as papers write it, with parameters where results have them."""
    return {policy: design.title for policy, design in designs(results).items()}


def _look(value: Any) -> Look | None:
    """Return a look from plain data; None where it is damaged."""
    try:
        return Look(**value)
    except (TypeError, ValueError):
        return None
