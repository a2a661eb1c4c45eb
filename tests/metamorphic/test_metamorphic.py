"""More of a machine does no harm, and what does not matter changes nothing, under every policy."""

import pytest
from altered import BEHAVIOURS, SAME, cycles, draw_case, split, with_longest_cut
from measured import PAGE, TOLERANCE, departures, documented, known, subjects, table

SOME, MANY = (11, 15), range(16)
SUBJECTS = list(subjects())
LONG = [(policy, words) for policy, words in SUBJECTS if policy == "vdnn_multi"]
LONG += [("g10_paced", "pooled addresses")]
"""Those of every night only."""


def unknown(policy, words, seeds):
    """Departures that are larger than the worst known one."""
    worst = known().get(policy, {}).get(words, {})
    found = departures(policy, words, seeds)
    return {name: share for name, share in found.items() if share > worst.get(name, TOLERANCE)}


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "words"), [pair for pair in SUBJECTS if pair not in LONG])
def test_more_does_no_harm_and_names_do_not_matter(policy, words):
    assert unknown(policy, words, SOME) == {}


@pytest.mark.nightly
@pytest.mark.parametrize(("policy", "words"), SUBJECTS)
def test_departures_are_known(policy, words):
    assert unknown(policy, words, MANY) == {}


def test_departures_are_documented():
    text = PAGE.read_text()
    assert table().join(documented(text)) == text


def test_page_faults_alone_are_not_made_worse_by_anything():
    assert known()["base_uvm"]["own addresses"] == {}


def test_what_does_not_matter_changes_nothing():
    found = {name for ways in known().values() for worst in ways.values() for name in worst}
    assert not found & SAME.keys()


@pytest.mark.parametrize("seed", range(12))
def test_halves_of_kernels_take_as_long_as_the_kernels(seed):
    case = draw_case(seed)
    behaviour = BEHAVIOURS["own addresses"].model_copy(update={"recency": "arrival"})
    whole, halves = (cycles(one, "base_uvm", behaviour) for one in (case, split(case)))
    assert halves == pytest.approx(whole, abs=2 * len(case.trace.kernels))


@pytest.mark.parametrize("policy", ["pressure", "stream"])
@pytest.mark.parametrize("seed", range(28))
def test_a_long_kernel_cut_in_two_takes_as_long(policy, seed):
    case = draw_case(seed)
    whole, cut = (cycles(one, policy, BEHAVIOURS["own addresses"]) for one in (case, with_longest_cut(case)))
    assert cut == pytest.approx(whole, rel=0.005)
