"""Steps under plans compute what they compute without, within the budget, and move what is simulated."""

import pytest

pytest.importorskip("torch")

from executed_steps import (
    LOOPS,
    STEPS,
    convolutional,
    executed,
    recorded,
    same,
    simulated,
    slow,
    under,
    values,
)

pytestmark = pytest.mark.slow

SSDTRAIN = {"name": "ssdtrain", "target": "host"}
_CASES = {}


@pytest.fixture(params=LOOPS)
def case(request):
    if request.param in ("gpt2", "bert", "llama"):
        pytest.importorskip("transformers")
    if request.param not in _CASES:
        _CASES[request.param] = recorded(LOOPS[request.param])
    return _CASES[request.param]


@pytest.mark.parametrize(
    "policy", [None, "g10", SSDTRAIN, "pressure"], ids=["demand", "g10", "ssdtrain", "pressure"]
)
def test_values_are_those_of_the_plain_step_within_the_budget(case, policy):
    budget = case.budget()
    guide = under(case, policy, budget, slow(case.script.trace)) if policy else None
    loop, executor = executed(case, budget, guide)
    assert same(values(loop), case.plain)
    assert len(executor.reports) == STEPS
    assert max(report.peak_bytes for report in executor.reports) <= budget
    assert executor.reports[-1].out_bytes > 0


def test_a_plan_moves_what_is_simulated(case):
    budget = case.budget()
    _, executor = executed(case, budget, under(case, "g10", budget, slow(case.script.trace)))
    report = executor.reports[-1]
    into, out, resident = simulated(case, "g10", budget)
    near = [abs(a - b) <= 64 for a, b in zip(report.resident_bytes, resident, strict=True)]
    assert (report.in_bytes, report.out_bytes) == (into, out)
    if case.options["make"] is convolutional:  # one operator, two kernels: what leaves between them waits
        assert sum(near) >= 0.85 * len(near)
    else:
        assert report.faults == 0
        assert sum(near) >= len(near) - 1  # what outlives the step is there after its last kernel
