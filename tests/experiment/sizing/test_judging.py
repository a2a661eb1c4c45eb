"""Searches with a formula in place of the simulator: what is said of policies that are not monotone."""

import csv

import pytest

from g10sim.config.document import Document
from g10sim.errors import ConfigError
from g10sim.experiment.cells import CellResult
from g10sim.experiment.expand import expand
from g10sim.results.reading import CURVES
from g10sim.sizing import cases, searches
from g10sim.sizing.cases import Case
from g10sim.sizing.resources import PriceList, find
from g10sim.sizing.searches import Goal, size

GB = 10**9
CONFIG = {
    "name": "formula",
    "system": {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "40 GiB"}},
    "policies": ["base_uvm"],
}


@pytest.fixture
def sized(trace_file, tmp_path, monkeypatch):
    """Sizes the link of a machine on which a formula of its rate gives the performance."""

    def run(formula, target=0.5, prices=None, policies=("base_uvm",), force=False, **goal):
        asked = []

        def run_cells(cells, *_, **options):
            assert options["force"] is force
            asked.extend(cell.system.pcie.bandwidth for cell in cells)
            found = [formula(cell.system.pcie.bandwidth / GB) for cell in cells]
            failed = CellResult("failed", "it broke", (), {})
            return [
                failed if one is None else CellResult("ok", "", ({"performance": one},), {}) for one in found
            ], 0

        monkeypatch.setattr(cases, "run_cells", run_cells)

        def run_experiments(documents, *_, **__):
            run.documents = documents
            return {}

        monkeypatch.setattr(searches, "run_experiments", run_experiments)
        data = {**CONFIG, "policies": list(policies), "workload": {"trace": str(trace_file)}}
        listed = PriceList(currency="EUR", prices=prices or {})
        run.sizing = size(
            Document(data, ""), Goal(target, **goal), [find("link")], listed, tmp_path, force=force
        )
        return run.sizing.rows[0], asked

    return run


def test_a_monotone_policy_has_nothing_to_be_noted(sized):
    row, asked = sized(lambda rate: rate / (rate + 20))
    assert 20 * GB <= row["answer_amount"] <= 20.4 * GB
    assert row["holds"]
    assert row["note"] == ""
    assert len(asked) == len(set(asked)) == row["amounts"]


def test_the_files_have_what_was_simulated_and_the_bound_at_even_ratios_between(sized, tmp_path):
    def formula(rate):
        return rate / (rate + 20)

    row, asked = sized(formula)
    link = find("link")
    amounts = {key: link.quantity.parse(row[key]) / GB for key in ("configured", "answer", "above", "below")}
    assert [row["configured_performance"], row["performance"]] == [
        formula(amounts["configured"]),
        formula(amounts["answer"]),
    ]
    assert row["below_performance"] == formula(amounts["below"]) < 0.5
    assert row["above_performance"] == formula(amounts["above"]) > 0.5
    with (tmp_path / CURVES).open(newline="") as file:
        points = list(csv.DictReader(file))
    assert [float(point["amount"]) for point in points] == sorted(float(point["amount"]) for point in points)
    simulated = [point for point in points if point["status"]]
    assert [link.quantity.parse(point["text"]) for point in simulated] == sorted(set(asked))
    between = [float(point["amount"]) for point in points if not point["status"]]
    low, high = min(asked) / GB, max(asked) / GB
    assert between == pytest.approx([low * (high / low) ** (step / 60) for step in range(1, 60)], abs=1e-6)


def test_what_was_simulated_is_a_sweep_that_can_be_run_again(sized):
    _, asked = sized(lambda rate: rate / (rate + 20))
    data = sized.documents["link"].data
    assert data["sweep"] == {"system.pcie.bandwidth": [find("link").text(one) for one in sorted(set(asked))]}
    assert (data["policies"], data["resolved"], data["seed"]) == ([{"name": "base_uvm"}], True, [0])


@pytest.mark.parametrize("force", [True, False])
def test_cells_that_are_stored_are_simulated_again_if_that_is_asked_for(sized, force):
    assert sized(lambda rate: rate / (rate + 20), force=force)[0]["holds"]


@pytest.mark.parametrize("allowed", [12_345_678_000, 12_324_000_000, 12_311_000_000])
def test_the_search_begins_at_an_amount_that_the_bound_allows(sized, monkeypatch, allowed):
    monkeypatch.setattr(cases.Search, "_allowed", lambda *_: (allowed - 1000, allowed))
    row, asked = sized(lambda rate: rate / (rate + 20))
    assert allowed <= asked[0] <= allowed * 1.01
    assert 20 * GB <= row["answer_amount"] <= 20.4 * GB


def test_a_policy_that_gets_slower_with_more_is_told(sized):
    row, _ = sized(lambda rate: 0.6 if 10 <= rate < 10.9 or 11.5 <= rate < 13 else 0.4)
    assert 10 * GB <= row["answer_amount"] <= 10.2 * GB
    assert not row["holds"]
    assert row["note"].startswith(f"not monotone: {row['above']}, ")
    assert row["note"].endswith("do not reach the target")


def test_less_that_reaches_it_too_is_told(sized):
    row, _ = sized(lambda rate: 0.6 if rate >= 20 or 9.5 <= rate <= 10.5 else 0.4)
    assert 20 * GB <= row["answer_amount"] <= 20.4 * GB
    assert row["holds"]
    half = find("link").text(row["answer_amount"] // 2)
    assert row["note"] == f"not monotone: {half} reach the target, too"


def test_a_target_that_the_policy_never_reaches(sized):
    row, asked = sized(lambda rate: 0.4)
    assert row["status"] == "not reached"
    assert row["reason"] == "with 1 TB/s of PCIe bandwidth the policy reaches 0.4000 of ideal"
    assert max(asked) == 1000 * GB
    assert "answer" not in row


def test_a_target_that_is_always_reached(sized):
    row, _ = sized(lambda rate: 0.6)
    assert row["answer"] == "10 MB/s"
    assert not row["holds"]
    assert row["note"] == "nothing less can be asked for"


@pytest.mark.parametrize(
    ("formula", "answer"), [(lambda rate: rate / 40, "20 GB/s"), (lambda rate: 0.5, "10 MB/s")]
)
def test_what_is_exactly_the_target_reaches_it(sized, monkeypatch, formula, answer):
    def bound(case, system):  # the policy is as fast as the bound allows
        return formula(system.pcie.bandwidth / GB), "the link is short"

    monkeypatch.setattr(Case, "best", bound)
    row, _ = sized(formula)
    assert (row["status"], row["answer"]) == ("found", answer)


def test_cases_are_told_apart_by_their_names(trace_file):
    data = {
        **CONFIG,
        "workload": {"trace": str(trace_file)},
        "sweep": {"system.host.memory": ["1 GiB", "2 GiB"]},
    }
    cases = searches.cases_of(expand(Document({**data, "policies": ["ideal", "base_uvm", "deepum"]}, "")))
    assert [(case.named()["policy"], case.named()["system.host.memory"]) for case in cases] == [
        ("base_uvm", "1 GiB"),
        ("deepum", "1 GiB"),
        ("base_uvm", "2 GiB"),
        ("deepum", "2 GiB"),
    ]


def test_an_answer_costs_what_its_list_says_and_is_compared_with_what_is_configured(sized):
    """7.50 EUR a GB/s, for the 20 to 20.4 GB/s of the answer and for what the machine has."""
    price = {"price": 7.5, "for": "1 GB/s", "source": "a shop", "date": "2026"}
    row, _ = sized(lambda rate: rate / (rate + 20), prices={"link": price})
    answer, configured = row["answer_amount"] / GB, find("link").quantity.parse(row["configured"]) / GB
    assert row["cost"] == pytest.approx(7.5 * answer, abs=0.005)
    assert row["added_cost"] == pytest.approx(7.5 * (answer - configured), abs=0.011)
    assert (row["currency"], row["cheapest"]) == ("EUR", True)
    assert "cost" not in sized(lambda rate: rate / (rate + 20))[0]


def test_a_search_that_fails_is_a_failure_with_its_reason(sized):
    row, _ = sized(lambda rate: None)
    assert (row["status"], row["reason"]) == ("failed", "it broke")
    (failure,) = sized.sizing.failures
    assert failure == (f"link ({row['trace']}, base_uvm)", "it broke")
    sized(lambda rate: rate / (rate + 20))
    assert sized.sizing.failures == []


def test_searches_of_several_cases_are_numbered(sized):
    sized(lambda rate: rate / (rate + 20), policies=("base_uvm", "deepum"))
    assert [row["search"] for row in sized.sizing.rows] == ["link-1", "link-2"]
    assert list(sized.documents) == ["link-1", "link-2"]


@pytest.mark.parametrize(
    ("target", "precision", "message"),
    [
        (0, 0.02, "--target: found 0; allowed: above 0, at most 1"),
        (1.01, 0.02, "--target: found 1.01; allowed: above 0, at most 1"),
        (0.5, 0, "--precision: found 0; allowed: above 0, at most 0.1"),
        (0.5, 0.11, "--precision: found 0.11; allowed: above 0, at most 0.1"),
    ],
)
def test_goals_have_a_range(target, precision, message):
    with pytest.raises(ConfigError) as refused:
        Goal(target, precision)
    assert str(refused.value) == message
    assert Goal(1, 0.1).target == 1
