"""Policies with an object for each job: its state, its plan, and which of its hooks are asked."""

import re

import pytest
from machines import machine, simulate, trace_of

from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import PolicyError
from g10sim.policies.checks import CHECKS, check_policy
from g10sim.policies.interface import (
    Evict,
    Fetch,
    JobPolicy,
    MigrationPlan,
    Planned,
    Policy,
    PolicyPerJob,
    Requirements,
)
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload


def steps(kernels=4):
    return trace_of({"w*": 2, "a": 2}, [(10_000, "w", "a"), *[(10_000, "a", "")] * (kernels - 1)])


class Counting(JobPolicy):
    """Counts the kernels of its job."""

    def __init__(self, job, machine, system):
        self.kernels, self.given = 0, (job, machine.gpu_bytes, system.name)

    @property
    def note(self):
        return f"{self.kernels} kernels"

    def on_kernel_start(self, view):
        self.kernels += 1
        return ()


class Counts(PolicyPerJob):
    """Counts kernels by job."""

    name, label, paper = "counts", "Counts", "a test"
    requirements = Requirements(addresses="own")
    job_class = Counting

    def start_job(self, job, machine, system):
        return Counting(job, machine, system)


def test_every_job_has_an_object_of_its_own_and_every_run_new_ones():
    policy, system = Counts(), machine(gpus=2)
    workload = Workload((Job(steps(3), iterations=1), Job(steps(5), iterations=2, gpu=1)))
    for _ in range(2):
        records = run(workload, system, policy, BehaviourSpec())
        assert [job.kernels for job in policy.jobs] == [3, 10]
        assert records.note == "3 kernels; 10 kernels"
    job, gpu_bytes, name = policy.jobs[1].given
    assert (len(job.trace.kernels), gpu_bytes, name) == (5, system.gpu.memory, system.name)


def test_only_hooks_that_the_objects_define_are_asked():
    own = {name for name in dir(JobPolicy) if getattr(Counts, name, None) is not getattr(Policy, name, None)}
    assert {name for name in own if name.startswith(("on_", "choose", "is_", "state"))} == {"on_kernel_start"}

    class Both(Counts):
        """Answers itself when a kernel ends, and in place of the object when one starts."""

        job_class = Counting

        def on_kernel_start(self, view):
            return super().on_kernel_start(view) if view.kernel else ()

    policy = Both()
    simulate(steps(), machine(), policy, iterations=1)
    assert policy.jobs[0].kernels == 3


def test_a_plan_of_the_object_is_carried_out():
    class Ahead(JobPolicy):
        plan = MigrationPlan((Planned(1, Evict(0)), Planned(3, Fetch(0))))

    class PlansAhead(PolicyPerJob):
        """Evicts and fetches the weight."""

        name, label, paper = "plans_ahead", "Plans ahead", "a test"
        requirements = Requirements(addresses="own")
        job_class = Ahead

    trace = steps()
    records = simulate(trace, machine(), PlansAhead(), iterations=1, record=["migrations"])
    moved = [(one.tensor, one.size_bytes, str(one.cause)) for one in records.migrations]
    assert moved[-2:] == [(0, 2000, "planned_eviction"), (0, 2000, "prefetch")]


def test_errors_name_the_place_in_the_objects_class():
    class EvictsRunning(JobPolicy):
        def on_kernel_start(self, view):
            yield Evict(view.trace.kernels[view.kernel].tensors[0])

    class Wrong(PolicyPerJob):
        """Evicts what is needed."""

        name, label, paper = "wrong", "Wrong", "a test"
        job_class = EvictsRunning

    line = EvictsRunning.on_kernel_start.__code__.co_firstlineno
    with pytest.raises(PolicyError, match=re.escape(f"({__file__}, line {line})")):
        simulate(steps(), machine(), Wrong())


def test_misspelt_hooks_of_the_objects_are_refused():
    class Misspelt(JobPolicy):
        def on_kernal_start(self, view):
            return ()

    class Asks(PolicyPerJob):
        """Has a hook that nobody asks."""

        name, label, paper = "asks", "Asks", "a test"
        job_class = Misspelt

    with pytest.raises(
        PolicyError, match=r"'on_kernal_start', which nobody asks \(did you mean 'on_kernel_st"
    ):
        simulate(steps(), machine(), Asks())


def test_other_objects_than_those_of_the_class_are_refused():
    class Answers(Counts):
        """Starts jobs with another class than it names."""

        job_class = JobPolicy

    found = r"^policy 'counts': start_job: found <.*Counting.*>; allowed: a JobPolicy, the job_class$"
    with pytest.raises(PolicyError, match=found):
        simulate(steps(), machine(), Answers())
    with pytest.raises(TypeError, match=r"^job_class: found 3; allowed: a subclass of JobPolicy$"):
        type("Wrong", (PolicyPerJob,), {"job_class": 3})


def test_it_passes_the_checks_of_policies():
    assert {check.name for check in CHECKS} > set(check_policy(Counts))
