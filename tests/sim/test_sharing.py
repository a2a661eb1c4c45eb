"""Several jobs on one GPU at the same time: its computing time, its memory, and who is let on it."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from drawn import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import GPG10, OWN, machine, trace_of

from g10sim.config.sharing import SharingSpec
from g10sim.errors import ConfigError, UnsupportedError
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.designs.g10.g10 import G10
from g10sim.policies.designs.ideal import Ideal
from g10sim.policies.designs.vdnn.vdnn import Vdnn
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.sim.fabric import Clock
from g10sim.sim.stages.compute import Concurrency, Shared, TimeSlices
from g10sim.trace.workload import Job, Workload


def computing(*cycles):
    """A trace of kernels that need one page, which is there from the first on."""
    return trace_of({"w*": 1}, [(duration, "w", "") for duration in cycles])


def share(jobs, system=None, policy=None, *, compute="time_sliced", record=(), **sharing):
    workload = Workload(tuple(jobs), sharing=SharingSpec(compute=compute, **sharing))
    return run(workload, system or machine(), policy or Ideal(), OWN, check=True, record=record)


def ends(records):
    return {record.job: record.end for record in records.jobs}


def test_two_jobs_take_turns_of_a_time_slice():
    jobs = [Job(computing(5000), iterations=1), Job(computing(3000), iterations=1)]
    # 0: 0-2000, 1: 2000-4000, 0: 4000-6000, 1: 6000-7000 (ends), 0: 7000-8000 (ends).
    assert ends(share(jobs, time_slice="2 us")) == {0: 8000, 1: 7000}


def test_what_others_computed_is_a_stall_of_its_own():
    jobs = [Job(computing(5000), iterations=1), Job(computing(3000), iterations=1)]
    stalls = [dict(i.stalls) for i in share(jobs, time_slice="2 us").iterations]
    assert stalls == [{StallReason.COMPUTE_SHARING: 4000}, {StallReason.COMPUTE_SHARING: 3000}]


def test_a_turn_lasts_over_kernels_of_one_job():
    jobs = [Job(computing(*[500] * 8), iterations=1), Job(computing(4000), iterations=1)]
    # 0: four kernels until 2000, 1 until 4000, 0 until 6000 (ends), 1 until 8000.
    assert ends(share(jobs, time_slice="2 us")) == {0: 6000, 1: 8000}


def test_a_job_that_ends_leaves_the_rest_of_its_turn():
    jobs = [Job(computing(500), iterations=1), Job(computing(4000), iterations=1)]
    assert ends(share(jobs, time_slice="2 us")) == {0: 500, 1: 4500}


def test_priority_multiplies_the_time_slice():
    jobs = [Job(computing(6000), iterations=1, priority=3), Job(computing(6000), iterations=1)]
    # 0 computes 3000 of every 4000 cycles: it ends in its second turn, at 4000 + 3000.
    assert ends(share(jobs, time_slice="1 us")) == {0: 7000, 1: 12_000}


def test_an_arrival_joins_the_rotation():
    jobs = [Job(computing(4000), iterations=1), Job(computing(1000), iterations=1, arrival_cycles=500)]
    # 0 until 2000 (its turn), 1 until 3000 (ends), 0 until 5000.
    assert ends(share(jobs, time_slice="2 us")) == {0: 5000, 1: 3000}


@pytest.mark.parametrize(
    ("slowdown", "cycles"),
    [(0.0, {0: 4000, 1: 8000}), (1.0, {0: 8000, 1: 12_000}), (0.5, {0: 6000, 1: 10_000})],
)
def test_concurrent_kernels_slow_each_other(slowdown, cycles):
    # Both at 1 / (1 + slowdown) of their speed until the shorter one ends; then the other alone.
    jobs = [Job(computing(4000), iterations=1), Job(computing(8000), iterations=1)]
    assert ends(share(jobs, compute="concurrent", slowdown=slowdown)) == cycles


@pytest.mark.parametrize("slowdown", [0.0, 0.1])
def test_long_kernels_are_no_faster_than_alone(slowdown):
    jobs = [Job(computing(100_000_001), iterations=1), Job(computing(200_000_003), iterations=1)]
    records = share(jobs, compute="concurrent", slowdown=slowdown)
    if slowdown:
        assert min(record.end - record.start - record.ideal_cycles for record in records.iterations) > 0
    else:
        assert ends(records) == {0: 100_000_001, 1: 200_000_003}


def test_jobs_with_gpus_of_their_own_do_not_notice_each_other():
    jobs = [Job(computing(5000, 700), iterations=2, gpu=gpu) for gpu in (0, 1)]
    alone = share(jobs[:1], machine(gpus=2))
    both = share(jobs, machine(gpus=2))
    assert ends(both) == dict.fromkeys((0, 1), ends(alone)[0])
    assert all(not i.stalls for i in both.iterations)


def pages(number, duration=10_000):
    """A job that makes and reads so many pages, and needs them all at once."""
    return trace_of({"a": number}, [(duration, "", "a"), (duration, "a", "")])


def test_jobs_share_memory_and_the_older_pages_leave():
    first = trace_of({"w*": 4, "z*": 4}, [(1000, "w", ""), (1000, "z", ""), (100_000, "", "")])
    second = trace_of({"v*": 4}, [(1000, "v", "")])
    jobs = [Job(first, iterations=1), Job(second, iterations=1, arrival_cycles=90_000)]
    records = share(jobs, machine(10, 100), BaseUvm(), record=("migrations",))
    moved = {(m.job, m.tensor, m.source.name, m.target.name): m.size_bytes for m in records.migrations}
    # Two pages were free; two of the other job's made room, of what it used longest ago.
    assert moved == {
        (0, 0, "FLASH", "GPU"): 4000,
        (0, 1, "FLASH", "GPU"): 4000,
        (1, 0, "FLASH", "GPU"): 4000,
        (0, 0, "GPU", "HOST"): 2000,
    }


def test_the_oldest_pages_leave_even_if_they_are_those_of_another_job():
    # Job 0 has left w and z (4 pages each) behind when job 1, with u (2) behind it, needs 4 pages for v.
    first = trace_of({"w*": 4, "z*": 4}, [(1000, "w", ""), (1000, "z", ""), (100_000, "", "")])
    second = trace_of({"u*": 2, "v*": 4}, [(1000, "u", ""), (1000, "v", "")])
    jobs = [Job(first, iterations=1), Job(second, iterations=1, arrival_cycles=70_000)]
    records = share(
        jobs, machine(10, 100), BaseUvm(), compute="concurrent", slowdown=0.0, record=("migrations",)
    )
    left = [(m.job, m.tensor, m.size_bytes) for m in records.migrations if m.target.name == "HOST"]
    assert left == [(0, 0, 4000)]


def test_the_most_memory_that_all_jobs_use_is_counted_at_one_time():
    # Each job needs 4 pages for a while, then 1: together never more than 5, though their peaks add up to 8.
    early = trace_of({"a": 4, "b": 1}, [(10_000, "", "a"), (40_000, "", "b")])
    late = trace_of({"b": 1, "a": 4}, [(40_000, "", "b"), (10_000, "", "a")])
    jobs = [Job(early, iterations=1), Job(late, iterations=1)]
    records = share(jobs, machine(20, 100), BaseUvm(), compute="concurrent", slowdown=0.0)
    assert [i.peak_gpu_bytes for i in records.iterations] == [4000, 4000]
    assert [i.peak_gpu_bytes_of_all for i in records.iterations] == [5000, 5000]
    alone = share(jobs[:1], machine(20, 100), BaseUvm(), compute="exclusive").iterations[0]
    assert alone.peak_gpu_bytes_of_all == alone.peak_gpu_bytes == 4000


def test_working_sets_that_do_not_fit_together_wait_for_each_other():
    jobs = [Job(pages(6), iterations=1), Job(pages(6), iterations=1)]
    records = share(jobs, machine(10, 100), BaseUvm(), admission_memory="working_set", admission="wait")
    assert {record.start for record in records.jobs} != {0}  # admitted one after the other
    small = [Job(trace_of({"a": 6}, [(1000, "", "a")]), iterations=3) for _ in (0, 1)]
    assert len(share(small, machine(12, 100), BaseUvm()).iterations) == 6


def test_jobs_of_one_gpu_contend_for_its_link():
    trace = trace_of({"w*": 8}, [(1000, "w", "")])
    system = machine(pcie="0.4 GB/s", fault="0 us", flash_latency="0 us")
    jobs = [Job(trace, iterations=1), Job(trace, iterations=1)]
    records = share(jobs, system, BaseUvm(), compute="concurrent", slowdown=0.0)
    # 16 pages of 2500 cycles each, half of them at a time for either.
    assert [dict(i.stalls) for i in records.iterations] == [{StallReason.LINK_CONTENTION: 40_000}] * 2


def test_kernels_whose_pages_do_not_fit_together_wait_for_their_turn():
    # Two halves of a page in one page when jobs are let on, but in two when a kernel uses them.
    halves = trace_of({"a": 1, "b": 1}, [(10_000, "", "a b")], page=500)
    jobs = [Job(halves, iterations=1), Job(halves, iterations=1)]
    records = share(jobs, machine(2, fault="0 us"), BaseUvm(), compute="concurrent", record=("kernels",))
    assert [record.start for record in records.jobs] == [0, 0]
    first = {StallReason.FIRST_TOUCH: 2000}
    waits = {StallReason.ALLOCATION: 12_000}
    assert [dict(kernel.stalls) for kernel in records.kernels] == [first, first | waits]


def test_admission_counts_what_it_is_told_to():
    trace = trace_of({"a": 3, "b": 3}, [(1000, "", "a"), (1000, "a", ""), (1000, "", "b"), (1000, "b", "")])
    jobs = [Job(trace, iterations=1), Job(trace, iterations=1)]
    together = share(jobs, machine(6, 100), BaseUvm(), admission_memory="working_set")
    assert [record.start for record in together.jobs] == [0, 0]
    in_turn = share(jobs, machine(6, 100), BaseUvm(), admission_memory="footprint")
    assert in_turn.jobs[1].start == in_turn.jobs[0].end > 0


def test_a_refused_job_is_on_record_and_never_runs():
    jobs = [Job(pages(6), iterations=1), Job(pages(6), iterations=1, arrival_cycles=5)]
    records = share(jobs, machine(10, 100), BaseUvm(), admission="refuse")
    assert [(r.job, r.refused, r.start, r.end) for r in records.jobs][1] == (1, True, 5, 5)
    assert {i.job for i in records.iterations} == {0}


def test_what_serves_one_job_at_a_time_is_refused():
    with pytest.raises(
        UnsupportedError, match=r"workload\.sharing\.compute: found 'time_sliced' under policy 'vdnn'"
    ):
        share([Job(pages(2))], policy=Vdnn(allocator="caching"))
    sharing = SharingSpec(compute="concurrent")
    with pytest.raises(ConfigError, match=r"compat\.transfers 'batched'; allowed: exclusive, or fluid"):
        run(Workload((Job(pages(2)),), sharing=sharing), machine(), BaseUvm(), GPG10)


def elapse(discipline, until):
    """Ends of jobs as a discipline gives them, advancing in steps of at most ``until`` cycles."""
    now, found = 0, {}
    while (left := discipline.next_end()) is not None:
        step = min(left, until)
        now += step
        found |= dict.fromkeys(discipline.advance(step), now)
        discipline.rest()
    return found


work = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 5)), min_size=1, max_size=6)


@given(work, st.integers(1, 5000), st.integers(1, 10**6))
def test_time_slices_conserve_work_and_starve_nobody(jobs, slice_cycles, step):
    whole, parts = TimeSlices(slice_cycles), TimeSlices(slice_cycles)
    for number, (cycles, priority) in enumerate(jobs):
        whole.add(number, cycles, priority)
        parts.add(number, cycles, priority)
    found = elapse(whole, 10**12)
    assert max(found.values()) == sum(cycles for cycles, _ in jobs)
    for number, (cycles, priority) in enumerate(jobs):
        turns = -(-cycles // (slice_cycles * priority))
        others = sum(slice_cycles * p for other, (_, p) in enumerate(jobs) if other != number)
        assert cycles <= found[number] <= cycles + turns * others
    if sum(cycles for cycles, _ in jobs) / step < 5000:
        assert elapse(parts, step) == found  # however often one looks


@pytest.mark.parametrize("used", [60, 99])
def test_slices_that_were_left_are_not_skipped(used):
    """Of the slices of 100 cycles the second job has some left when the third takes the GPU from it."""

    def left():
        slices = TimeSlices(100)
        for job, cycles in enumerate((2000, used, 10)):
            slices.add(job, cycles, 1)
        while slices._jobs[1].work or slices._jobs[2].work:
            slices.advance(slices.next_end())
            slices.rest()
        for job in (1, 2):
            slices.add(job, (3000, 10)[job - 1], 1)
        return slices

    assert elapse(left(), 10**9) == elapse(left(), 7)


def processor_sharing(jobs):
    """Ends of jobs, each a list of (computing, waiting), that compute at equal shares of the GPU's speed."""
    now, ends = Fraction(0), {}
    left = {number: [list(map(Fraction, part)) for part in parts] for number, parts in enumerate(jobs)}
    while left:
        busy = [number for number, parts in left.items() if parts[0][0]]
        steps = [left[number][0][0] * len(busy) for number in busy]
        steps += [parts[0][1] for number, parts in left.items() if number not in busy]
        step = min(steps)
        now += step
        for number, parts in list(left.items()):
            if number in busy:
                parts[0][0] -= step / len(busy)
            else:
                parts[0][1] -= step
            if not any(parts[0]):
                parts.pop(0)
            if not parts:
                ends[number] = now
                del left[number]
    return ends


def time_sliced(jobs, slice_cycles):
    """The same in slices of time."""
    clock, ends = Clock(), {}
    compute = Shared(clock, TimeSlices(slice_cycles))

    def process(number, parts):
        for computing, waiting in parts:
            yield from compute.run(number, computing)
            if waiting:
                yield clock.timeout(waiting)
        ends[number] = clock.cycle

    for number, parts in enumerate(jobs):
        clock.process(process(number, parts))
    clock.run()
    return ends


def mix(seed):
    """Two to four jobs, each with kernels of its own length, that wait now and then: mostly not for long."""
    random = Random(seed)
    return [kernels(random) for _ in range(random.randint(2, 4))]


def kernels(random):
    longest, patience, found = random.choice([100, 500, 3000]), random.choice([50, 500, 5000]), []
    while sum(computing for computing, _ in found) < 60_000:
        waiting = random.choice([0, 0, random.randint(1, patience)])
        found.append((random.randint(1, longest), waiting))
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_a_job_in_time_slices_ends_when_it_would_with_its_share_of_the_speed(seed):
    """By a twentieth later at most, and one slice of each job; the jobs wait between kernels."""
    jobs = mix(seed)
    exact, found = processor_sharing(jobs), time_sliced(jobs, 2000)
    for number, end in found.items():
        assert end <= 1.05 * exact[number] + 2000 * len(jobs)


def test_a_job_that_waits_for_less_than_others_compute_goes_on_with_its_slice():
    # The first job computes for 500, waits for 10, and computes for 500: within its slice of 2000 cycles. The
    # second has a slice of its own for all that it computes.
    ends = time_sliced([[(500, 10), (500, 0)], [(1500, 0)]], 2000)
    assert ends == {0: 1010, 1: 2500}


@given(work, st.floats(0, 1))
def test_concurrency_is_no_faster_than_alone_and_no_slower_than_in_turn(jobs, slowdown):
    discipline = Concurrency(slowdown)
    for number, (cycles, priority) in enumerate(jobs):
        discipline.add(number, cycles, priority)
    found = elapse(discipline, 10**12)
    for number, (cycles, _) in enumerate(jobs):
        assert found[number] >= cycles
    highest = max(priority for _, priority in jobs)
    for number, (cycles, priority) in enumerate(jobs):  # nobody starves, however low its priority
        slowest = highest * (1 + (len(jobs) - 1) * slowdown) / priority
        assert found[number] <= cycles * slowest * (1 + 1e-9) + len(jobs)
    if len({priority for _, priority in jobs}) == 1:
        assert max(found.values()) <= sum(cycles for cycles, _ in jobs) + len(jobs)


def most_at_once(trace):
    """Pages of the kernel that needs most."""
    return max(sum(trace.tensors[t].size_bytes for t in k.tensors) for k in trace.kernels) // 1000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(traces(), st.integers(0, 50_000), st.integers(1, 3)), min_size=1, max_size=4),
    st.sampled_from(["exclusive", "time_sliced", "concurrent"]),
    st.sampled_from([BaseUvm, DeepUm, G10, Ideal]),
    st.integers(18, 60),
)
def test_jobs_that_share_a_gpu_all_end_and_none_is_faster_than_alone(entries, compute, policy, gpu_pages):
    jobs = [Job(trace, arrival_cycles=arrival, priority=priority) for trace, arrival, priority in entries]
    gpu_pages = max(gpu_pages, *map(most_at_once, (trace for trace, _, _ in entries)), 0)
    records = share(jobs, machine(gpu_pages, 1000), policy(), compute=compute, record=("kernels",))
    assert len(records.iterations) == 2 * len(jobs)
    again = share(jobs, machine(gpu_pages, 1000), policy(), compute=compute, record=("kernels",))
    assert records == again
    for record in records.iterations:
        assert record.end - record.start >= record.ideal_cycles
    for number, job in enumerate(jobs):  # each gets all the work of its kernels, and no more
        mine = [k for k in records.kernels if k.job == number]
        assert sum(k.compute_cycles for k in mine) == sum(
            i.ideal_cycles for i in records.iterations if i.job == number
        )
        assert len(mine) == 2 * len(job.trace.kernels)
    if compute != "concurrent":
        spans = [(k.start, k.end) for k in records.kernels]
        busy = sum(k.compute_cycles for k in records.kernels)
        assert max(end for _, end in spans) - min(start for start, _ in spans) >= busy


@settings(max_examples=40, deadline=None)
@given(
    st.lists(traces(persistent=False), min_size=2, max_size=3),
    st.sampled_from(["exclusive", "time_sliced", "concurrent"]),
    st.sampled_from([BaseUvm, DeepUm, G10, Ideal]),
    st.integers(1, 8),
)
def test_jobs_with_gpus_of_their_own_run_as_if_alone(entries, compute, policy, slack):
    """With links of their own, host memory for all, and nothing to fetch from the SSD they share."""
    pages = slack + max(map(most_at_once, entries))
    system = machine(pages, 1000, gpus=len(entries))
    jobs = [Job(trace, gpu=gpu) for gpu, trace in enumerate(entries)]
    together = share(jobs, system, policy(), compute=compute, record=("kernels",))
    for number, job in enumerate(jobs):
        alone = share([replace(job, gpu=0)], system, policy(), compute=compute, record=("kernels",))
        mine = [k for k in together.kernels if k.job == number]
        assert [times(k) for k in mine] == [times(k) for k in alone.kernels]


def times(kernel):
    return kernel.iteration, kernel.kernel, kernel.start, kernel.end, kernel.stalls, kernel.gpu_pages
