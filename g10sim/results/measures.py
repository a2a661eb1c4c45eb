"""Measures of a claim: one number from the results of an experiment, and the cells that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from g10sim.analysis.footprint import mean_gradient_bytes, static_bytes
from g10sim.config.data import find_file
from g10sim.config.quantities import Bytes, Spec, required
from g10sim.errors import ConfigError, choices_text
from g10sim.policies.designs.vdnn.joins import gain_without_joins
from g10sim.results.batch_search import batch_search
from g10sim.results.cases import Average, Measured, Where, breakdown, case_keys, case_name, cells_of, rows_of
from g10sim.results.reading import read_results, read_table
from g10sim.results.savings import savings
from g10sim.trace.format import load_trace
from g10sim.trace.model import Trace
from g10sim.units import parse_rate

if TYPE_CHECKING:
    import pandas as pd

_TIMES: Mapping[str, Callable[[float, float], float]] = {
    "speedup": lambda own, other: other / own,
    "improvement": lambda own, other: other / own - 1,
    "reduction": lambda own, other: 1 - own / other,
    "ratio": lambda own, other: own / other,
    "increase": lambda own, other: own / other - 1,
}

As: TypeAlias = Literal["speedup", "improvement", "reduction", "ratio", "increase"]


class Comparison(Spec):
    """A column under one policy compared with that (or another column) under another.

    Cells belong together that have the same trace, seed and swept values, except for those that ``where`` and
    ``against_where`` name. Of the rows of a cell (jobs, replicas) the mean counts.
    """

    of: Literal["comparison"]
    column: str
    """column of results"""
    policy: str
    """policy as results name it"""
    against: str
    """policy to compare with"""
    against_column: str | None = None
    """its column, if it is another one"""
    value: As
    """speedup: other/own; improvement: other/own - 1; reduction: 1 - own/other; ratio: own/other; increase:
    own/other - 1"""
    average: Average = "mean"
    """over cells"""
    where: Where = Field(default_factory=dict)
    """values of columns of the policy's cells"""
    against_where: Where | None = None
    """those of the other's; none: the same"""

    def measure(self, directory: Path) -> Measured:
        """Compare cells of a directory of results. Raises ConfigError for unknown columns and policies."""
        results = read_results(directory)
        other_where = self.where if self.against_where is None else self.against_where
        own = cells_of(results, self.policy, self.column, self.where)
        column = self.against_column or self.column
        other = cells_of(results, self.against, column, other_where)
        keys = case_keys(results, {*self.where, *other_where})
        merged = own.merge(other, on=keys, suffixes=("", "_other"))
        change = _TIMES[self.value]
        compared = merged[(merged["value"] > 0) & (merged["value_other"] > 0)].to_dict("records")
        cases = {case_name(row, keys): change(row["value"], row["value_other"]) for row in compared}
        looked = [*merged["cell"], *merged["cell_other"]]
        return Measured.of(self.average, cases, results[results["cell"].isin(looked)])


class Quantity(Spec):
    """A column of results in another unit: times a number, or a number over it."""

    of: Literal["quantity"]
    column: str
    """column of results"""
    policy: str | None = None
    """policy as results name it; none: the only one"""
    times: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """factor of the column"""
    over: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """what it divides"""
    average: Average = "mean"
    """over cells"""

    @required
    def _one_way(self) -> Iterator[str]:
        if self.times is not None and self.over is not None:
            yield "found both 'times' and 'over'; allowed: one of them"

    def measure(self, directory: Path) -> Measured:
        """Return the quantity. Raises ConfigError for unknown columns and policies."""
        results = read_results(directory)
        policy = self.policy or str(results["policy"].iloc[0])
        rows = cells_of(results, policy, self.column, {})
        keys = case_keys(results, set())
        cases = {case_name(row, keys): self._of(row["value"]) for row in rows.to_dict("records")}
        return Measured.of(self.average, cases, _looked_at(results, rows))

    def _of(self, value: float) -> float:
        return value * (self.times or 1) if self.over is None else self.over / value


class StaticSaving(Spec):
    """Memory that a policy saves against a network-wide static allocation of the same trace (vDNN)."""

    of: Literal["static"]
    column: str
    """column of results, in bytes"""
    policy: str
    """policy as results name it"""
    trace: str | None = None
    """only this trace, by its file's name"""
    leaves_out: Literal["nothing", "weights", "weights and their gradients"] = "nothing"
    """memory of the policy that does not count; that of the allocation all does"""
    average: Average = "mean"
    """over cells"""

    def measure(self, directory: Path) -> Measured:
        """Return 1 - column / static allocation. Raises ConfigError and TraceError."""
        results = read_results(directory)
        rows = cells_of(results, self.policy, self.column, {})
        if self.trace is not None:
            rows = rows[[Path(str(name)).stem == self.trace for name in rows["trace"]]]
        cases: dict[str, float] = {}
        for row in rows.to_dict("records"):
            trace = load_trace(find_file(str(row["trace"])))
            taken = row["value"] - self._left_out(trace)
            cases[case_name(row, case_keys(results, set()))] = 1 - taken / static_bytes(trace)
        return Measured.of(self.average, cases, _looked_at(results, rows))

    def _left_out(self, trace: Trace) -> float:
        """Bytes that do not count, averaged over an iteration in which no kernel waits."""
        kept = sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent)
        if self.leaves_out == "nothing":
            return 0
        return kept + (mean_gradient_bytes(trace) if "gradients" in self.leaves_out else 0)


class JoinBound(Spec):
    """The most that vDNN++ can win over vDNN by not waiting for copies at the end of layers."""

    of: Literal["join_bound"]
    offload: Literal["all", "conv", "alternate"]
    """layers that offload"""
    link: str
    """column with the rate of each direction of the link"""
    average: Average = "highest"
    """over cells"""

    def measure(self, directory: Path) -> Measured:
        """Return the bound of every trace and link. Raises ConfigError and TraceError."""
        results = read_results(directory)
        if self.link not in results.columns:
            raise ConfigError(f"found no column '{self.link}' in the results")
        cases = {
            f"{Path(str(trace)).stem}, {rate}": gain_without_joins(
                load_trace(find_file(str(trace))), self.offload, parse_rate(rate)
            )
            for trace, rate in results[["trace", self.link]].drop_duplicates().itertuples(index=False)
        }
        return Measured.of(self.average, cases, results)


class Saving(Spec):
    """Memory saved and time added against a policy that keeps everything, as TENSILE's authors count it."""

    of: Literal["saving"]
    ratio: Literal["msr", "eor"]
    """memory saving ratio or extra overhead ratio"""
    policy: str
    """policy as results name it"""
    vanilla: str
    """policy that keeps everything"""
    context: Bytes | None = None
    """memory of each job beyond its tensors; none: as in the runs"""
    average: Average = "mean"
    """over cells"""
    published: Mapping[str, float] | None = None
    """ratio by trace; the value is then the mean distance to these"""

    def measure(self, directory: Path) -> Measured:
        """Return the ratio, or how far it is from published ones. Raises ConfigError."""
        results, found = _savings(directory, self.vanilla, self.context)
        rows = rows_of(self.policy, found, results)
        found_cases = {_case(row): float(row[self.ratio]) for row in rows.to_dict("records")}
        cases = _distances(found_cases, self.published)
        return Measured.of(self.average, cases, _looked_at(results, rows))


class Wins(Spec):
    """Cases in which a policy saves at least as much memory as all others, at no more overhead."""

    of: Literal["wins"]
    policy: str
    """policy as results name it"""
    over: tuple[str, ...] = Field(min_length=1)
    """policies that it is compared with"""
    vanilla: str
    """policy that keeps everything"""
    context: Bytes | None = None
    """memory of each job beyond its tensors; none: as in the runs"""
    tolerance: float = Field(default=0.0, ge=0)
    """difference of ratios that counts as none"""

    def measure(self, directory: Path) -> Measured:
        """Return the share of cases; each is 1 where the policy wins, otherwise 0, with a note.

        Raises ConfigError.
        """
        results, found = _savings(directory, self.vanilla, self.context)
        cases: dict[str, float] = {}
        notes: dict[str, str] = {}
        for _, group in found.groupby(["trace", "jobs", "alike"], sort=False):
            own = group[group["policy"] == self.policy]
            others = group[group["policy"].isin(list(self.over))]
            if own.empty or others.empty:
                continue
            row, most, least = own.iloc[0], others["msr"].max(), others["eor"].min()
            wins = row["msr"] >= most - self.tolerance and row["eor"] <= least + self.tolerance
            name = _case(row.to_dict())
            cases[name] = float(wins)
            if not wins:
                time = breakdown(results[results["cell"] == row["cell"]])
                notes[name] = (
                    f"saves {row['msr']:.3f} (the others {most:.3f} at most), adds {row['eor']:.3f} "
                    f"({least:.3f} at least); {time}"
                )
        rows_of(self.policy, found, results)
        return Measured.of("mean", cases, results[results["policy"] == self.policy], notes)


class BatchGain(Spec):
    """Gain in batch size, or in throughput, over a reference policy."""

    of: Literal["batch"]
    column: Literal["batch_gain", "throughput_gain"]
    """column of batch_search"""
    policy: str
    """policy as results name it"""
    reference: str
    """policy to compare with"""
    loss: float = Field(default=0.0, ge=0, lt=1)
    """share of throughput that may be lost"""
    average: Average = "highest"
    """over cases"""

    def measure(self, directory: Path) -> Measured:
        """Return the gain, less 1. Raises ConfigError."""
        results = read_results(directory)
        found = batch_search(results, reference=self.reference, loss=self.loss)
        rows = rows_of(self.policy, found, results)
        keys = [name for name in rows.columns if "." in name]
        known = rows.dropna(subset=[self.column]).to_dict("records")
        cases = {case_name(row, ["model", *keys]): float(row[self.column]) - 1 for row in known}
        looked = results[results["policy"].isin([self.policy, self.reference])]
        return Measured.of(self.average, cases, looked)


class PoolSaving(Spec):
    """Memory that one pool saves against another for the same blocks, or takes beyond the load."""

    of: Literal["pool"]
    pool: str = "SmartPool, best fit"
    """pool as the table of pools names it"""
    against: str = "default pool"
    """pool to compare with"""
    value: Literal["reduction", "ratio"] = "reduction"
    """reduction: 1 - footprint / the other's; ratio: footprint / load"""
    average: Average = "highest"
    """over traces"""
    published: Mapping[str, float] | None = None
    """value by trace; the value is then the mean distance to these"""

    def measure(self, directory: Path) -> Measured:
        """Return the reduction or the ratio, or how far it is from published ones. Raises ConfigError."""
        results, pools = read_results(directory), read_table(directory, "pools")
        known = sorted(set(pools["pool"]))
        for name in (self.pool, self.against):
            if name not in known:
                raise ConfigError(f"pool: found '{name}'; allowed: {choices_text(known)}")
        sizes = pools.pivot_table(index="cell", columns="pool", values="footprint_bytes")
        loads = pools.groupby("cell")["load_bytes"].first()
        own = sizes[self.pool]
        shares = 1 - own / sizes[self.against] if self.value == "reduction" else own / loads
        traces = results.drop_duplicates("cell")
        names = [Path(str(trace)).stem for trace in traces["trace"]]
        cases = dict(zip(names, map(float, traces["cell"].map(shares)), strict=True))
        found = Measured.of(self.average, _distances(cases, self.published), results)
        return Measured(found.value, cases, results)


Measure: TypeAlias = Annotated[
    Annotated[Comparison, Tag("comparison")]
    | Annotated[Quantity, Tag("quantity")]
    | Annotated[StaticSaving, Tag("static")]
    | Annotated[JoinBound, Tag("join_bound")]
    | Annotated[Saving, Tag("saving")]
    | Annotated[Wins, Tag("wins")]
    | Annotated[BatchGain, Tag("batch")]
    | Annotated[PoolSaving, Tag("pool")],
    Discriminator("of"),
]
"""A measure of any kind, told apart by its key ``of``."""


def measured_in(directory: Path, measure: Measure, place: str) -> Measured:
    """Measure a directory of results. Raises ConfigError, which begins with the place of the measure."""
    try:
        return measure.measure(directory)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def _looked_at(results: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of results of the cells that some rows are about."""
    return results[results["cell"].isin(rows["cell"].tolist())]


def _distances(cases: dict[str, float], published: Mapping[str, float] | None) -> dict[str, float]:
    """Return how far the cases that were published are from that; without any published, the cases."""
    if published is None:
        return cases
    return {name: abs(value - published[name]) for name, value in cases.items() if name in published}


def _savings(directory: Path, vanilla: str, context_bytes: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    results = read_results(directory)
    kernels = read_table(directory, "kernels") if (directory / "kernels.parquet").is_file() else None
    found = savings(results, vanilla, kernels, context_bytes=context_bytes)
    cells, traces = found["cell"], results.groupby("cell")["trace"]
    return results, found.assign(jobs=cells.map(traces.size()), alike=cells.map(traces.nunique()) == 1)


def _case(row: Mapping[Any, Any]) -> str:
    """Name a case of several jobs: the trace, and how many jobs run it; or how many networks there are."""
    stem, jobs = Path(str(row["trace"])).stem, int(str(row["jobs"]))
    if not row["alike"]:
        return f"{jobs} networks"
    return stem if jobs == 1 else f"{stem} x{jobs}"
