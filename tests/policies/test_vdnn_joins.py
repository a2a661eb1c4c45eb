"""What joins at the end of layers can cost at most, worked out by hand."""

import pytest
from layerwise import LayerSpec, layerwise_trace

from g10sim.policies.designs.vdnn.joins import gain_without_joins

MB = 10**6


def convolutions(forward):
    """Convolutions of 10 MB each, 20 ms backward, behind an input of 10 MB and before a classifier."""
    layers = [LayerSpec(f"conv{i}", "Conv2d", 10 * MB, time, 20_000_000) for i, time in enumerate(forward)]
    layers.append(LayerSpec("fc", "Linear", 1000, 1_000_000, 1_000_000))
    return layerwise_trace("net", 1, 10 * MB, layers)


def test_a_join_costs_a_layer_the_shorter_of_computing_and_copying():
    # A copy takes 10 ms. Forward: 10 + 10 + 10 + 20 + 1 = 51 ms with joins, against max(2 + 2 + 2 + 20 + 1,
    # three copies: the input is not copied) = 30 ms without. Backward: the classifier's 1 ms end with the
    # first prefetch, 9 ms later; without joins there are 81 ms of computing and four copies.
    trace = convolutions([2_000_000, 2_000_000, 2_000_000, 20_000_000])
    assert gain_without_joins(trace, "all", 10**9) == pytest.approx((51 + 10 + 80) / (30 + 81) - 1)


def test_on_a_slow_link_copies_alone_count():
    # A copy takes 100 ms: four of them forward with joins, and the classifier, against three without; four
    # backward, behind which the first layer computes for 20 ms with joins, against four without.
    trace = convolutions([2_000_000, 2_000_000, 2_000_000, 20_000_000])
    assert gain_without_joins(trace, "all", 10**8) == pytest.approx((401 + 420) / (300 + 400) - 1)


def test_nothing_is_won_where_copies_take_no_time_or_nothing_is_copied():
    trace = convolutions([2_000_000, 20_000_000])
    assert gain_without_joins(trace, "all", 10**15) == pytest.approx(0, abs=1e-6)
    assert gain_without_joins(trace, "none", 1000) == 0
