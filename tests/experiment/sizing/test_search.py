"""Bisection with a judge that is a formula: the answer is known, and so is how often it may ask."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from g10sim.config.presets import load_system
from g10sim.errors import InvariantError
from g10sim.sizing.resources import RESOURCES, find
from g10sim.sizing.search import Span, least_amount

TENTH = Fraction(1, 10)


def searched(span, reaches, precision=Fraction(1, 50)):
    """Return what is found, and the amounts that were asked for, batch by batch."""
    search, asked = least_amount(span, precision), []
    batch = next(search)
    while True:
        asked.append(batch)
        try:
            batch = search.send(tuple(reaches(amount) for amount in batch))
        except StopIteration as ended:
            return ended.value, asked


def span(resource="link", *, least=1000, failed=None, most=10**12, start=10**10, stride=10**8, grain=1000):
    def rounded(amount, coarsest):
        return RESOURCES[resource].rounded(amount, coarsest, grain)

    return Span(least, failed, most, start, stride, grain, rounded)


@pytest.mark.parametrize("seed", range(200))
def test_a_monotone_policy_is_answered_within_the_precision(seed):
    draw = random.Random(seed)
    grain = draw.choice([1000, 4096, 1 << 20])
    most = draw.randrange(10**9, 10**13) // grain * grain
    threshold = draw.randrange(grain, most)
    failed = draw.choice([None, threshold * draw.randrange(100) // 100 // grain * grain])
    start = most if draw.random() < 0.1 else draw.randrange(max(grain, (failed or 0) + 1), most)
    resource = draw.choice(list(RESOURCES))
    looked = span(
        resource, failed=failed, most=most, start=start, stride=max(grain, start // 64), grain=grain
    )
    precision = Fraction(draw.randrange(1, 101), 1000)
    found, asked = searched(looked, lambda amount: amount >= threshold, precision)
    assert threshold <= found.answer <= max(threshold + grain, threshold / (1 - precision))
    assert all(1000 <= amount <= most for batch in asked for amount in batch)
    assert len(asked) < 80
    if found.above is not None:
        assert found.above >= (1 + TENTH) * found.answer
        assert found.above - grain < (1 + TENTH) * found.answer
    if found.below is not None and found.answer > 20 * grain:
        assert found.below < threshold


def test_what_is_known_to_fail_saves_questions():
    reaches = (20 * 10**9).__le__
    guarded, few = searched(span(failed=19_900_000_000, start=20_000_000_000), reaches)
    alone, many = searched(span(start=10**9, stride=10**7), reaches)
    assert guarded.answer == 20_000_000_000
    assert len(few) == 2  # the start, and what lies around it
    assert len(many) > 5
    assert alone.answer <= 20_400_000_000


def test_a_target_that_nothing_reaches_is_asked_for_up_to_the_most():
    found, asked = searched(span(), lambda amount: False)
    assert found.answer is None
    assert asked[-1] == (10**12,)


@pytest.mark.parametrize("least", [1000, 0])
def test_a_target_that_everything_reaches_ends_at_the_least(least):
    found, asked = searched(span(least=least), lambda amount: True)
    assert found.answer == least
    assert found.below is None
    assert len(asked) < 20


AROUND_300 = (70, 150, 220, 270, 330, 450, 600)
"""A quarter to twice 300, in multiples of 10 away from it."""


@pytest.mark.parametrize(
    ("start", "questions"),
    [
        # Up by 10, 20, 40, 80, 160; then between 250 and 410, until 10 are left.
        (100, [100, 110, 130, 170, 250, 410, 330, 290, 310, 300]),
        # Down by as much; then between 170 and 490.
        (600, [600, 590, 570, 530, 450, 290, 370, 330, 310, 300]),
    ],
)
def test_strides_double_and_gaps_are_halved(start, questions):
    looked = span(least=70, most=600, start=start, stride=10, grain=10)
    found, asked = searched(looked, lambda amount: amount >= 300)
    assert (found.answer, found.below, found.above) == (300, 270, 330)
    assert asked == [*((amount,) for amount in questions), AROUND_300]


def test_what_is_asked_for_around_an_answer_is_no_nearer_than_it_should_be():
    looked = span(least=40, most=1200, start=280, stride=40, grain=40)
    found, asked = searched(looked, lambda amount: amount >= 280)
    assert (found.answer, found.below, found.above) == (280, 240, 320)
    # Of 70, 140, 210, 420, 560 and 1120 the multiples of 40 away from it.
    assert asked[-1] == (40, 120, 200, 240, 320, 440, 560, 1120)


def test_the_search_goes_on_below_where_a_tenth_less_reaches_it_too():
    def reaches(amount):  # a hole from 9.05 to 9.9
        return amount >= 9_900_000_000 or 5_000_000_000 <= amount < 9_050_000_000

    found, _ = searched(span(start=9_100_000_000, stride=10**9), reaches)
    assert 5_000_000_000 <= found.answer <= 5_100_000_000
    assert not reaches(found.below)
    assert reaches(found.above)


@pytest.mark.parametrize("reaches", [(10**9).__le__, (10**11).__le__])
def test_a_search_that_does_not_close_in_is_a_defect(reaches):
    def stuck(amount, coarsest):
        return 10**10

    closing = span(start=10**10, failed=10**8, stride=10**9)
    with pytest.raises(InvariantError, match="a search from 1000 to 1000000000000 does not end"):
        searched(replace(closing, rounded=stuck), reaches, Fraction(1, 1000))


@pytest.mark.parametrize(
    ("resource", "amount", "coarsest", "text"),
    [
        ("link", 12_345_678_901, 200_000_000, "12.3 GB/s"),
        ("link", 12_345_678_901, 20_000_000, "12.35 GB/s"),
        ("gpu-memory", 48_049_000_000, 1 << 28, "44.75 GiB"),
    ],
)
def test_amounts_are_short_to_write(resource, amount, coarsest, text):
    found = RESOURCES[resource]
    assert found.text(found.rounded(amount, coarsest, 4096 if resource != "link" else 1000)) == text


def test_a_link_with_a_rate_for_each_direction_keeps_their_proportion():
    link = {"bandwidth": None, "to_device": "50 GB/s", "from_device": "40 GB/s", "duplex": "80 GB/s"}
    system = load_system({"preset": "a100-40g-pcie3-znand", "pcie": link})
    resource = find("link")
    assert resource.amount(system) == 50 * 10**9
    half = resource.changed(system, 25 * 10**9).pcie
    assert (half.inward, half.outward, half.duplex) == (25 * 10**9, 20 * 10**9, 40 * 10**9)
    (values,) = resource.sweep(system, [10**11]).values()
    assert {key: values[0][key] for key in link} == {
        "bandwidth": None,
        "to_device": "100 GB/s",
        "from_device": "80 GB/s",
        "duplex": "160 GB/s",
    }


def test_a_direction_with_a_rate_in_place_of_the_links_keeps_its_share():
    link = {"bandwidth": "20 GB/s", "to_device": "10 GB/s"}
    system = load_system({"preset": "a100-40g-pcie3-znand", "pcie": link})
    resource = find("link")
    assert resource.amount(system) == 20 * 10**9
    twice = resource.changed(system, 40 * 10**9).pcie
    assert (twice.inward, twice.outward) == (20 * 10**9, 40 * 10**9)
