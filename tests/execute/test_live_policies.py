"""Policies decide on the device as they do in the simulator."""

import pytest

torch = pytest.importorskip("torch")

from executed_steps import (
    BEHAVIOUR,
    LOOPS,
    Loop,
    executed,
    machine,
    recorded,
    same,
    slow,
    under,
    values,
)

import g10sim
from g10sim.capture.fused import attention_kernels
from g10sim.capture.options import step_options
from g10sim.errors import PolicyError
from g10sim.execute.moving import Guide
from g10sim.execute.running import executable
from g10sim.execute.script import captured_script
from g10sim.execute.simulated import simulated_plan
from g10sim.policies.interface.moves import Fetch, Free
from g10sim.policies.interface.policy import Policy
from g10sim.trace.format import trace_hash

pytestmark = pytest.mark.slow


class Farthest(Policy):
    """Frees what is dead, fetches ``look_ahead`` kernels ahead and evicts what is needed last."""

    name, label, paper = "farthest", "Farthest next use", "after Belady, IBM Systems Journal, 1966"

    def __init__(self, *, look_ahead: int = 30) -> None:
        self.look_ahead = look_ahead

    def on_kernel_start(self, view):
        kernels, now = view.trace.kernels, view.kernel
        dead = [Free(t) for t in kernels[now - 1].tensors if view.is_dead(t)]
        return dead + [Fetch(t) for t in kernels[(now + self.look_ahead) % len(kernels)].tensors]

    def choose_victims(self, view):
        there = [t for t in range(len(view.trace.tensors)) if view.resident_bytes(t)]
        return sorted((t for t in there if not view.is_needed(t)), key=view.next_use, reverse=True)


@pytest.fixture(scope="module")
def case():
    return recorded(LOOPS["transformer"])


class NoPlan(Farthest):
    """Answers with what is no plan."""

    name = "no_plan"

    def on_iteration_start(self, view):
        return 7


def test_a_plan_that_is_none_is_refused(case):
    budget = case.budget()
    with pytest.raises(PolicyError, match="on_iteration_start raised TypeError: found 7; allowed: a Migr"):
        executed(case, budget, under(case, f"{__name__}:NoPlan", budget))


@pytest.mark.parametrize(
    ("policy", "most"),
    [("pressure", 1.15), ("stream", 1.3), ("deepum", 2.5), (f"{__name__}:Farthest", 2.5)],
    ids=["pressure", "stream", "deepum", "plug-in"],
)
def test_policies_decide_on_the_device(case, policy, most):
    """They move whole tensors, at once: more than the parts that move in the simulator as time allows."""
    budget = case.budget()
    loop, executor = executed(case, budget, under(case, policy, budget))
    assert same(values(loop), case.plain)
    report = executor.reports[-1]
    assert report.peak_bytes <= budget
    result = g10sim.simulate(case.script.trace, machine(budget), policy, iterations=4, compat=BEHAVIOUR)
    assert 1 / most <= report.out_bytes / result.summary["gpu_to_host_bytes"] <= most


@pytest.mark.parametrize("policy", ["g10", "pressure"])
def test_moves_of_a_simulation_are_carried_out(case, policy):
    """Nobody is asked while the step runs; planned designs move what their plan says."""
    budget, trace = case.budget(), slow(case.script.trace)
    system = machine(budget)
    plan, result = simulated_plan(executable(policy, trace, system), trace, system, iterations=4)
    if policy == "g10":
        assert plan.moves == under(case, policy, budget, trace).plan.moves
    loop, executor = executed(case, budget, Guide(system, plan))
    assert same(values(loop), case.plain)
    assert executor.reports[-1].peak_bytes <= budget
    assert executor.reports[-1].out_bytes == pytest.approx(result.summary["gpu_to_host_bytes"], rel=0.15)


@pytest.mark.parametrize(
    "name", ["foreach", "fused", "convolutions", "transformer", "accumulation", "checkpointing"]
)
def test_a_script_of_a_capture_is_that_of_the_recorded_step(name):
    how = step_options({"attention": "eager"})
    options = LOOPS[name]
    found = captured_script(lambda: Loop(**options).__call__, how)
    with attention_kernels("eager"):
        allowed = recorded(options, attention="eager").script
    assert [call.name for call in found.calls] == [call.name for call in allowed.calls]
    assert found.calls == allowed.calls
    assert trace_hash(found.trace) == trace_hash(allowed.trace)
