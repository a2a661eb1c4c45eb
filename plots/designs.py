"""Designs of one family beside each other: what a policy is called, and what sets a variant of it apart."""

from __future__ import annotations

import re

import pandas as pd

from g10sim.errors import ConfigError
from g10sim.plots.style import policy_name


def design_and_variant(policy: str) -> tuple[str, str]:
    """Split the name of a policy in results into that of its design and the values of its parameters.

    ``vdnn(mode=conv)`` is vDNN and "conv".
    """
    key, _, parameters = policy.partition("(")
    return policy_name(key), " ".join(re.findall(r"=([^,)]+)", parameters))


def short_name(policy: str) -> str:
    """Name of a policy with the values of its parameters, for a legend."""
    return " ".join(part for part in design_and_variant(policy) if part)


def swept_column(results: pd.DataFrame, name: str) -> str:
    """Find the column of a swept quantity; of a parameter of a policy that of any policy.

    Raises ConfigError where there is none.
    """
    for column in results.columns:
        if column == name or re.fullmatch(rf"policies\.\d+\.{re.escape(name)}", column):
            return str(column)
    raise ConfigError(f"results: found no column '{name}'; allowed: results of a run that sweeps over it")
