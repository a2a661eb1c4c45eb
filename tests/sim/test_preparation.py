"""Policies that choose by trial, and kernels with other algorithms."""

import dataclasses

import pytest
from machines import iteration_times, machine, simulate, trace_of

import g10sim
from g10sim.config.system import SystemSpec
from g10sim.errors import PolicyError, UnsupportedError
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.results.columns import CONTIGUOUS
from g10sim.sim.engine import run
from g10sim.trace.format import save_trace
from g10sim.trace.model import Device, Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload


def needs(pages):
    return trace_of({"a": pages}, [(1000, "", "a"), (1000, "a", "")], "needs")


class Contiguous(Policy):
    name = "contiguous"
    requirements = Requirements(placement="contiguous")


class Slower(Contiguous):
    """Takes twice as long for every kernel."""

    name = "slower"

    def __init__(self, *, factor=2):
        self.factor = factor

    def choose_kernels(self, trace, system):
        kernels = [dataclasses.replace(k, duration=int(k.duration * self.factor)) for k in trace.kernels]
        return dataclasses.replace(trace, kernels=tuple(kernels))


class SecondChoice(Contiguous):
    """Takes Slower if one iteration of it runs."""

    name = "second_choice"

    def settle(self, obstacle):
        self.found = obstacle(Slower())
        if self.found is None:
            return Slower()
        raise UnsupportedError(f"tried: {self.found}")


def test_results_compare_with_the_fastest_kernels():
    records = simulate(needs(4), machine(10), Slower())
    assert iteration_times(records) == [4000, 4000]
    assert [record.ideal_cycles for record in records.iterations] == [2000, 2000]
    assert [record.compute_cycles for record in records.iterations] == [4000, 4000]


def test_a_policy_settles_on_another_by_trial():
    assert iteration_times(simulate(needs(4), machine(10), SecondChoice())) == [4000, 4000]


class Hasty(Contiguous):
    """Asks how long its own second iteration takes, at most as long as told."""

    name = "hasty"

    def __init__(self, *limits):
        self.limits = limits

    def settle(self, obstacle):
        self.told = [obstacle.cycles(self, at_most=at_most) for at_most in self.limits]
        return self


def test_a_trial_ends_when_its_last_iteration_takes_longer_than_it_may():
    policy = Hasty([1998], [1999], [2000], [])
    simulate(needs(4), machine(10), policy)
    assert policy.told == [[1999], [2000], [2000], [2000]]


def test_a_trial_goes_on_where_one_of_its_jobs_is_in_time():
    policy = Hasty([1500, 3500], [1500, 4000], [2000, 3500])
    workload = Workload((Job(needs(4)), Job(trace_of({"a": 4}, [(4000, "", "a")]), gpu=1)))
    run(workload, machine(10, gpus=2), policy)
    assert policy.told == [[1501, 3501], [2000, 4000], [2000, 4000]]


def test_a_trial_whose_kernels_wait_for_nothing_is_not_just_slow():
    kernels = [(1000, "", "a b c"), (1000, "a c", ""), (1000, "b", "d"), (1000, "b d", "")]
    policy = Hasty([3000])
    trace = trace_of({"a": 2, "b": 2, "c": 1, "d": 3}, kernels)
    with pytest.raises(UnsupportedError):
        simulate(trace, machine(5), policy, iterations=1)
    assert policy.told == [None]


def test_a_trial_that_fails_says_why():
    class Full(SecondChoice):
        def settle(self, obstacle):
            self.found = obstacle(Contiguous())
            raise UnsupportedError(f"tried: {self.found}")

    kernels = [(1000, "", "a b c"), (1000, "a c", ""), (1000, "b", "d"), (1000, "b d", "")]
    trace = trace_of({"a": 2, "b": 2, "c": 1, "d": 3}, kernels)
    with pytest.raises(
        UnsupportedError, match=r"tried: policy 'contiguous', kernel 2 .* tensor 'd' needs 3 kB"
    ):
        simulate(trace, machine(5), Full())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Slower(factor=0.5), "policy 'slower': choose_kernels makes kernel 0 (Kernel0) faster; allowed:"),
        (Slower(factor="x"), "policy 'slower': choose_kernels raised ValueError"),
    ],
)
def test_impossible_choices_are_refused(policy, message):
    with pytest.raises(PolicyError) as error:
        simulate(needs(4), machine(10), policy)
    assert message in str(error.value)


def test_kernels_cannot_be_left_out():
    class Shorter(Contiguous):
        name = "shorter"

        def choose_kernels(self, trace, system):
            return dataclasses.replace(trace, kernels=trace.kernels[:1])

    with pytest.raises(PolicyError, match="returned 1 kernels; allowed: as many as the trace has, 2"):
        simulate(needs(4), machine(10), Shorter())


class TakesOver(Policy):
    """Lets the CPU take over kernels, and changes the others."""

    name = "takes_over"

    def __init__(self, kernels, *others):
        self.kernels, self.others = kernels, others

    def choose_kernels(self, trace, system):
        taken = [dataclasses.replace(trace.kernels[k], device=Device.CPU) for k in self.kernels]
        kernels = [kernel for kernel in trace.kernels if kernel.id not in self.kernels]
        kernels = [*kernels, *taken, *self.others]
        numbered = (kernel.with_tensors(kernel.inputs, kernel.outputs, k) for k, kernel in enumerate(kernels))
        return dataclasses.replace(trace, kernels=tuple(numbered))


def a_step():
    builder = TraceBuilder("step")
    gradient = builder.tensor("gradient", 4000, TensorKind.GRADIENT)
    weight = builder.tensor("weight", 4000, TensorKind.WEIGHT, persistent=True)
    builder.kernel("Backward", 5000, [weight], [gradient], Phase.BACKWARD)
    builder.kernel("Update", 3000, [gradient, weight], [weight], Phase.OPTIMIZER)
    return builder.build()


def with_cpu():
    plain = machine(20, fault="0 s").model_dump(mode="json")
    return SystemSpec(**plain | {"tiers": ["host"], "cpu": {"optimizer_rate": "1 G/s"}})


def test_the_cpu_takes_over_kernels_of_the_optimizer():
    records = simulate(a_step(), with_cpu(), TakesOver([1]), iterations=3)
    last = records.iterations[-1]
    assert (last.ideal_cycles, last.compute_cycles, last.cpu.busy_cycles) == (8000, 5000, 3000)
    # 1000 cycles a page: gradient and weight leave together, the step, then the weight comes back.
    assert last.end - last.start == 8000 + 3000 + 4000 + 5000


def a_pass():
    builder = TraceBuilder("pass")
    states = [builder.tensor(f"state{number}", 4000, TensorKind.ACTIVATION) for number in range(3)]
    for number, name in enumerate(("First", "Second", "Last")):
        read, written = states[:number][-1:], states[number : number + 1]
        builder.kernel(name, 1000, read, written, Phase.FORWARD)
    return builder.build()


def test_the_cpu_runs_kernels_of_a_forward_pass_as_they_are():
    class InPlace(Policy):
        name = "in_place_on_cpu"
        moved_bytes = 0

        def choose_kernels(self, trace, system):
            changes = {"device": Device.CPU, "duration": 0, "moved_bytes": self.moved_bytes}
            second = dataclasses.replace(trace.kernels[1], **changes)
            return dataclasses.replace(trace, kernels=(trace.kernels[0], second, trace.kernels[2]))

    last = simulate(a_pass(), with_cpu(), InPlace(), iterations=3).iterations[-1]
    assert (last.ideal_cycles, last.compute_cycles) == (3000, 2000)
    InPlace.moved_bytes = 1
    with pytest.raises(PolicyError, match=r"and of a forward pass that it runs as they are$"):
        simulate(a_pass(), with_cpu(), InPlace())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (TakesOver([0]), r"leaves out kernel 0 \(Backward\); allowed: to leave out kernels of the optimizer"),
        (
            TakesOver([1], dataclasses.replace(a_step().kernels[0], name="More")),
            r"adds kernel 2 \(More\); allowed: kernels on the CPU",
        ),
    ],
)
def test_the_gpu_keeps_all_other_work(policy, message):
    with pytest.raises(PolicyError, match=message):
        simulate(a_step(), with_cpu(), policy)


def test_records_are_of_the_kernels_that_ran():
    result = g10sim.simulate(a_step(), with_cpu(), policy=TakesOver([1]), record=("timeline",))
    names = [event["name"] for event in result.timeline()["traceEvents"] if event["ph"] == "X"]
    assert {"Backward", "Update"} <= {name.split(" ")[0] for name in names}
    assert result.workload.jobs[0].trace.kernels[1].device is Device.CPU


def test_what_was_chosen_is_the_message_of_the_result(tmp_path):
    save_trace(needs(4), tmp_path / "needs.g10t")
    outcome = g10sim.run(
        {
            "name": "chosen",
            "workload": {"trace": str(tmp_path / "needs.g10t")},
            "system": "a100-40g-pcie3-znand",
            "policies": ["vdnn", "base_uvm"],
        }
    )
    chosen, other = outcome.rows
    assert (chosen["status"], chosen["message"]) == (
        "ok",
        "dyn chose none, performance; no algorithms_file: greedy choice of algorithms not tried",
    )
    assert other["message"] == ""
    assert set(CONTIGUOUS.names) <= set(outcome.columns)
    assert chosen["fragmentation"] == 1
    assert "fragmentation" not in other


def test_columns_of_contiguous_memory_are_there_only_where_it_is(tmp_path):
    save_trace(needs(4), tmp_path / "needs.g10t")
    config = {
        "name": "paged",
        "workload": {"trace": str(tmp_path / "needs.g10t")},
        "system": "a100-40g-pcie3-znand",
        "policies": ["base_uvm"],
    }
    assert not set(CONTIGUOUS.names) & set(g10sim.run(config).columns)
