"""Published claims: the list that comes with g10sim, and experiments that are run, measured and judged."""

import csv
from pathlib import Path

import pytest

from g10sim.config.data import data_path
from g10sim.config.load import load_run, run_config
from g10sim.errors import ConfigError
from g10sim.experiment.expand import expand
from g10sim.reproduce.claims import BUNDLED, LIST, check_claims, load_claims

LISTED = load_claims()
CLAIM = """
experiments:
  small:
    quick: ['policies=[ideal, base_uvm]']
claims:
  - name: faster
    system: Made up
    source: this file
    says: faster
    means: as it says
    published: 1
    unit: factor
    reproduced: [{low}, 100]
    in_range: [{lowest}, 200]
    experiment: small
    measure: {{of: comparison, column: exec_cycles, policy: ideal, against: base_uvm, value: speedup}}
    lacks: nothing
    tested:
      - says: the other way round
        measure: {{of: comparison, column: exec_cycles, policy: base_uvm, against: ideal, value: speedup}}
"""
RUN = """
name: small
workload: {trace: chain.g10t}
system: {preset: a100-40g-pcie3-znand, gpu: {memory: 6500 KiB}}
policies: [ideal, base_uvm, g10]
"""


def listed(directory, low=1.0, lowest=0.5):
    path = directory / "list.yaml"
    path.write_text(CLAIM.format(low=low, lowest=lowest))
    return path


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A directory with one experiment and a trace that does not fit in GPU memory."""
    from g10sim.trace.format import save_trace
    from g10sim.trace.synthetic import chain

    monkeypatch.chdir(tmp_path)
    Path("experiments/claims").mkdir(parents=True)
    Path("experiments/claims/small.yaml").write_text(RUN)
    save_trace(chain(8), tmp_path / "chain.g10t")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED.experiments)
def test_experiments_can_be_run_also_in_short(name):
    path = Path("experiments", "claims", f"{name}.yaml")
    whole, short = expand(load_run(path)), expand(load_run(path, LISTED.experiments[name].quick))
    assert 0 < len(short.cells) <= len(whole.cells)
    labels = {cell.label for cell in whole.cells}
    for claim in LISTED.claims:
        for measure, where in [(claim.measure, claim.experiment)] + [
            (one.measure, one.experiment or claim.experiment) for one in claim.tested
        ]:
            if where == name and hasattr(measure, "policy"):
                assert measure.policy in labels, claim.name
                assert getattr(measure, "against", measure.policy) in labels, claim.name


def test_every_experiment_of_the_directory_is_listed():
    files = {path.stem for path in data_path("experiments", "claims").glob("*.yaml")} - {LIST.stem}
    assert files == set(LISTED.experiments)
    for name in files:
        assert run_config(load_run(Path("experiments", "claims", f"{name}.yaml"))).name == name


def test_every_claim_says_where_it_is_from_and_what_is_missing():
    for claim in LISTED.claims:
        assert any(word in claim.source for word in ("abstract", "figure", "evaluation", "plots")), claim.name
        assert claim.tested or claim.lacks or claim.system == "G10", claim.name


@pytest.mark.parametrize(
    ("low", "lowest", "verdict"),
    [(1.0, 0.5, "reproduced"), (90, 1.0, "in range"), (90, 80, "not reproduced")],
)
def test_a_claim_is_measured_and_judged_by_its_ranges(small, low, lowest, verdict):
    claims = load_claims(listed(small, low, lowest))
    findings, outcomes = check_claims(claims, claims.claims, small / "out")
    (one,) = findings
    assert (one.verdict, one.data) == (verdict, BUNDLED)
    assert one.measured.value > 1
    assert [(says, measured.value) for says, measured in one.tested] == [
        ("the other way round", pytest.approx(1 / one.measured.value))
    ]
    assert list(outcomes) == ["small"]
    with (small / "out" / "claims.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["verdict"], float(row["value"])) == (verdict, one.measured.value)
    assert row["lacks"] == ("nothing" if verdict == "not reproduced" else "")
    assert row["breakdown"].startswith("ideal: computing 100.0%; at most")
    with (small / "out" / "cases.csv").open(newline="") as file:
        assert [row["tested"] for row in csv.DictReader(file)] == ["", "the other way round"]


def test_a_measure_that_fails_is_told_with_its_claim(small):
    path = listed(small)
    path.write_text(path.read_text().replace("column: exec_cycles", "column: exec_s", 1))
    claims = load_claims(path)
    with pytest.raises(ConfigError, match=r"^claim faster, experiment small: found no column 'exec_s'"):
        check_claims(claims, claims.claims, small / "out")


def test_a_short_run_has_fewer_cells(small):
    claims = load_claims(listed(small))
    _, outcomes = check_claims(claims, claims.claims, small / "out", quick=True)
    assert [len(outcome.cells) for outcome in outcomes.values()] == [2]


@pytest.mark.parametrize(
    ("found", "given", "message"),
    [
        ("in_range: [0.5, 200]", "in_range: [2, 200]", "found [2.0, 200.0]; allowed: a range around"),
        ("experiment: small", "experiment: smal", "found 'smal'"),
        ("of: comparison", "of: guess", r"measure\.of: found 'guess'"),
        ("    lacks: nothing", "    lack: nothing", "unknown key"),
    ],
)
def test_bad_lists_name_file_and_key(small, found, given, message):
    path = listed(small)
    path.write_text(path.read_text().replace(found, given, 1))
    with pytest.raises(ConfigError, match=r"list.yaml") as refused:
        load_claims(path)
    import re

    assert re.search(message.replace("[", r"\["), str(refused.value)), str(refused.value)


def test_unknown_designs_are_refused():
    with pytest.raises(ConfigError, match=r"--system: found 'G11' \(did you mean 'G10'"):
        LISTED.of(["G11"])
    assert {claim.system for claim in LISTED.of(["vDNN"])} == {"vDNN"}
