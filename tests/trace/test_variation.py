import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.config.sharing import VariationSpec
from g10sim.trace.check import problems
from g10sim.trace.model import FaultProfile, Kernel, Trace
from g10sim.trace.synthetic import random_trace
from g10sim.trace.workload import draw_factors, perturb

DISTRIBUTIONS = ["uniform", "normal"]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_factors_have_mean_one_and_the_spread_of_their_distribution(distribution):
    factors = draw_factors(VariationSpec(distribution=distribution, magnitude=0.2), 100_000, 1)
    assert factors.mean() == pytest.approx(1, abs=0.005)
    deviation = 0.2 if distribution == "normal" else 0.2 / 3**0.5
    assert factors.std() == pytest.approx(deviation, rel=0.02)
    if distribution == "uniform":
        assert factors.min() >= 0.8
        assert factors.max() <= 1.2


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("magnitude", [0.0, 0.5, 0.99])
def test_factors_are_positive_and_their_mean_is_one_however_wide(distribution, magnitude):
    factors = draw_factors(VariationSpec(distribution=distribution, magnitude=magnitude), 20_000, 0)
    assert factors.min() > 0
    assert factors.max() < 2
    assert factors.mean() == pytest.approx(1, abs=0.02)


def test_seed_and_job_decide_the_factors_and_the_magnitude_scales_them():
    small, large = (VariationSpec(magnitude=magnitude) for magnitude in (0.1, 0.2))
    base = draw_factors(small, 50, 3)
    assert (base == draw_factors(small, 50, 3)).all()
    assert (base != draw_factors(small, 50, 4)).any()
    assert (base != draw_factors(small, 50, 3, job=1)).any()
    assert np.allclose(2 * (base - 1), draw_factors(large, 50, 3) - 1)


@given(
    seed=st.integers(0, 10**6),
    distribution=st.sampled_from(DISTRIBUTIONS),
    magnitude=st.floats(0, 1, exclude_max=True),
)
def test_a_perturbed_trace_keeps_the_rules_and_all_but_its_times(seed, distribution, magnitude):
    trace = random_trace(seed % 20)
    varied = perturb(trace, VariationSpec(distribution=distribution, magnitude=magnitude), seed)
    assert list(problems(varied)) == []
    assert varied.tensors == trace.tensors
    for before, after in zip(trace.kernels, varied.kernels, strict=True):
        assert (after.inputs, after.outputs, after.name) == (before.inputs, before.outputs, before.name)
        assert (after.duration > 0) == (before.duration > 0)
    if magnitude == 0:
        assert varied == trace


def test_duration_and_fault_profile_share_one_factor():
    kernels = tuple(
        Kernel(number, "Kernel", 10**6, (), (), fault_profile=FaultProfile(2 * 10**6, 3 * 10**6))
        for number in range(20)
    )
    trace = Trace("tiny", 1, 10**9, (), kernels)
    variation = VariationSpec(distribution="uniform", magnitude=0.3)
    factors = draw_factors(variation, 20, 5, job=2)
    for kernel, factor in zip(perturb(trace, variation, 5, job=2).kernels, factors, strict=True):
        assert kernel.duration == round(10**6 * factor)
        assert kernel.fault_profile == FaultProfile(round(2 * 10**6 * factor), round(3 * 10**6 * factor))
    assert len(set(factors)) == 20


def test_factors_that_are_drawn_again_differ_like_all_others():
    factors = draw_factors(VariationSpec(distribution="normal", magnitude=0.99), 2_000, 0)
    assert len(set(factors.tolist())) == 2_000
