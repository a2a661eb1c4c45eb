"""The Python interface: simulate one workload in this process, or run a configuration with workers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.data import data_path
from g10sim.config.document import Document
from g10sim.config.load import load_run, with_settings
from g10sim.config.presets import load_behaviour, load_system, load_variation
from g10sim.config.problems import check_choice
from g10sim.config.run import AUTO, checked_iterations
from g10sim.config.sharing import VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.display import Displayed, rounded_bytes, rounded_seconds
from g10sim.errors import ConfigError
from g10sim.experiment.cells import make_policy
from g10sim.experiment.cluster import DaskCluster
from g10sim.experiment.execution import simulate as simulate_workload
from g10sim.experiment.run import Outcome, run_experiment
from g10sim.experiment.workers import LocalProcesses
from g10sim.policies.interface.policy import Policy
from g10sim.records import RunRecords
from g10sim.results.columns import FURTHER, OK, Row, metric_columns, traffic
from g10sim.results.reading import read_results, read_table
from g10sim.results.tables import TABLES, records_table
from g10sim.results.timeline import chrome_trace
from g10sim.sim.preparation import as_recorded
from g10sim.trace.check import check_trace, other_gpu, told_of_other_gpu, untimed
from g10sim.trace.format import load_trace as read_trace
from g10sim.trace.format import save_trace
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Outcome", "Result", "load_trace", "read_results", "read_table", "run"]
__all__ += ["save_trace", "simulate", "system", "write_report"]

_WAYS = "_to_gpu_", "gpu_to_"
_RECORDS = ("summary", *TABLES, "timeline")


@dataclass(frozen=True, repr=False)
class Result(Displayed):
    """Result of :func:`simulate`.

    ``rows`` has one summary per job. ``records`` are the plain records that the tables are made of,
    ``recorded`` the names of those that were kept.
    """

    workload: Workload
    system: SystemSpec
    records: RunRecords
    rows: tuple[Row, ...]
    recorded: tuple[str, ...] = ()

    def display(self) -> Mapping[str, str]:
        """Return how the first (usually only) job went."""
        row, jobs = self.rows[0], len(self.rows)
        name = self.workload.jobs[0].trace.model
        if row.get("refused"):
            return {"trace": name, "outcome": "refused"}
        moved = [sum(int(row[column]) for column in traffic(row) if way in column) for way in _WAYS]
        bound = {"of bound": f"{float(row['of_bound']):.1%}"} if "of_bound" in row else {}
        return {
            "trace": f"{name} and {jobs - 1} more" if jobs > 1 else name,
            "of ideal": f"{self.performance:.1%}",
            **bound,
            "iteration": rounded_seconds(float(row["exec_ms"]) / 1000),
            "stalled": f"{float(row['stall_cycles']) / max(1.0, float(row['exec_cycles'])):.1%}",
            "moved in and out": " and ".join(map(rounded_bytes, moved)),
            "page faults": f"{int(row['page_faults']):,}",
            "iterations": f"{row['iterations']}, {'' if row.get('steady') else 'not '}steady",
        }

    @property
    def summary(self) -> dict[str, Any]:
        """Metrics of the first (usually only) job, by the column names of results.csv.

        Further ones are there as in results.csv, the bound where one holds.
        ``steady`` and ``spread`` are None after one iteration, ``period`` where iterations do not repeat,
        and all of a job that was refused.
        """
        row = self.rows[0]
        further = (column for group in FURTHER.values() for column in group.names)
        more = [column for column in further if column in row]
        columns = (*metric_columns(self.records.tiers), *more)
        return {column: row.get(column) for column in columns}

    @property
    def performance(self) -> float:
        """Ideal time over execution time of the first job: 1.0 is unlimited memory; nan: it was refused."""
        return float(self.rows[0].get("performance", nan))

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per job, with the columns of results.csv that figures of one cell read."""
        import pandas as pd

        jobs = self.workload.jobs
        rows = [
            {
                "cell": 0,
                "model": job.trace.model,
                "batch_size": job.trace.batch_size,
                "status": OK,
                "message": "",
                **row,
                **({"job": number, "gpu": job.gpu} if len(jobs) > 1 else {}),
            }
            for number, (job, row) in enumerate(zip(jobs, self.rows, strict=True))
        ]
        return pd.DataFrame(rows)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel execution. Raises ConfigError unless ``record`` had 'kernels'."""
        return self._table("kernels")

    @cached_property
    def migrations(self) -> pd.DataFrame:
        """One row per migration. Raises ConfigError unless ``record`` had 'migrations'."""
        return self._table("migrations")

    @cached_property
    def memory(self) -> pd.DataFrame:
        """One row per change of memory in use. Raises ConfigError unless ``record`` had 'memory'."""
        return self._table("memory")

    def _table(self, name: str) -> pd.DataFrame:
        self._check_recorded(name)
        return records_table(name, self.records, self.workload.jobs if name == "kernels" else ())

    def _check_recorded(self, name: str) -> None:
        if not {name, "timeline"} & set(self.recorded):
            raise ConfigError(f"{name}: was not recorded; allowed after: simulate(..., record=[{name!r}])")

    def timeline(self) -> dict[str, Any]:
        """Timeline for ui.perfetto.dev. Raises ConfigError unless ``record`` had 'timeline' or 'kernels'."""
        if "kernels" not in self.recorded:
            self._check_recorded("timeline")
        return chrome_trace(self.workload, self.system, self.records)


def load_trace(path: str | Path) -> Trace:
    """Read a trace and check it; a relative name is looked for in the bundled data, too.

    Raises TraceError naming file, line, what was found and what is allowed.
    """
    bundled = data_path(str(path))
    return read_trace(bundled if not Path(path).exists() and bundled.is_file() else path)


def system(name: str | Path | Mapping[str, Any], **changes: Any) -> SystemSpec:
    """Make a system from a preset, a file or a mapping, with changes such as ``host={"memory": "64 GiB"}``.

    Raises ConfigError naming the dotted key, what was found and what is allowed.
    """
    spec: dict[str, Any] = dict(name) if isinstance(name, Mapping) else {"preset": str(name)}
    return load_system({**spec, **changes})


def simulate(
    trace: Trace | Workload | str | Path,
    system: SystemSpec | str | Mapping[str, Any],
    policy: Policy | type[Policy] | str | Mapping[str, Any],
    *,
    iterations: int | Literal["auto"] = AUTO,
    compat: BehaviourSpec | str | Mapping[str, Any] | None = None,
    variation: VariationSpec | Mapping[str, Any] | None = None,
    seed: int = 0,
    record: str | Iterable[str] = ("summary",),
    check: bool = False,
) -> Result:
    """Simulate a trace (a Trace, a file, or a Workload of jobs) on a system under a policy.

    ``iterations`` is how often a trace is run; ``auto``: until they repeat, at most 12
    times, and twice where ``compat`` reports the fastest. A Workload has those of its jobs.
    ``variation``, such as ``{"distribution": "uniform", "magnitude": 0.1}``, multiplies kernel times by
    random factors, decided by ``seed``, that the policy does not know; without it a Workload keeps its own.
    ``record`` names what to keep alongside the summary: kernels, migrations, memory, or timeline for all that
    a timeline shows. Warns of a trace whose kernel times are for another GPU than the system's.
    ``check`` tests every invariant on the way. Raises UnsupportedError when the policy, or none, can run
    the workload, and other errors of :mod:`g10sim.errors` for bad input.
    """
    tables = _record_names(record)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed: found {seed!r}; allowed: a whole number from 0")
    try:
        checked_iterations(iterations)
    except ValueError as error:
        raise ConfigError(f"iterations: {error}") from None
    machine = load_system(system)
    if isinstance(policy, type) and issubclass(policy, Policy):
        policy = policy()
    if not isinstance(policy, Policy):
        if not isinstance(policy, str | Mapping):
            allowed = "a name, a mapping with name, a Policy or its class"
            raise ConfigError(f"policy: found {policy!r}; allowed: {allowed}")
        policy = make_policy({"name": policy} if isinstance(policy, str) else policy, seed)
    workload = _workload(trace, iterations)
    if variation is not None:
        workload = Workload(workload.jobs, load_variation(variation), seed)
    behaviour = load_behaviour(compat)
    if behaviour != GPG:
        _warn_of_times(workload, machine.gpu.name)
    wanted = tuple(table for table in tables if table != "summary")
    records, rows = simulate_workload(workload, machine, policy, behaviour, tables=wanted, check=check)
    return Result(as_recorded(workload, machine, policy), machine, records, tuple(rows), wanted)


def run(
    config: str | Path | Mapping[str, Any],
    *,
    output: str | Path | None = None,
    workers: int = 1,
    scheduler: str | None = None,
    settings: Iterable[str] = (),
    force: bool = False,
    check: bool = False,
) -> Outcome:
    """Run a configuration (a YAML file or a mapping of the same form) as ``g10sim run`` does.

    ``workers`` cells run at a time on this machine, or with ``scheduler`` as many as the Dask cluster of that
    address has room for. ``settings`` are texts ``dotted.key=value``. Finished cells in the output
    directory are reused unless ``force``. Raises ConfigError, PolicyError or TraceError before anything
    runs.
    """
    if isinstance(config, Mapping):
        document = with_settings(Document(dict(config), ""), settings)
    else:
        document = load_run(Path(config), settings)
    directory = None if output is None else Path(output)
    executor = LocalProcesses(workers) if scheduler is None else DaskCluster(scheduler)
    return run_experiment(document, output=directory, executor=executor, force=force, check=check)


def write_report(directory: str | Path, output: str | Path | None = None) -> Path:
    """Write a directory of results as one HTML file (default: ``DIR/report.html``) and return its path.

    Raises ConfigError where results are missing or the file cannot be written.
    """
    from g10sim.explain import report  # draws figures: matplotlib is slow to import

    return report.write_report(directory, output)


def _warn_of_times(workload: Workload, gpu: str) -> None:
    for trace in {job.trace.model: job.trace for job in workload.jobs}.values():
        if warning := untimed(trace):
            warnings.warn(f"{trace.model}: {warning}", stacklevel=3)
        if timed_for := other_gpu(trace.origin, gpu):
            warnings.warn(told_of_other_gpu([trace.model], timed_for, gpu), stacklevel=3)


def _record_names(found: Any) -> tuple[str, ...]:
    """Return names of records that were given as a text or a list of texts. Raises ConfigError."""
    is_list = isinstance(found, Iterable) and not isinstance(found, str)
    names = tuple(found) if is_list else (found,)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"record: found {found!r}; allowed: a list of {', '.join(_RECORDS)}")
    for name in names:
        check_choice(name, _RECORDS, "record: found")
    return names


def _workload(trace: Trace | Workload | str | Path, iterations: int | Literal["auto"]) -> Workload:
    if isinstance(trace, Workload):
        return trace
    if isinstance(trace, Trace):
        check_trace(trace, f"trace '{trace.model}'")
    else:
        trace = load_trace(trace)
    return Workload((Job(trace, iterations=iterations),))
