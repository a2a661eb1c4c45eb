"""Jobs that share a GPU under designs that copy whole tensors, by timelines worked out by hand.

A page crosses PCIe in 1000 cycles in each direction. Jobs share pages; each has addresses of its own.
"""

from dataclasses import replace

import pytest
from drawn import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import PAGE, machine, simulate, trace_of

from g10sim.config.sharing import SharingSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.direct_storage import G10Host
from g10sim.policies.designs.vdnn.vdnnpp import VdnnPlusPlus
from g10sim.policies.designs.vdnn_multi.vdnn_multi import VdnnMulti
from g10sim.policies.interface.moves import Await, Evict, Fetch
from g10sim.policies.interface.policy import Place, Policy, Requirements
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload


def share(jobs, system, policy, *, compute="concurrent", **sharing):
    if compute == "concurrent":
        sharing.setdefault("slowdown", 0.0)
    workload = Workload(tuple(jobs), sharing=SharingSpec(compute=compute, **sharing))
    return run(workload, system, policy, check=True, record=("kernels",))


def ends(records, job=0):
    return [record.end for record in records.kernels if record.job == job]


def stalls(records, job=0):
    found = {}
    for record in records.kernels:
        if record.job == job:
            found |= {(record.kernel, reason): cycles for reason, cycles in record.stalls}
    return found


class Offload(Policy):
    """Kernel 0 ends when tensor 0, if it is persistent, has been copied out."""

    name = "offload"
    requirements = Requirements(placement="contiguous")

    def on_kernel_start(self, view):
        if view.kernel == 0 and view.trace.tensors[0].persistent:
            yield Evict(0, until=0)

    def on_kernel_end(self, view):
        if view.kernel == 0:
            yield Await(frozenset({0}))


class Keep(Policy):
    """Does nothing, in contiguous memory."""

    name = "keep"
    requirements = Requirements(placement="contiguous")


class Scratch(Keep):
    """Has one buffer for all workspaces."""

    name = "scratch"

    def places(self, job, plan, behaviour):
        kinds = [tensor.kind for tensor in job.trace.tensors]
        return [Place.BUFFER if kind is TensorKind.WORKSPACE else Place.LEFT for kind in kinds]


OFFLOADED = trace_of({"x*": 8, "y": 2}, [(2000, "x", "y"), (2000, "y", ""), (2000, "x", "")])


def test_joins_take_place_and_copies_of_jobs_share_the_link():
    alone = share([Job(OFFLOADED, iterations=1)], machine(), Offload())
    # The copy out of 8 pages lasts until 8000, that in from 10,000 to 18,000.
    assert ends(alone) == [8000, 10_000, 20_000]
    assert stalls(alone) == {(0, StallReason.SYNCHRONIZATION): 6000, (2, StallReason.FAULT_HOST): 8000}
    both = share([Job(OFFLOADED, iterations=1)] * 2, machine(), Offload())
    for job in (0, 1):
        assert ends(both, job) == [16_000, 18_000, 36_000]
        assert stalls(both, job)[0, StallReason.SYNCHRONIZATION] == 14_000


def test_a_late_job_meets_copies_under_way():
    jobs = [Job(OFFLOADED, iterations=1), Job(OFFLOADED, iterations=1, arrival_cycles=4000)]
    records = share(jobs, machine(), Offload())
    # Until 4000 half of the first copy is done; the rest takes 8000 beside the other, which then has 4 pages.
    assert ends(records, 0)[0] == 12_000
    assert ends(records, 1)[0] == 16_000


@pytest.mark.parametrize("compute", ["time_sliced", "concurrent"])
def test_one_job_that_shares_with_nobody_runs_as_if_it_had_the_gpu_to_itself(compute):
    alone = simulate(OFFLOADED, machine(20), Offload(), iterations=3, record=("kernels",))
    sharing = share([Job(OFFLOADED, iterations=3)], machine(20), Offload(), compute=compute)
    assert sharing.kernels == alone.kernels
    judged = {"steady": None, "period": None}  # of jobs that share a GPU more has to be seen
    assert [replace(one, **judged) for one in sharing.iterations] == [
        replace(one, **judged) for one in alone.iterations
    ]


# Ten pages while the second kernel runs, though no kernel needs more than five.
HOLDS = trace_of({"a": 5, "b": 5}, [(1000, "", "a"), (5000, "", "b"), (1000, "a", ""), (1000, "b", "")])
WANTS = trace_of({"c": 6}, [(1000, "", "c"), (1000, "c", "")])


def test_a_job_waits_for_space_that_another_holds_and_gets_it_at_once():
    jobs = [Job(HOLDS, iterations=1), Job(WANTS, iterations=1, arrival_cycles=1500)]
    records = share(jobs, machine(12), Keep())
    assert ends(records, 0) == [1000, 6000, 7000, 8000]
    assert ends(records, 1) == [8000, 9000]
    assert stalls(records, 1) == {(0, StallReason.ALLOCATION): 5500}
    assert [record.peak_gpu_bytes_of_all for record in records.iterations] == [11_000, 11_000]
    roomy = share(jobs, machine(16), Keep())
    assert ends(roomy, 1) == [2500, 3500]
    assert roomy.iterations[-1].peak_gpu_bytes_of_all == 16_000


@pytest.mark.parametrize("first", [0, 1])
def test_space_that_a_copy_out_gives_back_goes_to_the_other_job(first):
    """Whichever of the two comes first in the workload."""
    offloads = trace_of({"x*": 8, "y": 2, "z*": 3}, [(2000, "x", "y"), (2000, "y z", "")])
    jobs = [Job(offloads, iterations=1), Job(WANTS, iterations=1, arrival_cycles=1)]
    records = share(jobs if not first else jobs[::-1], machine(16), Offload())
    # Of 16 pages, 13 are taken until x has been copied.
    assert ends(records, 1 - first)[0] == 9000
    assert stalls(records, 1 - first) == {(0, StallReason.ALLOCATION): 7999}


class Moves(Keep):
    """Makes moves of tensor 0 given by job and kernel."""

    name = "moves"

    def __init__(self, moves):
        self.moves = moves

    def on_kernel_start(self, view):
        return [self.moves[view.job, view.kernel]] if (view.job, view.kernel) in self.moves else []


def test_a_prefetch_starts_as_soon_as_another_job_has_given_space_back():
    first = trace_of({"x*": 6}, [(1000, "x", ""), (20_000, "", ""), (22_000, "", ""), (1000, "x", "")])
    other = trace_of({"y": 8}, [(1000, "", "y"), (20_000, "", ""), (50_000, "", ""), (1000, "y", "")])
    jobs = [Job(first, iterations=1), Job(other, iterations=1, arrival_cycles=8000)]
    records = share(jobs, machine(10), Moves({(0, 1): Evict(0), (0, 2): Fetch(0), (1, 2): Evict(0)}))
    # x leaves from 1000 to 7000, y from 29,000 to 37,000. x is back at 43,000, when it is needed.
    assert ends(records, 0) == [1000, 21_000, 43_000, 44_000]


def test_scratch_space_is_free_for_others_when_its_job_has_ended():
    builder = TraceBuilder("with scratch space")
    scratch = builder.tensor("scratch", 5 * PAGE, TensorKind.WORKSPACE)
    builder.kernel("Kernel0", 3000, [], [scratch])
    jobs = [Job(builder.build(), iterations=2), Job(WANTS, iterations=1, arrival_cycles=1)]
    # Of 10 pages, 5 are scratch space until the first job's second iteration has ended.
    assert ends(share(jobs, machine(10), Scratch()), 1) == [7000, 8000]
    assert ends(share(jobs, machine(11), Scratch()), 1) == [1001, 2001]


def test_jobs_that_hold_what_the_other_wants_are_unsupported():
    jobs = [Job(HOLDS, iterations=1)] * 2
    with pytest.raises(UnsupportedError, match="held by a 5 kB; other jobs have 5 kB"):
        share(jobs, machine(12), Keep())
    in_turn = share(jobs, machine(12), Keep(), admission_memory="live")
    assert in_turn.jobs[1].start == in_turn.jobs[0].end


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(traces(), st.integers(0, 50_000)), min_size=1, max_size=3),
    st.sampled_from(["time_sliced", "concurrent"]),
    st.sampled_from([Keep, G10Host, VdnnPlusPlus]),
    st.integers(30, 100),
)
def test_jobs_end_or_are_unsupported_and_where_all_fit_all_end(entries, compute, policy, gpu_pages):
    jobs = [Job(trace, arrival_cycles=arrival) for trace, arrival in entries]
    try:
        records = share(jobs, machine(gpu_pages, 1000), policy(), compute=compute)
    except UnsupportedError:
        needed = sum(tensor.size_bytes for job in jobs for tensor in job.trace.tensors) // 1000
        assert gpu_pages < needed
        return
    assert len(records.iterations) == 2 * len(jobs)
    assert all(i.end - i.start >= i.ideal_cycles for i in records.iterations)
    assert all(i.peak_gpu_bytes <= i.peak_gpu_bytes_of_all <= gpu_pages * 1000 for i in records.iterations)


def test_a_design_that_chooses_by_trials_runs_where_a_job_is_refused():
    jobs = [Job(HOLDS, iterations=2)] * 2
    records = share(jobs, machine(12), VdnnMulti(), admission_memory="live", admission="refuse")
    assert [job.refused for job in records.jobs] == [False, True]
    assert {record.job for record in records.iterations} == {0}
