"""Several jobs: turns on one GPU, sharing of links, arrival, and order of events within a cycle."""

import pytest
from machines import FROM_SSD, GPG10, FollowPlan, machine, trace_of
from memories import GPU
from scripted import Scripted

from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import CapacityError, ConfigError, PolicyError
from g10sim.hardware.memory import Residency
from g10sim.hardware.pools import Door
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.ideal import Ideal
from g10sim.policies.interface.policy import Policy
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.sim.fabric import Clock, Fabric
from g10sim.trace.workload import Job, Workload


def reader(pages=8, duration=10_000):
    """One kernel that reads a weight."""
    return trace_of({"w*": pages}, [(duration, "w", "")])


def simulate_jobs(jobs, system, policy=None, behaviour=None, **options):
    return run(
        Workload(tuple(jobs)), system, policy or BaseUvm(), behaviour or FROM_SSD, check=True, **options
    )


def spans(records):
    """(start, end) of every iteration by (job, iteration)."""
    return {(i.job, i.iteration): (i.start, i.end) for i in records.iterations}


@pytest.mark.parametrize("behaviour", [None, GPG10])
def test_jobs_on_one_gpu_run_one_after_the_other(behaviour):
    trace = trace_of({"a": 2}, [(10_000, "", "a")])
    records = simulate_jobs([Job(trace), Job(trace)], machine(2), behaviour=behaviour)
    times = spans(records)
    assert times[0, 0][0] == 0
    assert times[1, 0][0] == times[0, 1][1]
    # The second job finds an empty GPU: it takes as long as the first.
    assert times[1, 1][1] - times[1, 0][0] == pytest.approx(times[0, 1][1], abs=10_000)
    assert [(i.job, i.iteration) for i in records.iterations] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_second_job_takes_exactly_as_long_as_the_first():
    trace = trace_of({"w*": 3, "a": 2}, [(10_000, "w", "a"), (10_000, "a", "")])
    times = spans(simulate_jobs([Job(trace), Job(trace)], machine(5)))
    assert times[1, 1][1] - times[1, 0][0] == times[0, 1][1] - times[0, 0][0]


def test_job_does_not_start_before_it_arrives():
    records = simulate_jobs([Job(reader(), arrival_cycles=123_456, iterations=1)], machine())
    assert spans(records)[0, 0] == (123_456, 123_456 + 40_000 + 10_000)


def test_jobs_take_turns_in_order_of_arrival():
    jobs = [Job(reader(), arrival_cycles=5), Job(reader(), arrival_cycles=3), Job(reader(), arrival_cycles=5)]
    times = spans(simulate_jobs(jobs, machine()))
    assert times[1, 0][0] == 3
    assert times[0, 0][0] == times[1, 1][1]
    assert times[2, 0][0] == times[0, 1][1]


def test_gpu_rests_until_the_next_job_arrives():
    jobs = [Job(reader(), iterations=1), Job(reader(), iterations=1, arrival_cycles=10**6)]
    times = spans(simulate_jobs(jobs, machine()))
    assert times == {(0, 0): (0, 50_000), (1, 0): (10**6, 10**6 + 50_000)}


@pytest.mark.parametrize(
    ("uplink", "cycles"),
    [((), 20_000), ([("uplink", (0, 1), "1 GB/s")], 30_000), ([("uplink", (0,), "1 GB/s")], 20_000)],
)
def test_two_gpus_slow_each_other_only_on_a_shared_uplink(uplink, cycles):
    # Ten pages a GPU from an SSD that is fast enough for both.
    system = machine(gpus=2, read="2 GB/s", fault="0 us", flash_latency="0 us", shared=uplink)
    records = simulate_jobs([Job(reader(10), gpu=gpu, iterations=1) for gpu in (0, 1)], system)
    assert spans(records) == {(0, 0): (0, cycles), (1, 0): (0, cycles)}


def test_waiting_behind_another_gpu_is_contention():
    system = machine(
        gpus=2, read="2 GB/s", fault="0 us", flash_latency="0 us", shared=[("uplink", (0, 1), "1 GB/s")]
    )
    records = simulate_jobs([Job(reader(10), gpu=gpu, iterations=1) for gpu in (0, 1)], system)
    assert [dict(i.stalls) for i in records.iterations] == [{StallReason.LINK_CONTENTION: 20_000}] * 2


def test_job_that_ends_gives_its_share_of_the_uplink_back():
    system = machine(
        gpus=2, read="2 GB/s", fault="0 us", flash_latency="0 us", shared=[("uplink", (0, 1), "1 GB/s")]
    )
    jobs = [Job(reader(10), gpu=0, iterations=1), Job(reader(4), gpu=1, iterations=1)]
    times = spans(simulate_jobs(jobs, system))
    # Half each until job 1 has its four pages at 8000; then job 0 fetches its other six alone.
    assert times == {(0, 0): (0, 14_000 + 10_000), (1, 0): (0, 8000 + 10_000)}


def test_gpus_share_host_memory():
    trace = trace_of({"w*": 4, "a": 4}, [(10_000, "w", ""), (10_000, "", "a")])
    alone = simulate_jobs([Job(trace, iterations=1)], machine(4, 4))
    both = simulate_jobs([Job(trace, gpu=gpu, iterations=1) for gpu in (0, 1)], machine(4, 4, gpus=2))
    assert alone.iterations[0].traffic["gpu_to_ssd_bytes"] == 0
    moved = [
        sum(i.traffic[key] for i in both.iterations) for key in ("gpu_to_host_bytes", "gpu_to_ssd_bytes")
    ]
    assert moved == [4000, 4000]


def test_job_leaves_nothing_behind():
    trace = trace_of({"w*": 4, "a": 4}, [(10_000, "w", ""), (10_000, "", "a")])
    records = simulate_jobs([Job(trace), Job(trace)], machine(4, 4), record=("memory",))
    times = spans(records)
    after = [r for r in records.memory if r.time > times[0, 1][1]]
    assert all(r.tier_bytes["flash_bytes"] == 0 for r in after)
    assert all(r.tier_bytes["host_bytes"] <= 4000 for r in after)


def test_peak_host_memory_of_one_job_survives_the_start_of_another():
    # Job 0 fills four host pages in its first half and takes them back; job 1 starts in between.
    first = trace_of(
        {"w*": 4, "a": 4}, [(1000, "w", ""), (1000, "", "a"), (1000, "w", ""), (500_000, "w", "")]
    )
    second = trace_of({"b": 1}, [(1000, "", "b")])
    jobs = [Job(first, iterations=1), Job(second, gpu=1, arrival_cycles=300_000, iterations=1)]
    records = simulate_jobs(jobs, machine(4, 100, gpus=2))
    peaks = {i.job: i.peaks["peak_host_bytes"] for i in records.iterations}
    assert peaks[0] == 4000


def test_job_on_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"^workload\.jobs\[1\]\.gpu: found 2; allowed: 0 to 1$"):
        simulate_jobs([Job(reader()), Job(reader(), gpu=2)], machine(gpus=2))


def test_working_set_that_does_not_fit_is_refused():
    with pytest.raises(CapacityError) as error:
        simulate_jobs([Job(reader(pages=5))], machine(4))
    assert str(error.value) == (
        "kernel 0 (Kernel0) of 'tiny' has a working set of 5 kB; allowed: at most the GPU memory, 4 kB"
    )
    assert len(simulate_jobs([Job(reader(pages=5))], machine(4), Ideal()).iterations) == 2


def test_tensors_that_do_not_fit_the_ssd_are_refused():
    with pytest.raises(CapacityError, match="the SSD is full"):
        simulate_jobs([Job(reader(pages=5))], machine(flash_pages=4))


def test_plan_must_have_one_entry_per_job():
    class Short(Policy):
        """Plans for one job only."""

        name = "short"

        def plan(self, workload, system, behaviour):
            return (None,)

    with pytest.raises(
        PolicyError, match=r"^policy 'short': plan raised ValueError: found 1 plans; allowed: one per job, 2 "
    ):
        simulate_jobs([Job(reader()), Job(reader())], machine(), Short())


def test_wait_without_end_is_explained():
    # Three tensors that are alive together, of four pages each, and room for two.
    trace = trace_of(
        {"a": 4, "b": 4, "c": 4},
        [
            (1000, "", "a"),
            (1000, "", "b"),
            (1000, "", "c"),
            (1000, "a", ""),
            (1000, "b", ""),
            (1000, "c", ""),
        ],
    )
    with pytest.raises(CapacityError) as error:
        simulate_jobs([Job(trace)], machine(4, 0, flash_pages=4))
    assert str(error.value) == (
        "kernel 2 (Kernel2) waits indefinitely for 4 kB: nothing moves any more; "
        "host memory has 0 B free, the SSD 0 B"
    )


def test_kernel_events_come_before_transfer_timers_of_the_same_cycle():
    class Told(Scripted):
        def advance(self, now, jobs=None):
            super().advance(now)
            if now:
                happened.append(("transfers", now))

    happened = []
    clock = Clock()
    fabric = Fabric(clock, Told(10), Door(is_open=False))

    def waiter():
        yield fabric.until(lambda: ("transfers", 10) in happened, lambda: "")
        happened.append(("arrived", clock.now))

    def kernel():
        yield clock.timeout(5)
        yield clock.timeout(5)
        happened.append(("kernel", clock.now))

    clock.process(waiter())
    clock.process(kernel())
    clock.run(until=11)
    assert happened == [("kernel", 10), ("transfers", 10), ("arrived", 10)]


def test_timer_set_for_an_earlier_plan_does_not_ring():
    moving = Scripted(100)
    fabric = Fabric(Clock(), moving, Door(is_open=False))
    fabric.until(lambda: not moving.changes, lambda: "")
    moving.changes = [40]
    with fabric.alter():
        pass
    fabric.clock.run()
    assert [cycle for cycle in moving.visits if cycle] == [40]


def test_a_wait_ends_whoever_brings_time_forward():
    # What arrives at cycle 10 is the last change there is.
    transfers = Scripted(10)
    fabric = Fabric(Clock(), transfers, Door(is_open=False))
    waiting = fabric.until(lambda: not transfers.changes, lambda: "")
    woken = []

    def kernel():
        yield fabric.clock.timeout(10)
        with fabric.alter():
            pass
        woken.append(waiting.triggered)

    fabric.clock.process(kernel())
    fabric.clock.run()
    assert woken == [True]


def test_policies_see_their_own_job():
    seen = []

    class Looks(Policy):
        """Looks around."""

        name = "looks"

        def on_kernel_start(self, view):
            seen.append((view.job, view.gpu, view.iteration, view.kernel, view.now_cycles))
            return ()

    jobs = [Job(reader(), iterations=1), Job(reader(), gpu=1, arrival_cycles=7, iterations=1)]
    simulate_jobs(jobs, machine(gpus=2), Looks())
    assert seen == [(0, 0, 0, 0, 0), (1, 1, 0, 0, 7)]


def test_prefetches_of_two_gpus_share_the_ssd():
    trace = trace_of({"v*": 10, "a": 1}, [(8000, "", "a"), (1000, "v a", "")])
    plan = FollowPlan(moves=[(0, 0, GPU)])
    alone = simulate_jobs([Job(trace, iterations=1)], machine(gpus=2), plan)
    both = simulate_jobs([Job(trace, gpu=gpu, iterations=1) for gpu in (0, 1)], machine(gpus=2), plan)
    assert spans(alone)[0, 0] == (0, 20_000 + 1000)
    assert spans(both) == {(0, 0): (0, 40_000 + 1000), (1, 0): (0, 40_000 + 1000)}


def test_default_behaviour_is_that_of_the_hardware():
    workload = Workload((Job(reader()),))
    assert run(workload, machine(), BaseUvm()) == run(workload, machine(), BaseUvm(), BehaviourSpec())


@pytest.mark.interpreted
@pytest.mark.parametrize("stagger", [0, 7_001, 40_003])
@pytest.mark.parametrize("room", [11, 14, 40])
def test_moves_that_no_other_job_sees_are_counted_late(monkeypatch, stagger, room):
    counted, commit = [], Residency.commit
    monkeypatch.setattr(
        Residency, "commit", lambda memory, *move: (counted.append(len(move)), commit(memory, *move))
    )
    sizes = {"v*": 5, "w*": 7, "a": 4, "b": 3}
    trace = trace_of(
        sizes, [(3000, "v", "a"), (2000, "w a", ""), (1000, "v", "b"), (4000, "w", ""), (1, "b a", "")]
    )
    jobs = [Job(trace, gpu=gpu, arrival_cycles=gpu * stagger, iterations=3) for gpu in range(4)]
    found = []
    for record in ("kernels", "timeline"):  # who hears of every move hears of it at once
        counted.clear()
        records = simulate_jobs(jobs, machine(room, gpus=4), behaviour=BehaviourSpec(), record=[record])
        found.append((records.iterations, records.kernels, records.jobs, len(counted)))
    assert found[0][:3] == found[1][:3]
    assert found[0][3] <= found[1][3]
    assert room > 11 or not stagger or found[0][3] < found[1][3]
