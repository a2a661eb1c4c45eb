"""Owners of cycles, page faults, peaks and turns, worked out by hand on the machines of ``machines``."""

from dataclasses import replace
from time import process_time
from types import SimpleNamespace

import pytest
from machines import FROM_SSD, GPG10, OWN, FollowPlan, kernel_times, machine, simulate, trace_of
from memories import FLASH, GPU, HOST, flash_pool, host_pool, memory_of

from g10sim.config.presets import load_system
from g10sim.errors import InvariantError
from g10sim.hardware.faults import FaultCount, ProfiledFaultCost
from g10sim.hardware.pools import Pool
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.interface.moves import Drop, Fetch, Protect
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy
from g10sim.records import StallReason
from g10sim.sim.accounts import recorder
from g10sim.sim.engine import run
from g10sim.sim.hooks import TimeInHooks
from g10sim.sim.stages.working_set import dominant_reason
from g10sim.trace.model import FaultProfile
from g10sim.trace.workload import Job, Workload


def stalls(records, kernel):
    return dict(records.kernels[kernel].stalls)


def test_transfers_overlap_with_a_kernel_only_once_it_computes():
    trace = trace_of({"w*": 2, "v*": 2}, [(10_000, "w", ""), (10_000, "v", "")])
    records = simulate(trace, machine(), FollowPlan(moves=[(0, 1, GPU)]), iterations=1)
    # The kernel waits 10,000 cycles for w; then the SSD reads v, 2000 a page, while the kernel computes.
    first = records.kernels[0]
    assert (first.start, first.end) == (0, 20_000)
    assert (first.compute_cycles, first.overlap_cycles, first.in_flight_cycles) == (10_000, 4000, 14_000)
    assert stalls(records, 0) == {StallReason.FAULT_FLASH: 10_000}
    assert records.iterations[0].overlap_cycles == 4000


def test_events_are_kernels_and_changes_of_transfers():
    trace = trace_of({"w*": 2}, [(10_000, "w", ""), (10_000, "w", ""), (10_000, "w", "")])
    # The first kernel waits for w to come in; from then on nothing moves.
    assert [simulate(trace, machine(), BaseUvm(), iterations=count).events for count in (1, 3)] == [4, 10]


def test_durations_measured_with_faults_are_ticks_of_the_trace():
    trace = replace(trace_of({"a": 1}, [(1_000, "", "a")]), ticks_per_second=1000)
    published = load_system("a100-40g-g10-paper")
    cost = ProfiledFaultCost(published, trace.ticks_per_second)
    nothing, outputs = FaultCount([0] * 4), FaultCount([50, 0, 0, 0], 100)
    # 3 s longer than the second that it computes for, if all of its outputs fault.
    clock = published.gpu.clock
    found = cost.cycles(clock, FaultProfile(4000, 4000), nothing, outputs)
    assert found == pytest.approx(1.5 * clock, abs=1)


@pytest.mark.parametrize(("breakdown", "overlap"), [("computing", 4000), ("in_flight", 0)])
def test_overlap_counts_while_a_kernel_computes_or_beyond_its_stall(breakdown, overlap):
    # a is made again before kernel 2: 4000 of first touches, 10,000 of computing. Then y comes in for 4000.
    trace = trace_of({"y*": 2, "a": 2}, [(10_000, "", "a"), (10_000, "", ""), (10_000, "a", "")])
    policy = Plans(Planned(1, Drop(1)), Planned(2, Fetch(0), 15_000))
    behaviour = OWN.model_copy(update={"breakdown": breakdown})
    records = simulate(trace, machine(), policy, behaviour, iterations=1)
    last = records.kernels[-1]
    assert (last.end - last.start, last.in_flight_cycles) == (24_000, 4000)
    assert last.overlap_cycles == overlap


def test_a_cycle_belongs_to_the_slowest_tier_that_pages_are_awaited_from():
    trace = trace_of({"w*": 4, "v*": 1}, [(1000, "w", ""), (100_000, "", ""), (1000, "w v", "")])
    records = simulate(trace, machine(), FollowPlan(moves=[(1, 0, HOST)]), iterations=1)
    # The page of flash takes 5000 cycles, the four of host memory 2000 each.
    assert kernel_times(records)[2] == 8000 + 1000
    assert stalls(records, 2) == {StallReason.FAULT_FLASH: 5000, StallReason.FAULT_HOST: 3000}


def test_what_a_closed_form_adds_belongs_to_the_slowest_tier():
    memory = memory_of([9], 9, [host_pool(9), flash_pool(9)])
    nothing, host, flash, first_touch = (FaultCount([0] * 4) for _ in range(4))
    host.at[HOST], flash.at[FLASH], first_touch.at[0] = 5, 1, 9
    assert dominant_reason(memory, host, flash) == StallReason.FAULT_FLASH
    assert dominant_reason(memory, first_touch, host) == StallReason.FAULT_HOST
    assert dominant_reason(memory, first_touch, nothing) == StallReason.FIRST_TOUCH
    assert dominant_reason(memory, nothing, nothing) == StallReason.LATE_PREFETCH


@pytest.mark.parametrize("behaviour", [None, GPG10])
def test_a_tensor_that_a_kernel_reads_and_writes_faults_once(behaviour):
    trace = trace_of({"w*": 3, "a": 2}, [(10_000, "w a", "w a")])
    records = simulate(trace, machine(), BaseUvm(), behaviour, iterations=1)
    assert records.iterations[0].page_faults == 5
    assert records.kernels[0].fault_pages["flash_fault_pages"] == 3
    assert records.kernels[0].first_touch_pages == 2


@pytest.mark.parametrize("behaviour", [None, GPG10])
@pytest.mark.parametrize("pages", [1, 2, 7])
def test_the_peak_of_host_memory_counts_every_page(pages, behaviour):
    trace = trace_of({"w*": pages}, [(1000, "w", ""), (100_000, "", ""), (1000, "w", "")])
    records = simulate(trace, machine(), FollowPlan(moves=[(1, 0, HOST)]), behaviour)
    assert [i.peaks["peak_host_bytes"] for i in records.iterations] == [pages * 1000] * 2


@pytest.mark.parametrize(("look_ahead", "spared"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (9, {0, 1, 2})])
def test_deepum_spares_the_kernels_before_the_one_that_it_prefetches_for(look_ahead, spared):
    trace = trace_of({"x*": 1, "y*": 1, "u*": 1}, [(1000, "x", ""), (1000, "y", ""), (1000, "u", "")])
    protect, *fetches = DeepUm(look_ahead=look_ahead).on_kernel_start(
        SimpleNamespace(trace=trace, job=0, kernel=0)
    )
    assert protect == Protect(frozenset(spared))
    assert fetches == [Fetch(look_ahead % 3)]


def test_deepum_does_not_spare_the_kernel_that_it_prefetches_for():
    # While kernel 2 runs, v comes in for kernel 3 and the oldest page goes: x, which kernel 3 needs, too.
    tensors = {"x*": 1, "y*": 1, "u*": 1, "v*": 1}
    kernels = [(100_000, "x", ""), (100_000, "y", ""), (100_000, "u", ""), (100_000, "x v", "")]
    records = simulate(trace_of(tensors, kernels), machine(3), DeepUm(look_ahead=1), iterations=1)
    # A page that is back from host memory within 1000 cycles has been late.
    assert kernel_times(records) == [105_000, 100_000, 100_000, 101_000]
    assert stalls(records, 3) == {StallReason.LATE_PREFETCH: 1000}


class Plans(Policy):
    """Follows a plan."""

    name = "plans"

    def __init__(self, *moves):
        self.moves = moves

    def plan_job(self, job, system, behaviour):
        return MigrationPlan.ordered(self.moves).with_ids(job.trace.ids_of_given)


class Shared:
    """Two GPUs whose prefetches share an uplink of a byte per cycle, in order of when they are needed."""

    def __init__(self, *jobs, gpus=2, policy=None):
        uplink = ("uplink", range(gpus), "1 GB/s")
        system = machine(gpus=gpus, read="2 GB/s", pcie="2 GB/s", shared=[uplink])
        system = system.model_copy(update={"pcie": system.pcie.model_copy(update={"service": "deadline"})})
        self.records = run(
            Workload(jobs), system, policy or PrefetchAll(), FROM_SSD, record=("migrations",), check=True
        )

    @property
    def arrivals(self):
        """Arrivals from the SSD in order of its last page: (GPU, tensor, cycle)."""
        came = [move for move in self.records.migrations if move.source == FLASH]
        return [(move.gpu, move.tensor, move.end) for move in sorted(came, key=lambda move: move.end)]


class PrefetchAll(Policy):
    """Asks for every weight at the kernel that is named in the workload's trace as its own."""

    name = "prefetch_all"

    def plan_job(self, job, system, behaviour):
        kernel = int(job.trace.model)
        return FollowPlan(moves=[(kernel, tensor.id, GPU) for tensor in job.trace.tensors]).plan_job(
            job, system, behaviour
        )


def prefetching(kernel, tensors, kernels, **options):
    """A job that prefetches all its tensors when this kernel starts."""
    return Job(trace_of(tensors, kernels, name=str(kernel)), iterations=1, **options)


def test_a_prefetch_is_due_when_its_kernel_starts_counted_from_the_running_one():
    # At cycle 100,000 GPU 0 has 10,000 cycles until it reads w, GPU 1 has 50,000 until it reads v.
    late = prefetching(1, {"w*": 10}, [(100_000, "", ""), (10_000, "", ""), (1000, "w", "")])
    early = prefetching(0, {"v*": 10}, [(50_000, "", ""), (1000, "v", "")], gpu=1, arrival_cycles=100_000)
    assert Shared(late, early).arrivals == [(0, 0, 110_000), (1, 0, 120_000)]


def test_a_prefetch_is_due_in_simulated_time():
    # GPU 0 needs w at cycle 150,000 and asked at 0; GPU 1 asks at 100,000 for what it needs at 160,000.
    late = prefetching(0, {"w*": 120}, [(150_000, "", ""), (1000, "w", "")])
    early = prefetching(0, {"v*": 10}, [(60_000, "", ""), (1000, "v", "")], gpu=1, arrival_cycles=100_000)
    assert Shared(late, early).arrivals == [(0, 0, 120_000), (1, 0, 130_000)]


@pytest.mark.parametrize("earlier", [0, 7000])
def test_gpus_take_turns_with_what_they_need_at_the_same_time(earlier):
    """Whatever one of them has computed before it asks."""
    # Both GPUs read w 20,000 cycles later, and v 21,000; 5000 cycles each.
    tensors, kernels = {"w*": 5, "v*": 5}, [(20_000, "", ""), (1000, "w", ""), (1000, "v", "")]
    before = [(earlier, "", "")] if earlier else []
    jobs = [
        prefetching(len(before), tensors, [*before, *kernels]),
        prefetching(0, tensors, kernels, gpu=1, arrival_cycles=earlier),
    ]
    arrivals = [(gpu, tensor, cycle - earlier) for gpu, tensor, cycle in Shared(*jobs).arrivals]
    # GPU 0 comes first with its first tensor, GPU 1 with its second.
    assert arrivals == [(0, 0, 5000), (1, 0, 10_000), (1, 1, 15_000), (0, 1, 20_000)]


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_gpus_without_jobs_take_no_turns(gpus):
    # All that kernel 4 reads is fetched from kernel 2 on: a from the SSD, b from host memory. x comes first.
    kernels = [
        (50_000, "b", ""),
        (50_000, "", ""),
        (30_000, "", ""),
        (10_000, "x", ""),
        (10_000, "a b c", ""),
    ]
    trace = trace_of({"x*": 5, "a*": 5, "b*": 5, "c*": 5}, kernels)
    policy = FollowPlan(moves=[(1, 2, HOST), (1, 3, GPU), (2, 0, GPU), (2, 1, GPU), (2, 2, GPU)])
    records = Shared(Job(trace, iterations=1), gpus=gpus, policy=policy).records
    fetched = [(move.tensor, move.end) for move in records.migrations if move.start >= 120_000]
    assert fetched == [(0, 125_000), (1, 130_000), (2, 135_000)]


def test_a_check_names_the_kernel_during_which_transfers_take_too_many_steps(monkeypatch):
    """Kernel 0 waits for two tensors, one after the other: two steps."""
    trace = trace_of({"a*": 3, "b*": 3}, [(5000, "a b", "")])
    monkeypatch.setattr(recorder, "MOST_STEPS", 2)
    simulate(trace, machine(), BaseUvm())
    monkeypatch.setattr(recorder, "MOST_STEPS", 1)
    with pytest.raises(InvariantError, match=r"iteration 0, kernel 0: transfers took 2 steps .* allowed: 1"):
        simulate(trace, machine(), BaseUvm())


def checked(change_kernel, change_iteration):
    """Give a checker the records of two kernels of 5000 cycles, changed."""
    trace = trace_of({"a": 1}, [(5000, "", ""), (5000, "", "")])
    records = simulate(trace, machine(), BaseUvm(), iterations=1)
    checker = recorder.Checker(streams_working_set=False, steps=lambda: 0)
    first, second = records.kernels
    checker.kernel_ended(first)
    checker.kernel_ended(replace(second, **change_kernel))
    memory = memory_of([1], 1, [host_pool(1)])
    checker.iteration_ended(replace(records.iterations[0], **change_iteration), memory)


@pytest.mark.parametrize(
    ("kernel", "iteration", "found"),
    [
        ({"kernel": 0}, {}, "kernel 0: does not follow the kernel before it"),
        ({"kernel": 2}, {}, "kernel 2: does not follow the kernel before it"),
        ({"iteration": 1}, {}, "iteration 1, kernel 1: does not follow the kernel before it"),
        ({"start": 5001, "end": 10_001}, {}, "kernel 1: does not follow the kernel before it"),
        ({"end": 10_001}, {}, r"kernel 1: 5000 \+ 0 cycles are not 5001"),
        ({}, {"end": 10_001}, "iteration 0: cycles without an owner"),
        ({}, {"end": 9000, "compute_cycles": 9000}, "iteration 0: kernels do not fill the iteration"),
        ({}, {"ideal_cycles": 10_001}, "iteration 0: faster than its kernels"),
    ],
)
def test_a_check_finds_kernels_out_of_order_and_cycles_without_an_owner(kernel, iteration, found):
    checked({}, {})
    with pytest.raises(InvariantError, match=f"{found}$"):
        checked(kernel, iteration)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda memory: setattr(memory.frames, "free", -1), "GPU memory holds 1 pages"),
        (lambda memory: setattr(memory.pools[HOST], "free", -1), "host memory is over its capacity"),
        (lambda memory: memory.discard(0), r"computes without tensors \[0\]"),
    ],
)
def test_a_check_finds_a_kernel_without_its_data_and_memory_that_is_too_full(change, found):
    memory, checker = (
        memory_of([1], 1, [host_pool(1)]),
        recorder.Checker(streams_working_set=False, steps=int),
    )
    kernel = trace_of({"a": 1}, [(1000, "", "a")]).kernels[0]
    memory.place(0, GPU)
    memory.hold(frozenset({0}))
    checker.kernel_starts(memory, kernel)
    change(memory)
    with pytest.raises(InvariantError, match=rf"^kernel 0 \(Kernel0\): {found}$"):
        checker.kernel_starts(memory, kernel)


@pytest.mark.interpreted
def test_iterations_end_with_a_check_of_every_device_where_that_is_asked_for(monkeypatch):
    def fail(pool):
        raise InvariantError(f"{pool.name} has wrong books")

    monkeypatch.setattr(Pool, "check", fail)
    trace = trace_of({"a": 1}, [(5000, "", "a")])
    simulate(trace, machine(), BaseUvm(), check=False)
    with pytest.raises(InvariantError, match="has wrong books"):
        simulate(trace, machine(), BaseUvm())


def test_time_in_hooks_adds_up_and_that_of_planning_is_told_apart():
    """A hook inside another one counts once."""

    def busy():
        start = process_time()
        while process_time() == start:
            pass
        return "moves"

    total = TimeInHooks()
    assert total.measured("on_kernel_start", busy) == "moves"
    assert total.seconds > 0
    assert total.planning_cpu_seconds == 0
    before = total.seconds
    assert total.measured("plan", lambda: total.measured("on_kernel_start", busy)) == "moves"
    assert total.seconds > before
    assert total.planning_cpu_seconds > 0
