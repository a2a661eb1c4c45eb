"""Search over batch sizes: which trains fastest, and how far memory management lets the batch grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from g10sim.errors import ConfigError, choices_text
from g10sim.results.columns import OK
from g10sim.results.swept import swept_keys
from g10sim.units import QUANTITIES

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "best_batch", "best_samples_per_s", "no_loss_batch", "largest_batch", "batch_gain", "throughput_gain",
)  # fmt: skip
"""Columns that ``batch_search`` adds."""


def batch_search(results: pd.DataFrame, *, reference: str, loss: float = 0.0) -> pd.DataFrame:
    """Return for every policy and combination of swept values how the batch size is best chosen.

    ``results`` has one cell for each of several batch sizes. The throughput of a cell is that of all its
    replicas. ``reference`` is the policy to compare with, such as one that offloads nothing.

    - ``best_batch``, ``best_samples_per_s``: the batch size of the highest throughput, of equals the smallest
    - ``no_loss_batch``: the largest batch size at which throughput is not below the best of the reference;
      by a share of ``loss`` it may be
    - ``largest_batch``: the largest batch size that can be run
    - ``batch_gain``: ``no_loss_batch`` over the largest batch size that the reference can run
    - ``throughput_gain``: best throughput over the reference's best

    Batch sizes that cannot be run are left out; a policy that runs none has an empty row. Raises ConfigError
    when the reference is not there or never runs, for several cells of a policy and batch size, and for a
    ``loss`` outside 0 to 1.
    """
    import pandas as pd

    if not 0 <= loss < 1:
        raise ConfigError(f"loss: found {loss!r}; allowed: from 0 to less than 1")
    known = list(dict.fromkeys(results.policy))
    if reference not in known:
        raise ConfigError(f"reference: found policy '{reference}'; allowed: {choices_text(known)}")
    keys = _case_columns(results)
    rows = []
    for case, cells in _throughputs(results, keys).groupby(keys, sort=False, dropna=False):
        ran = cells[cells.runs]
        base = ran[ran.policy == reference]
        if base.empty:
            named = ", ".join(f"{key} {value}" for key, value in zip(keys, case, strict=True))
            raise ConfigError(f"policy '{reference}' runs no batch size ({named})")
        for policy in known:
            own = ran[ran.policy == policy].sort_values("batch_size")
            rows.append({**dict(zip(keys, case, strict=True)), "policy": policy, **_found(own, base, loss)})
    return pd.DataFrame(rows, columns=[*keys, "policy", *COLUMNS])


def _case_columns(results: pd.DataFrame) -> list[str]:
    """Return the columns that tell workloads and machines apart: model, seed, and swept keys."""
    numbers = {f"{column}_{quantity.column}" for column in results.columns for quantity in QUANTITIES}
    keys = dict.fromkeys(column for column in results.columns if "." in column and column not in numbers)
    keys |= dict.fromkeys(swept_keys(list(map(str, results.columns))))  # such as whole systems
    return ["model", "seed", *(key for key in keys if not key.startswith("policies."))]


def _throughputs(results: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return one row per cell: its throughput, and whether all of it ran."""
    rows = results.assign(runs=results.status == OK)
    cells = rows.groupby(["cell", "policy", "batch_size", *keys], as_index=False, sort=False, dropna=False)
    found = cells.agg(samples_per_s=("samples_per_s", "sum"), runs=("runs", "all"))
    twice = found[found.duplicated([*keys, "policy", "batch_size"])]
    if len(twice):
        first = twice.iloc[0]
        problem = f"results: found several cells of policy '{first.policy}' at batch size {first.batch_size}"
        raise ConfigError(f"{problem}; allowed: one, with the policy's parameters under 'policies'")
    return found


def _found(own: pd.DataFrame, base: pd.DataFrame, loss: float) -> dict[str, float]:
    if own.empty:
        return {}
    best = own.samples_per_s.max()
    enough = own[own.samples_per_s >= (1 - loss) * base.samples_per_s.max()]
    no_loss = enough.batch_size.max() if len(enough) else None
    return {
        "best_batch": own[own.samples_per_s == best].batch_size.min(),
        "best_samples_per_s": best,
        "no_loss_batch": no_loss,
        "largest_batch": own.batch_size.max(),
        "batch_gain": None if no_loss is None else no_loss / base.batch_size.max(),
        "throughput_gain": best / base.samples_per_s.max(),
    }
