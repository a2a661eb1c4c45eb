"""Published claims alongside what simulations show: experiments are run, measured, and judged by ranges."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, Unpack

from pydantic import Field

from g10sim.config.data import find_file
from g10sim.config.document import Document, load_document
from g10sim.config.load import load_run
from g10sim.config.presets import validated
from g10sim.config.problems import among
from g10sim.config.quantities import Spec, required
from g10sim.errors import not_found
from g10sim.experiment.run import Outcome, Running, run_experiments
from g10sim.files import write_csv
from g10sim.importers.gpg import import_gpg
from g10sim.reproduce.validation import TRACES
from g10sim.results.cases import Measured, breakdown
from g10sim.results.measures import Measure, measured_in
from g10sim.trace.format import save_trace

CLAIMS, DIRECTORY = "claims.csv", Path("experiments", "claims")
CASES = "cases.csv"
LIST = DIRECTORY / "claims.yaml"
REPRODUCED, IN_RANGE = "reproduced", "in range"
NOT_REPRODUCED, NOT_MEASURED = "not reproduced", "not measured"
BUNDLED, REFERENCE = "bundled", "published"
_COLUMNS = (
    *("claim", "system", "data", "published", "value", "verdict", "unit", "low", "high", "source", "says"),
    *("means", "experiment", "breakdown", "lacks"),
)

Range: TypeAlias = tuple[float, float]


class TracesSpec(Spec):
    """The published traces that an experiment takes in place of bundled ones, where they are at hand."""

    traces: tuple[str, ...] = Field(min_length=1)
    """MODEL/BATCH, below traces/ of the published data"""
    settings: tuple[str, ...] = ()
    """further settings, key=value"""


class ExperimentSpec(Spec):
    """Settings that shorten an experiment, and those for published traces."""

    quick: tuple[str, ...] = ()
    """settings of the short run, key=value"""
    published: TracesSpec | None = None
    """published traces"""


class TestedSpec(Spec):
    """Another measure of the same experiment: what a mechanism, switched on or off, changes."""

    says: str = Field(min_length=1)
    """what differs"""
    experiment: str | None = None
    """experiment, if it is another one"""
    measure: Measure


class ClaimSpec(Spec):
    """One published number: where it stands, what it means, how it is measured, what counts as the same."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    system: str = Field(min_length=1)
    """design that the claim is about"""
    source: str = Field(min_length=1)
    """where the number is from"""
    says: str = Field(min_length=1)
    """the claim"""
    means: str = Field(min_length=1)
    """its average and its cells, and ours where they differ"""
    published: float = Field(allow_inf_nan=False)
    unit: Literal["percent", "factor", "number"] = "percent"
    reproduced: Range
    """values that reproduce the claim"""
    in_range: Range
    """values near enough to say so"""
    experiment: str
    """name of an experiment of the list"""
    measure: Measure
    lacks: str = ""
    """mechanism or datum that is missing where it is not reproduced"""
    tested: tuple[TestedSpec, ...] = ()
    """what was switched on or off to see that"""

    @required
    def _ranges_are_nested(self) -> Iterator[str]:
        (low, high), (lowest, highest) = self.reproduced, self.in_range
        if not lowest <= low <= high <= highest:
            problem = f"in_range: found {list(self.in_range)}"
            yield f"{problem}; allowed: a range around 'reproduced', {[low, high]}"

    def verdict(self, value: float | None) -> str:
        """Return the verdict on a measured value."""
        if value is None:
            return NOT_MEASURED
        ranges = ((REPRODUCED, self.reproduced), (IN_RANGE, self.in_range))
        return next((said for said, (low, high) in ranges if low <= value <= high), NOT_REPRODUCED)


class ClaimsSpec(Spec):
    """Claims, and the experiments behind them, ``experiments/claims/NAME.yaml``, by name."""

    experiments: dict[str, ExperimentSpec]
    claims: tuple[ClaimSpec, ...] = Field(min_length=1)

    @required
    def _names_are_known_and_different(self) -> Iterator[str]:
        seen = set[str]()
        for position, claim in enumerate(self.claims):
            used = [claim.experiment, *(one.experiment for one in claim.tested if one.experiment)]
            for name in used:
                if name not in self.experiments:
                    yield f"claims.{position}.experiment: found '{name}'{not_found(name, self.experiments)}"
            if claim.name in seen:
                yield f"claims.{position}.name: found '{claim.name}' twice; allowed: different names"
            seen.add(claim.name)

    def of(self, systems: Collection[str]) -> list[ClaimSpec]:
        """Return the claims about some designs; about all without any. Raises ConfigError."""
        return among(self.claims, [claim.system for claim in self.claims], systems, "--system: found")


@dataclass(frozen=True)
class Finding:
    """A claim and what was measured: with bundled traces or published ones, and what else was tested."""

    claim: ClaimSpec
    data: str
    measured: Measured
    tested: tuple[tuple[str, Measured], ...]

    @property
    def verdict(self) -> str:
        """The verdict on the measured value."""
        return self.claim.verdict(self.measured.value)

    def as_row(self) -> dict[str, object]:
        """Columns of claims.csv."""
        claim, value = self.claim, self.measured.value
        names = ("system", "published", "unit", "source", "says", "means")
        return {name: getattr(claim, name) for name in names} | {
            "claim": claim.name,
            "data": self.data,
            "value": value,
            "verdict": self.verdict,
            "low": claim.reproduced[0],
            "high": claim.reproduced[1],
            "experiment": claim.experiment,
            "breakdown": breakdown(self.measured.cells),
            "lacks": claim.lacks if self.verdict == NOT_REPRODUCED else "",
        }

    def case_rows(self) -> Iterable[dict[str, object]]:
        """Rows of cases.csv: the cells that a value is made of, then what was tested."""
        named = {"claim": self.claim.name, "data": self.data, "unit": self.claim.unit}
        for case, value in self.measured.cases.items():
            note = self.measured.notes.get(case, "")
            yield named | {"tested": "", "case": case, "value": value, "note": note}
        for says, measured in self.tested:
            yield named | {"tested": says, "case": "", "value": measured.value, "note": ""}


def load_claims(path: Path = LIST) -> ClaimsSpec:
    """Read the list of claims. Raises ConfigError naming file, line and key."""
    document = load_document(find_file(str(path)))
    return validated(ClaimsSpec, document.data, document)


def check_claims(
    listed: ClaimsSpec,
    claims: Sequence[ClaimSpec],
    output: Path,
    *,
    quick: bool = False,
    reference: Path | None = None,
    **running: Unpack[Running],
) -> tuple[list[Finding], dict[str, Outcome]]:
    """Run the experiments behind claims, measure them, and write ``claims.csv`` and ``cases.csv``.

    ``quick`` takes each experiment's short form; with ``reference``, a directory of published data,
    experiments that name published traces also run with these. Raises ConfigError, PolicyError or TraceError
    before anything runs.
    """
    tested = ((claim.experiment, *(one.experiment for one in claim.tested)) for claim in claims)
    used = {name: listed.experiments[name] for some in tested for name in some if name}
    documents = {(name, BUNDLED): _document(name, spec.quick if quick else ()) for name, spec in used.items()}
    if reference is not None:
        for name, spec in used.items():
            if (published := spec.published) is not None:
                traces = _imported(reference, published.traces[:1] if quick else published.traces, output)
                documents[name, REFERENCE] = _document(name, [traces, *published.settings])
    named = {_directory(*key): document for key, document in documents.items()}
    outcomes = run_experiments(named, output, **running)
    findings = [
        _find(claim, data, output)
        for claim in claims
        for data in (BUNDLED, REFERENCE)
        if (claim.experiment, data) in documents
    ]
    write_csv(output / CLAIMS, _COLUMNS, (one.as_row() for one in findings))
    columns = ("claim", "data", "tested", "case", "value", "unit", "note")
    write_csv(output / CASES, columns, (row for one in findings for row in one.case_rows()))
    return findings, outcomes


def _document(name: str, settings: Sequence[str]) -> Document:
    return load_run(DIRECTORY / f"{name}.yaml", settings)


def _directory(name: str, data: str) -> str:
    return name if data == BUNDLED else f"{name}-{data}"


def _imported(reference: Path, traces: Sequence[str], output: Path) -> str:
    """Import published traces below the output; return the setting that names them. Raises TraceError."""
    directory = output / TRACES
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in traces:
        model, _, batch = name.partition("/")
        path = directory / f"{model}-{batch}.g10t"
        save_trace(import_gpg(reference / TRACES / model / batch), path)
        paths.append(str(path.resolve()))
    return f"workload.trace={paths}"


def _find(claim: ClaimSpec, data: str, output: Path) -> Finding:
    def measured(measure: Measure, experiment: str) -> Measured:
        place = f"claim {claim.name}, experiment {experiment}"
        return measured_in(output / _directory(experiment, data), measure, place)

    found = measured(claim.measure, claim.experiment)
    tested = tuple(
        (one.says, measured(one.measure, one.experiment or claim.experiment))
        for one in claim.tested
        if (output / _directory(one.experiment or claim.experiment, data)).is_dir()
    )
    return Finding(claim, data, found, tested)


def by_verdict(findings: Iterable[Finding]) -> Mapping[str, int]:
    """Count findings by verdict."""
    found = [one.verdict for one in findings]
    return {verdict: found.count(verdict) for verdict in (REPRODUCED, IN_RANGE, NOT_REPRODUCED, NOT_MEASURED)}
