"""Copies that slow kernels down: timelines worked out by hand (see ``machines``)."""

import pytest
from machines import OWN, iteration_times, kernel_times, machine, simulate, trace_of

from g10sim.config.behaviour import BehaviourSpec
from g10sim.policies.interface.moves import Evict, Fetch
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import create
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job, Workload


class Moves(Policy):
    """Carries out planned moves."""

    name = "moves"

    def __init__(self, *moves):
        self.moves = moves

    def plan_job(self, job, system, behaviour):
        return MigrationPlan(self.moves)


def slowing(share=0.5, **changes):
    """A machine with host memory alone, on which full links take half of a kernel's speed."""
    system = machine(kernel_access={}, **changes)
    gpu = system.gpu.model_dump() | {"copy_contention": {"share": share}}
    return type(system).model_validate(system.model_dump() | {"gpu": gpu})


def test_a_copy_one_way_takes_half_of_the_share():
    """Five pages come in for 5,000 cycles, at a quarter less speed: 3,750 of 10,000 done, 6,250 to do."""
    trace = trace_of({"v*": 5}, [(10_000, "", ""), (1_000, "v", "")])
    records = simulate(trace, slowing(), Moves(Planned(0, Fetch(0))), iterations=1)
    assert kernel_times(records) == [11_250, 1_000]
    assert records.kernels[0].stalls == ((StallReason.COPY_CONTENTION, 1_250),)
    assert records.kernels[0].compute_cycles == 10_000


def test_copies_both_ways_take_the_whole_share():
    """v leaves while w comes in, 5,000 cycles each: 2,500 of 10,000 done, 7,500 to do."""
    trace = trace_of(
        {"v*": 5, "w*": 5}, [(1_000, "v", ""), (10_000, "", ""), (1_000, "w", ""), (1_000, "v", "")]
    )
    policy = Moves(Planned(1, Evict(0)), Planned(1, Fetch(1)))
    records = simulate(trace, slowing(), policy, iterations=1)
    assert kernel_times(records)[1] == 12_500


def test_a_copy_that_begins_while_a_kernel_computes_slows_it_from_then_on():
    """The copy is issued at 4,000 and takes 5,000 cycles: 4,000 + 3,750 done at 9,000, 2,250 to do."""
    trace = trace_of({"v*": 5}, [(10_000, "", ""), (1_000, "v", "")])
    records = simulate(trace, slowing(), Moves(Planned(0, Fetch(0), 4_000)), iterations=1)
    assert kernel_times(records) == [11_250, 1_000]


def test_a_copy_longer_than_a_kernel_slows_the_next_one_too():
    """Five pages, kernels of 3,000 cycles: 4,000 for the first, 1,000 of the second: 750 of these count."""
    trace = trace_of({"v*": 5}, [(3_000, "", ""), (3_000, "", ""), (3_000, "v", "")])
    records = simulate(trace, slowing(), Moves(Planned(0, Fetch(0))), iterations=1)
    assert kernel_times(records) == [4_000, 3_250, 3_000]


def test_mapping_new_pages_and_what_kernels_use_in_place_slow_nobody():
    trace = trace_of({"x": 5, "w*": 5}, [(10_000, "", ""), (10_000, "", "x")])
    assert kernel_times(simulate(trace, slowing(), Moves(Planned(0, Fetch(0))), iterations=1))[0] == 10_000
    reader = trace_of({"w*": 5}, [(10_000, "w", "")])
    assert iteration_times(simulate(reader, slowing(), create("in_place"), iterations=1))[0] >= 10_000


@pytest.mark.parametrize("policy", ["deepum", "g10", {"name": "vdnn", "mode": "all"}])
def test_every_design_gets_slower_and_none_breaks_an_invariant(policy):
    trace, times = chain(6, forward_ticks=2_000_000, backward_ticks=4_000_000), []
    for share in (1e-9, 0.06, 0.5):
        system = slowing(share, gpu_pages=7_400, host_pages=100_000)
        workload = Workload((Job(trace, iterations=2),))
        records = run(workload, system, create(policy), BehaviourSpec(), check=True)
        times.append(records.iterations[-1].end - records.iterations[-1].start)
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_jobs_on_one_gpu_are_slowed_by_each_others_copies():
    trace = trace_of({"v*": 5}, [(10_000, "", ""), (1_000, "v", "")])
    workload = Workload((Job(trace, iterations=1), Job(trace, iterations=1)))
    shared = {"compute": "concurrent", "slowdown": 0.0}
    workload = workload.__class__(workload.jobs, sharing=type(workload.sharing)(**shared))
    records = run(workload, slowing(), Moves(Planned(0, Fetch(0))), OWN, record=("kernels",), check=True)
    first = [kernel.end - kernel.start for kernel in records.kernels if kernel.kernel == 0]
    assert first == [12_500, 12_500]  # 10 pages come in, for 10,000 cycles
