"""Measurements of real machines alongside what simulations predict: a list of rows, run and judged."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal, TypeAlias, Unpack, get_args

import numpy as np
from pydantic import Field

from g10sim.analysis.gpus import load_gpu, retimed
from g10sim.config.data import data_path, find_file
from g10sim.config.document import Document, load_document, merge
from g10sim.config.load import with_values
from g10sim.config.presets import validated
from g10sim.config.problems import among
from g10sim.config.quantities import Spec, required
from g10sim.config.run import UncertaintySpec
from g10sim.errors import ConfigError, G10SimError, not_found
from g10sim.experiment.cells import one_line
from g10sim.experiment.run import Outcome, Running, run_experiments
from g10sim.files import write_csv, write_yaml
from g10sim.grouping import grouped
from g10sim.reproduce.measured_traces import Capture, RowTraces, ScanSpec, kernel_shares
from g10sim.results.cases import breakdown
from g10sim.results.columns import OK
from g10sim.results.measures import Measure, measured_in
from g10sim.trace.batches import on_cpu
from g10sim.trace.format import load_trace

MEASURED, SUMMARY, WIDTHS = "measured.csv", "summary.csv", "uncertainty.yaml"
DIRECTORY = Path("experiments", "measured")
Part: TypeAlias = Literal["kernels", "links", "drives", "faults", "cpu", "memory"]
FITTED, PREDICTED = "fitted", "predicted"
NEAR = 1.25
"""Factor between predicted and measured from which on a row says where its time goes."""
_COLUMNS = (
    *("row", "class", "part", "used", "measured", "predicted", "ratio", "unit", "says", "machine", "source"),
    *("workload", "cause", "message"),
)
_SUMMARY_COLUMNS = ("class", "used", "rows", "median", "low", "high", "off", "factor", "near", "worst")


class RowSpec(Spec):
    """One measurement: where it stands, on which machine, of which workload, and how that is simulated.

    The workload is a ``capture``, a ``trace`` or a ``scan``. ``run`` is a run configuration without it, and
    ``measure`` reads the number from its results. Kernels take the times of the ``gpu``, those of a trace
    without one. A row that ``cannot`` be simulated has none of the three, and counts nowhere.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    of: str = Field(min_length=1)
    """class of rows that it is judged with"""
    part: Part
    """part of a machine whose times it tests, or memory"""
    source: str = Field(min_length=1)
    """name of a source of the list"""
    machine: str = Field(min_length=1)
    says: str = Field(min_length=1)
    """what was measured"""
    capture: str | None = None
    """words of 'g10sim trace capture' without those of --gpu and -o"""
    trace: str | None = None
    """trace file"""
    scan: ScanSpec | None = None
    """kernels that read tensors in turn"""
    cpu_layers: int = Field(default=0, ge=0)
    """layers, the first ones, that run on the CPU"""
    cpu_modules: tuple[str, ...] = ()
    """other modules on the CPU: parts of paths"""
    gpu: str | None = None
    """GPU whose kernel times are simulated"""
    run: dict[str, Any]
    """run configuration without its trace"""
    measure: Measure
    measured: float = Field(gt=0, allow_inf_nan=False)
    unit: str = Field(min_length=1)
    used: Literal["fitted", "predicted"]
    """fitted: a number of g10sim was chosen with it in view; predicted: none was"""
    lacks: str = ""
    """what is known to be missing from the simulation"""
    cannot: str = ""
    """why it cannot be simulated"""

    @required
    def _one_workload(self) -> Iterator[str]:
        given = [name for name in ("capture", "trace", "scan") if getattr(self, name) is not None]
        if self.cannot and given:
            yield f"found 'cannot' and '{given[0]}'; allowed: one of them"
        if not self.cannot and len(given) != 1:
            found = " and ".join(f"'{name}'" for name in given) or "no workload"
            yield f"found {found}; allowed: one of capture, trace, scan"
        if self.capture is not None and self.gpu is None:
            yield "gpu: found none with 'capture'; allowed: a GPU"
        if self.capture is None and (self.cpu_layers or self.cpu_modules):
            yield "found layers or modules on the CPU without 'capture'; allowed: those of a capture"
        try:
            shlex.split(self.capture or "")
        except ValueError as error:
            yield f"capture: found a command that cannot be split ({error}); allowed: words of one"


class MeasuredSpec(Spec):
    """A list of rows with its sources, by name. ``defaults`` holds keys of rows that do not give them."""

    sources: dict[str, str]
    """repository or paper, file and date, by name"""
    defaults: dict[str, Any] = Field(default={})
    rows: tuple[RowSpec, ...] = Field(min_length=1)

    @required
    def _sources_are_listed_and_used(self) -> Iterator[str]:
        for position, row in enumerate(self.rows):
            if row.source not in self.sources:
                yield f"rows.{position}.source: found '{row.source}'{not_found(row.source, self.sources)}"
        used = {row.source for row in self.rows}
        for name in (one for one in self.sources if one not in used):
            yield f"sources.{name}: found no row that names it; allowed: sources of rows"


@dataclass(frozen=True)
class Row:
    """A row with the text of its source, and the document that says where its keys stand."""

    spec: RowSpec
    source: str
    document: Document

    def run_document(self, trace: Path) -> Document:
        """Return the run configuration of the row with its trace."""
        data = merge(self.spec.run, {"name": self.spec.name, "workload": {"trace": str(trace.resolve())}})
        document = Document(data, f"{self.document.source}, row {self.spec.name}", self.document.path)
        if self.spec.gpu is None:
            return document
        return with_values(document, {"system.gpu.name": self.spec.gpu, "workload.kernel_times": "system"})


@dataclass(frozen=True)
class Judged:
    """A row and what was simulated; ``predicted`` is None where nothing was, and ``message`` says why."""

    row: Row
    predicted: float | None
    cause: str = ""
    message: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return None if self.predicted is None else self.predicted / self.row.spec.measured

    @property
    def time_factor(self) -> float | None:
        """Measured time over predicted time; of a rate that is its ratio."""
        ratio = self.ratio
        return ratio if ratio is None or self.row.spec.unit.endswith("/s") else 1 / ratio

    def as_row(self) -> dict[str, object]:
        """Columns of measured.csv."""
        spec = self.row.spec
        names = ("part", "used", "measured", "unit", "says", "machine")
        return {name: getattr(spec, name) for name in names} | {
            "row": spec.name,
            "class": spec.of,
            "source": self.row.source,
            "workload": spec.capture or spec.trace or ("scan" if spec.scan else ""),
            "predicted": self.predicted,
            "ratio": self.ratio,
            "cause": self.cause,
            "message": self.message,
        }


def load_measured(path: Path = DIRECTORY) -> list[Row]:
    """Read a list of rows, or all lists of a directory. Raises ConfigError naming file, line and key."""
    if path == DIRECTORY or path.is_dir():
        directory = path if path.is_dir() else data_path(*DIRECTORY.parts)
        paths = sorted(directory.glob("*.yaml"))
        if not paths:
            raise ConfigError(f"--list: found no list in {directory}; allowed: files that end in .yaml")
    else:
        paths = [find_file(str(path))]
    rows: dict[str, Row] = {}
    for one in paths:
        document = load_document(one)
        listed = validated(MeasuredSpec, _with_defaults(document), document)
        for position, spec in enumerate(listed.rows):
            if spec.name in rows:
                problem = f"found '{spec.name}' twice"
                raise document.error(("rows", position, "name"), f"{problem}; allowed: different names")
            rows[spec.name] = Row(spec, listed.sources[spec.source], document)
    return list(rows.values())


def _with_defaults(document: Document) -> dict[str, Any]:
    """Lay each row of a document over its defaults; what is no row is left for the check."""
    data, defaults = dict(document.data), document.data.get("defaults")
    if isinstance(defaults, Mapping) and isinstance(data.get("rows"), list):
        data["rows"] = [merge(defaults, row) if isinstance(row, Mapping) else row for row in data["rows"]]
    return data


def of_classes(rows: Sequence[Row], classes: Collection[str]) -> list[Row]:
    """Return the rows of some classes; all without any. Raises ConfigError for a class that no row has."""
    return among(rows, [row.spec.of for row in rows], classes, "--class: found")


def check_measured(
    rows: Sequence[Row], output: Path, *, capture: Capture | None, **running: Unpack[Running]
) -> list[Judged]:
    """Make the traces of rows, simulate and judge them; write measured.csv, summary.csv and uncertainty.yaml.

    ``capture`` makes traces of captured rows; None takes those that ship, and leaves out rows without one. A
    row whose trace cannot be made is judged without a number. Raises ConfigError or PolicyError before
    anything is simulated.
    """
    traces = RowTraces(output / "traces", capture, force=running.get("force", False))
    found: dict[str, Path] = {}
    failed: dict[str, str] = {}
    for row in rows:
        if row.spec.cannot:
            failed[row.spec.name] = f"cannot be simulated: {row.spec.cannot}"
            continue
        try:
            if (path := _trace(row, traces)) is not None:
                found[row.spec.name] = path
        except G10SimError as error:
            failed[row.spec.name] = one_line(error)
    documents = {
        row.spec.name: row.run_document(found[row.spec.name]) for row in rows if row.spec.name in found
    }
    outcomes = run_experiments(documents, output, **running)
    judged = [
        _judged(row, outcomes[row.spec.name], found[row.spec.name])
        if row.spec.name in outcomes
        else Judged(row, None, message=failed[row.spec.name])
        for row in rows
        if row.spec.name in outcomes or row.spec.name in failed
    ]
    write_csv(output / MEASURED, _COLUMNS, (one.as_row() for one in judged))
    summed = (vars(one) | {"class": one.of} for one in summaries(judged))
    write_csv(output / SUMMARY, _SUMMARY_COLUMNS, summed)
    write_yaml(output / WIDTHS, widths(judged))
    return judged


def _trace(row: Row, traces: RowTraces) -> Path | None:
    """Return the trace of a row; None if it does not ship and none is captured."""
    spec = row.spec
    if spec.capture is not None and spec.gpu is not None:
        path = traces.captured(spec.name, spec.capture, spec.gpu)
        if path is None or not (spec.cpu_layers or spec.cpu_modules):
            return path
        placed = on_cpu(load_trace(path), range(spec.cpu_layers), str(path), modules=spec.cpu_modules)
        return traces.written(f"{spec.name}-placed", placed)
    if spec.scan is not None:
        return traces.written(spec.name, spec.scan.trace(spec.name))
    return find_file(str(spec.trace), row.document.directory)


def _judged(row: Row, outcome: Outcome, trace: Path) -> Judged:
    """Measure a row and, where prediction and measurement are far apart, say where the time goes."""
    messages = [result.message for result in outcome.results if result.status != OK]
    if messages:
        return Judged(row, None, message=messages[0])
    place = f"{row.document.source}, row {row.spec.name}"
    measured = measured_in(outcome.directory, row.spec.measure, place)
    value = measured.value
    if value is None or factor(value / row.spec.measured) <= NEAR:
        return Judged(row, value)
    run = load_trace(trace) if row.spec.gpu is None else retimed(load_trace(trace), load_gpu(row.spec.gpu))
    texts = (row.spec.lacks or "cause not known", breakdown(measured.cells), kernel_shares(run))
    return Judged(row, value, cause="; ".join(filter(None, texts)))


def factor(ratio: float) -> float:
    """Return by what factor two values are apart, whichever is larger."""
    return max(ratio, 1 / ratio)


@dataclass(frozen=True)
class Summary:
    """Ratios of predicted to measured of the rows of a class.

    ``low`` and ``high`` are their 10 % and 90 % quantiles. ``off`` is the median and ``factor`` the geometric
    mean of the factors by which each is off, ``near`` the share that is off by at most ``NEAR``, ``worst``
    the largest factor.
    """

    of: str
    used: str
    rows: int
    median: float
    low: float
    high: float
    off: float
    factor: float
    near: float
    worst: float


_QUANTILES = (0.1, 0.9)
ALL = "all"
"""Class of a summary over all classes."""


def summaries(judged: Sequence[Judged]) -> list[Summary]:
    """Sum up predicted rows by class and over all, then fitted ones."""
    found = []
    for used in (PREDICTED, FITTED):
        of_use = [one for one in judged if one.row.spec.used == used and one.ratio is not None]
        groups = grouped((one.row.spec.of, one) for one in of_use)
        found += [_summed(name, used, group) for name, group in (groups | {ALL: of_use}).items() if group]
    return found


def widths(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return how far times of each part of a machine are off, as an uncertainty that a run can have.

    They are the quantiles of 10 % and 90 % of measured over predicted time of predicted rows, and reach 1.
    """
    found: dict[str, Any] = {}
    sources = {}
    for part in (name for name in get_args(Part) if name in UncertaintySpec.model_fields):
        rows = [one for one in judged if one.row.spec.part == part and one.row.spec.used == PREDICTED]
        factors = [one.time_factor for one in rows if one.time_factor is not None]
        if factors:
            low, high = (round(float(value), 2) for value in np.quantile(factors, _QUANTILES))
            found[part] = [min(low, 1.0), max(high, 1.0)]
            sources[part] = f"measured over predicted time, 10 % and 90 % of {len(factors)} predicted rows"
    return found | {"sources": sources}


def _summed(name: str, used: str, judged: Sequence[Judged]) -> Summary:
    ratios = [one.ratio for one in judged if one.ratio is not None]
    factors = [factor(ratio) for ratio in ratios]
    median, low, high = (float(value) for value in np.quantile(ratios, (0.5, *_QUANTILES)))
    off, mean = float(np.median(factors)), geometric_mean(factors)
    near = sum(one <= NEAR for one in factors) / len(factors)
    return Summary(name, used, len(ratios), median, low, high, off, mean, near, max(factors))
