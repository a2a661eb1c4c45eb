"""Kernels that use tensors where they lie: timelines worked out by hand (see ``machines``).

Where nothing else is said, ten pages of a weight lie in host memory, a link carries a byte in a cycle, and
the kernel's output, a page, is mapped in 2,000 cycles before it starts.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import GPG10, OWN, PAGE, iteration_times, kernel_times, machine, simulate, trace_of

import g10sim
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.errors import CapacityError, ConfigError, PlanError, PolicyError, TraceError
from g10sim.policies.interface.moves import Access, Drop, Evict, Fetch
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.plan_format import load_plan, save_plan
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.records import StallReason
from g10sim.results.timeline import chrome_trace
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.synthetic import random_trace
from g10sim.trace.workload import Job, Workload


class UsesInPlace(Policy):
    """Uses what lies in host memory where it lies; ``before`` are moves by kernel that come first."""

    name = "uses_in_place"

    def __init__(self, *, before=None):
        self.before = before or {}

    def on_kernel_start(self, view):
        yield from self.before.get(view.kernel, ())
        for tensor in view.trace.kernels[view.kernel].tensors:
            if view.host_bytes(tensor):
                yield Access(tensor)


class Moves(Policy):
    """Carries out planned moves."""

    name = "moves"

    def __init__(self, *moves):
        self.moves = moves

    def plan_job(self, job, system, behaviour):
        return MigrationPlan(self.moves)


class Copies(Moves):
    """The same with contiguous memory."""

    requirements = Requirements(placement="contiguous")


def reader(duration, *reads):
    return trace_of({"w*": 10, "x": 1}, [(duration, "w", "x", *reads)])


def host(**rates):
    return machine(kernel_access=rates)


@pytest.mark.parametrize("duration", [1_000, 10_000, 25_000])
def test_a_kernel_takes_its_own_time_or_that_of_the_bytes_it_reads(duration):
    records = simulate(reader(duration), host(), UsesInPlace())
    assert iteration_times(records) == [2_000 + max(duration, 10_000)] * 2
    assert dict(records.kernels[0].stalls).get(StallReason.IN_PLACE_ACCESS, 0) == max(0, 10_000 - duration)
    last = records.iterations[-1]
    assert (last.in_place_read_bytes, last.in_place_written_bytes) == (10 * PAGE, 0)
    assert last.traffic["host_to_gpu_bytes"] == 0


def test_an_input_is_read_as_often_as_the_trace_says():
    records = simulate(reader(1_000, 3), host(), UsesInPlace())
    assert iteration_times(records) == [2_000 + 30_000] * 2
    assert records.iterations[-1].in_place_read_bytes == 30 * PAGE


def test_kernels_may_be_slower_than_copies():
    """Reading goes at half the rate of the link, writing at a quarter; both directions go at a time."""
    trace = trace_of({"w*": 10}, [(1_000, "w", "w")])
    assert iteration_times(simulate(reader(1_000), host(read="0.5 GB/s"), UsesInPlace())) == [22_000] * 2
    rates = {"read": "0.5 GB/s", "write": "0.25 GB/s"}
    records = simulate(trace, host(**rates), UsesInPlace())
    assert iteration_times(records) == [40_000] * 2
    assert records.iterations[0].in_place_written_bytes == 10 * PAGE


def test_both_directions_share_what_limits_them_together():
    trace = trace_of({"w*": 10}, [(1_000, "w", "w")])
    assert iteration_times(simulate(trace, host(), UsesInPlace())) == [10_000] * 2
    assert (
        iteration_times(simulate(trace, machine(kernel_access={}, duplex="1 GB/s"), UsesInPlace()))
        == [20_000] * 2
    )


def test_a_prefetch_on_the_same_link_makes_it_slower():
    """They get half of the link each until one is done: 5 pages of the prefetch, 10 of the kernel."""
    trace = trace_of({"w*": 10, "v*": 5}, [(1_000, "w", "w"), (1_000, "v", "")])
    records = simulate(trace, host(), UsesInPlace(before={0: [Fetch(1)]}), iterations=1)
    assert kernel_times(records) == [15_000, 1_000]
    alone = simulate(trace, host(), UsesInPlace(), iterations=1)
    assert kernel_times(alone) == [10_000, 5_000]


def test_demanded_and_evicted_pages_do_not_go_before_it():
    """The eviction of 5 pages and the kernel's writing of 10 share the way out."""
    trace = trace_of({"v": 5, "w*": 10}, [(1_000, "", "v"), (1_000, "", "w"), (1_000, "v", "")])
    records = simulate(trace, host(), UsesInPlace(before={1: [Evict(0)]}), iterations=1)
    assert kernel_times(records)[1] == 15_000


def test_only_the_kernel_that_asked_uses_it_in_place():
    """The second kernel waits for a page fault of ten groups, 1,000 cycles and a page each."""
    trace = trace_of({"w*": 10}, [(1_000, "w", ""), (1_000, "w", "")])
    records = simulate(trace, host(), Moves(Planned(0, Access(0))), iterations=2)
    assert kernel_times(records, 0) == [10_000, 21_000]
    assert kernel_times(records, 1) == [1_000, 1_000]  # it is on the GPU now


def test_what_lies_elsewhere_comes_in():
    """A weight of ten pages of which the GPU has none and host memory none yet: it is born on the GPU."""
    trace = trace_of({"x": 10}, [(1_000, "", "x"), (1_000, "x", "")])
    records = simulate(trace, host(), UsesInPlace(), iterations=1)
    assert records.iterations[0].in_place_read_bytes == 0
    assert kernel_times(records)[1] == 1_000


def test_tensors_behind_an_allocator_are_used_in_place_too():
    records = simulate(reader(1_000), host(), UsesInPlace(), BehaviourSpec(), iterations=3)
    assert [record.in_place_read_bytes for record in records.iterations] == [10 * PAGE] * 3
    assert iteration_times(records)[1:] == [10_000] * 2


def test_a_tensor_computed_again_is_made_from_what_lies_in_place():
    """Dropping ``y`` runs kernel 0 again, which reads the weight over the link again."""
    trace = trace_of({"w*": 10, "y": 1}, [(1_000, "w", "y"), (1_000, "", ""), (1_000, "w y", "")])

    class Drops(UsesInPlace):
        def on_kernel_end(self, view):
            return [Drop(1)] if view.kernel == 0 else []

    records = simulate(trace, host(), Drops(), iterations=1)
    assert records.iterations[0].in_place_read_bytes == 30 * PAGE
    assert records.jobs[0].drops == 1


@pytest.mark.parametrize(
    ("system", "behaviour", "move", "words"),
    [
        (machine(), OWN, Access(0), "lies in 'host'; allowed in place: no tier here"),
        (machine(kernel_access={}), OWN, Access(1), "the kernel does not touch; allowed: its tensors"),
        (machine(), GPG10, Access(0), "allowed in place: no tier here"),
    ],
)
def test_what_cannot_be_used_in_place_is_refused(system, behaviour, move, words):
    trace = trace_of({"w*": 10, "v*": 1}, [(1_000, "w", ""), (1_000, "v", "")])
    with pytest.raises(PolicyError, match="kernel 0") as caught:
        simulate(trace, system, Moves(Planned(0, move)), behaviour)
    assert words in str(caught.value)


def test_an_unknown_tier_a_delay_and_contiguous_memory_are_refused():
    with pytest.raises(PlanError, match="unknown tier 'cxl'; allowed: host"):
        simulate(reader(1_000), host(), Moves(Planned(0, Access(0, "cxl"))))
    with pytest.raises(PlanError, match="delay_cycles 5 of move 'access'; allowed: 0"):
        simulate(reader(1_000), host(), Moves(Planned(0, Access(0), 5)))
    with pytest.raises(PolicyError, match="'access' with contiguous memory; allowed: with paged memory"):
        simulate(reader(1_000), host(), Copies(Planned(0, Access(0))))


def test_an_ssd_cannot_be_used_in_place():
    tiers = [{"name": "disk", "kind": "ssd", "capacity": "1 GB", "read": "1 GB/s", "write": "1 GB/s"}]
    with pytest.raises(ConfigError, match=r"kernel_access: found an unknown key"):
        load_system(
            {
                "preset": "a100-40g-pcie3-znand",
                "tiers": [{**tiers[0], "latency": "1 us", "kernel_access": {}}],
            }
        )


@pytest.mark.parametrize("reads", [(1, 2), (0,), (-1,)])
def test_reads_are_one_positive_number_for_each_input(reads, tmp_path):
    with pytest.raises(TraceError, match=r"reads.*allowed: "):
        save_trace(reader(1_000, *reads), tmp_path / "trace.g10t")


def test_reads_are_kept_in_files_and_plans_may_use_in_place(tmp_path):
    trace = reader(1_000, 3)
    save_trace(trace, tmp_path / "trace.g10t")
    assert load_trace(tmp_path / "trace.g10t").kernels[0].reads == (3,)
    plan = MigrationPlan((Planned(0, Access(0, "host")),))
    save_plan(plan, tmp_path / "plan.g10p", trace)
    assert load_plan(tmp_path / "plan.g10p", trace).moves == plan.moves


def test_no_bound_holds_and_the_timeline_says_why():
    trace, system = reader(1_000), host()
    result = g10sim.simulate(trace, system, UsesInPlace(), compat=OWN)
    row = result.summary
    assert result.rows[0]["bound_kind"].startswith("none: kernels used tensors in place")
    assert row["stall_in_place_access_cycles"] == 9_000
    assert (row["in_place_read_bytes"], row["in_place_written_bytes"]) == (10_000, 0)
    records = simulate(trace, system, UsesInPlace(), record=("timeline",))
    events = chrome_trace(Workload((Job(trace, iterations=2),)), system, records)["traceEvents"]
    row = next(event for event in events if event["args"].get("name") == "in place, host")
    (first, _) = [event for event in events if event["ph"] == "X" and event["tid"] == row["tid"]]
    assert first["args"] == {"kernel": 0, "read_bytes": 10_000, "written_bytes": 0}
    assert "stall: in place access" in json.dumps(events)


@given(seed=st.integers(0, 10_000), rate=st.sampled_from(["0.1 GB/s", "1 GB/s", "30 GB/s"]))
def test_no_invariant_breaks_and_nothing_is_faster_than_ideal(seed, rate):
    """The checks of ``--check`` hold for any trace, GPU memory that is too small, and link."""
    trace = random_trace(seed)
    pages = sum(-(-tensor.size_bytes // PAGE) for tensor in trace.tensors)
    system = machine(max(pages // 2, 200), 10 * pages, pcie=rate, kernel_access={"read": "0.5 GB/s"})
    try:
        records = simulate(trace, system, UsesInPlace(), check=True)
    except CapacityError:
        return
    assert all(time >= records.iterations[0].ideal_cycles for time in iteration_times(records))
