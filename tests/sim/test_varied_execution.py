"""Execution with other kernel times than the policy planned for."""

import pytest
from machines import machine

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.sharing import VariationSpec
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import create
from g10sim.sim.engine import run
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job, Workload

TENTH = VariationSpec(distribution="uniform", magnitude=0.1)
PLAIN = (Job(chain(6)),)
TIGHT = machine(gpu_pages=7_000, host_pages=3_000)
POLICIES = ["ideal", "base_uvm", "deepum", "g10"]


def simulate(policy, workload, behaviour=None, system=TIGHT):
    policy = policy if isinstance(policy, Policy) else create(policy)
    return run(workload, system, policy, behaviour or BehaviourSpec(), record=("timeline",), check=True)


def computing(records):
    return [(kernel.iteration, kernel.kernel, kernel.compute_cycles) for kernel in records.kernels]


@pytest.mark.parametrize("behaviour", [BehaviourSpec(), GPG], ids=["hardware", "gpg"])
def test_a_magnitude_of_zero_changes_nothing(behaviour):
    for seed in (0, 1):
        varied = Workload(PLAIN, VariationSpec(magnitude=0.0), seed)
        assert simulate("base_uvm", varied, behaviour) == simulate("base_uvm", Workload(PLAIN), behaviour)


def test_the_seed_alone_changes_nothing_without_variation():
    assert simulate("base_uvm", Workload(PLAIN, seed=5)) == simulate("base_uvm", Workload(PLAIN))


@pytest.mark.parametrize("behaviour", [BehaviourSpec(), GPG], ids=["hardware", "gpg"])
def test_every_policy_gets_the_same_times_in_every_iteration(behaviour):
    workload = Workload(PLAIN, TENTH, 2)
    expected = [kernel.duration for kernel in workload.executed(0).kernels]
    assert expected != [kernel.duration for kernel in PLAIN[0].trace.kernels]
    for name in POLICIES:
        records = simulate(name, workload, behaviour)
        for iteration in (0, 1):
            times = [cycles for number, _, cycles in computing(records) if number == iteration]
            assert times == expected, name
        assert {iteration.ideal_cycles for iteration in records.iterations} == {sum(expected)}


def test_runs_repeat_and_seeds_differ():
    first, again, other = (simulate("base_uvm", Workload(PLAIN, TENTH, seed)) for seed in (7, 7, 8))
    assert first == again
    assert first.iterations[0].traffic["gpu_to_host_bytes"] > 0
    assert first != other


def test_jobs_of_one_trace_vary_independently():
    workload = Workload(PLAIN * 2, TENTH)
    assert workload.executed(0) != workload.executed(1)


class Spy(Policy):
    """Remembers what it was shown."""

    name = "spy"

    def __init__(self):
        self.seen = []

    def plan(self, workload, system, behaviour):
        self.seen += [workload, *(job.trace for job in workload.jobs)]
        return [None for _ in workload.jobs]

    def on_kernel_start(self, view):
        self.seen.append(view.trace)
        return ()


def test_policies_see_the_times_of_the_trace():
    spy = Spy()
    simulate(spy, Workload(PLAIN, TENTH, 2))
    planned, *seen = spy.seen
    assert planned == Workload(PLAIN).in_order_of_use()
    assert all(trace is planned.jobs[0].trace for trace in seen)
