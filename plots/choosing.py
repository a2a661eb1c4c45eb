"""Check that a figure shows all that is swept in its results."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from g10sim.errors import ConfigError
from g10sim.results.choosing import several_values
from g10sim.results.swept import swept_keys

if TYPE_CHECKING:
    import pandas as pd


def check_sweeps(results: pd.DataFrame, figure: str, known: Iterable[str]) -> None:
    """Refuse results with several values of a swept key that a figure shows one of. Raises ConfigError.

    ``known`` are regular expressions of the keys that it shows all values of.
    """
    several = [
        key
        for key in swept_keys(list(map(str, results.columns)))
        if results[key].nunique(dropna=False) > 1 and not any(re.fullmatch(one, key) for one in known)
    ]
    if several:
        found = " and ".join(several_values(results, key) for key in several)
        chosen = " ".join(f"--where {key}=VALUE" for key in several)
        each = "one of each" if len(several) > 1 else "one of them"
        raise ConfigError(f"results: found {found}; allowed for {figure}: {each}, as with {chosen}")
