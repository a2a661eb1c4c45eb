"""G10 paced: the plan that trial iterations find fastest is carried out."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from machines import iteration_times, machine, simulate, trace_of

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.designs.g10 import draft_g10
from g10sim.policies.designs.g10.draft import PlannedEviction
from g10sim.policies.designs.g10.recovery import WaitingJob
from g10sim.policies.interface.machine import PlannedTier
from g10sim.policies.interface.moves import Await, Evict
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import create
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.synthetic import chain, random_trace
from g10sim.trace.workload import Job, Workload

LEAN = BehaviourSpec(addresses="own", recency="use")
"""Few runs of pages: fast to simulate."""
DESIGNS = [
    *(("unpaced", 0, 1), ("waiting", 0, 1), ("unpaced", 128, 1)),
    *(("waiting", 0, 0.5), ("waiting", 0, 0.25), ("published", 0, 1), ("published", 128, 1)),
]
"""Method, kernels ahead and share of the SSD of each design, in the order in which they are tried."""
KEYS = ("method", "recovery_look_ahead", "ssd_share")
TRACES = {
    "chain": chain(24, activation_bytes=8 << 20, forward_ticks=300_000, backward_ticks=300_000),
    "quick": chain(24, activation_bytes=8 << 20, forward_ticks=50_000, backward_ticks=50_000),
    "random": random_trace(2),
}


def system(gpu_mib, host_mib):
    found = machine(1, pcie="20 GB/s", read="8 GB/s", write="4 GB/s", mapping="100 GB/s", page=4096)
    gpu = found.gpu.model_copy(update={"memory": gpu_mib << 20})
    return found.model_copy(
        update={"gpu": gpu, "host": found.host.model_copy(update={"memory": host_mib << 20})}
    )


def simulated(trace, machine, policy, behaviour=LEAN):
    return run(Workload((Job(TRACES[trace], iterations=2),)), machine, create(policy), behaviour)


def note_of(note):
    """Return the design that a note names."""
    method, ahead, share = re.fullmatch(
        r"plan (\w+)(?:, ([\d.]+) of the SSD's rates)?(?:, recovery (\d+) kernels ahead)?"
        r"(?:, the fastest of \d+ trials)?",
        note,
    ).group(1, 3, 2)
    return method, int(ahead or 0), float(share or 1)


@pytest.mark.slow
@pytest.mark.parametrize("host_mib", [0, 1000])
@pytest.mark.parametrize(("trace", "gpu_mib"), [("chain", 64), ("quick", 48), ("random", 28)])
def test_the_fastest_plan_is_carried_out_and_none_is_slower_than_that_of_g10(trace, gpu_mib, host_mib):
    tight = system(gpu_mib, host_mib)
    found = {
        design: iteration_times(
            simulated(trace, tight, {"name": "g10_paced", **dict(zip(KEYS, design, strict=True))})
        )[-1]
        for design in DESIGNS
    }
    assert iteration_times(simulated(trace, tight, "g10"))[-1] == found["unpaced", 0, 1]
    if host_mib:
        found = {key: cycles for key, cycles in found.items() if key[0] != "published" and key[2] == 1}
    records = simulated(trace, tight, "g10_paced")
    assert iteration_times(records)[-1] == min(found.values())
    assert note_of(records.note) == min(found, key=found.get)


@pytest.mark.parametrize(
    ("free", "dead", "awaited"),
    [(0, (), {1, 0}), (30, (), {1, 0}), (40, (), {1}), (99, (), {1}), (100, (), None), (0, (0,), {1})],
)
def test_a_kernel_ends_when_planned_evictions_have_made_room_for_the_next_one(free, dead, awaited):
    """Tensors of 60 bytes leave; the next kernel lacks one of 100. A dead one gives 40 bytes."""
    tier = PlannedTier("ssd", "ssd", 0, 1.0, 1.0)
    evictions = [PlannedEviction(tensor, 60, 0, 2, tier, out_by, None) for tensor, out_by in ((0, 1), (1, 0))]
    waiting = WaitingJob(SimpleNamespace(evictions=evictions), None, [[0, 1], [2], [3]], 0, 0)
    view = SimpleNamespace(
        kernel=0,
        free_bytes=free,
        size_bytes=lambda tensor: 100,
        resident_bytes=lambda tensor: 40 if tensor in dead else 0,
        is_dead=lambda tensor: tensor in dead,
        in_transfer_bytes=lambda tensor: 60,
        bytes_in=lambda tensor, tier: 0,
    )
    assert waiting.state(view) == ()
    assert list(waiting.on_kernel_start(view)) == []
    assert waiting.state(view) == ((1, "ssd"), (0, "ssd"))
    assert list(waiting.on_kernel_end(view)) == ([] if awaited is None else [Await(frozenset(awaited))])
    view.in_transfer_bytes = lambda tensor: 0
    assert list(waiting.on_kernel_end(view)) == []
    assert waiting.state(view) == ()


def test_the_published_plan_is_among_them_where_g10_follows_it():
    tight = system(64, 1000)
    found = [min(iteration_times(simulated("chain", tight, policy, GPG))) for policy in ("g10", "g10_paced")]
    assert found[1] <= found[0]


class Tiring(Policy):
    """Sends its weight away in every iteration from the third one on; notes what trials tell of that."""

    name = "tiring"

    def settle(self, obstacle):
        self.told = [obstacle.cycles(self, until_steady=steady)[0] for steady in (False, True)]
        return self

    def on_kernel_start(self, view):
        return [Evict(0, "host")] if view.iteration > 1 and view.kernel == 1 else []


@pytest.mark.parametrize(("iterations", "last"), [("auto", 4), (2, 1)])
def test_trials_judge_the_iteration_that_is_reported(iterations, last):
    """A weight of a page comes from the SSD in the first iteration and stays in the second."""
    trace, policy = trace_of({"w*": 1}, [(9000, "w", ""), (9000, "", "")]), Tiring()
    records = run(Workload((Job(trace, iterations=iterations),)), machine(), policy, LEAN)
    times = iteration_times(records)
    assert (len(times) - 1, policy.told) == (last, [times[1], times[last]])
    assert times[1] == 18_000
    assert iterations == 2 or times[last] > 18_000


def trials(speed=None):
    """Trials of 72 kernels, of which each gives the same cycles."""
    workload = Workload((Job(TRACES["chain"]),))
    machine = system(64, 1000)
    return SimpleNamespace(workload=workload, system=machine, cycles=lambda design, **options: speed)


def test_where_no_plan_can_be_carried_out_the_simplest_is_taken():
    chosen = create("g10_paced").settle(trials())
    assert (chosen.method, chosen.recovery_look_ahead) == ("unpaced", 0)


@pytest.mark.parametrize(("most", "design"), [(72, ("unpaced", 0)), (71, ("waiting", 128))])
def test_kernels_wait_without_trials_where_there_are_too_many(most, design):
    assert len(TRACES["chain"].kernels) == 72
    chosen = create({"name": "g10_paced", "trial_kernels": most}).settle(trials())
    assert (chosen.method, chosen.recovery_look_ahead) == design


@pytest.mark.parametrize(
    ("share", "tried"), [(1, [1, 1, 1, 0.5, 0.25, 1, 1]), (0.02, [0.02] * 3 + [0.01] * 2 + [0.02] * 2)]
)
def test_plans_spare_half_and_three_quarters_of_the_ssd_and_leave_a_hundredth(monkeypatch, share, tried):
    for same in (0.1, 0.0):  # 0: none can be carried out
        told = shares_of_the_ssd(monkeypatch, dict.fromkeys(("unpaced", "waiting", "published"), same), share)
        assert told == tried


@pytest.mark.parametrize(("waiting", "trials"), [(0.33, 3), (0.32, 7)])
def test_no_other_plan_is_tried_where_kernels_that_wait_are_a_tenth_faster(monkeypatch, waiting, trials):
    speeds = {"unpaced": 0.295, "waiting": waiting, "published": 0.1}
    assert len(shares_of_the_ssd(monkeypatch, speeds)) == trials


def shares_of_the_ssd(monkeypatch, speeds, share=1):
    """The share of the SSD of every design that is tried, of which each method has a speed."""
    told = []

    def speed(design, obstacle, to_beat, until_steady):
        told.append(design.ssd_share)
        design._needs_ssd = True
        return speeds[design.method]

    monkeypatch.setattr("g10sim.policies.designs.g10.g10_paced.speed", speed)
    create({"name": "g10_paced", "ssd_share": share}).settle(trials())
    return told


def test_without_a_choice_it_plans_as_told():
    policy = create({"name": "g10_paced", "method": "paced"})
    job = Job(TRACES["chain"])
    once = {"name": "g10_paced", "method": "paced", "pacing_rounds": 1}
    tight = system(64, 1000)
    paced, unpaced = (create(spec).plan_job(job, tight, BehaviourSpec()) for spec in (once, "g10"))
    assert paced == unpaced != policy.plan_job(job, tight, BehaviourSpec())


def test_the_published_plan_counts_nothing_that_is_never_used():
    trace = trace_of(
        {"a": 4, "b": 8, "unused*": 6}, [(90_000, "", "a"), (90_000, "", "b"), (90_000, "a b", "")]
    )
    used = replace(trace, tensors=trace.tensors[:2])
    cxl = {"name": "cxl", "capacity": "0 B", "read": "1 GB/s", "write": "1 GB/s", "latency": "0 ns"}
    roomless = {**machine(13).model_dump(mode="json"), "tiers": ["host", cxl, "ssd"]}
    policy = create({"name": "g10_paced", "method": "published"})
    found = [
        policy.plan_job(Job(one), system, BehaviourSpec())
        for one, system in ((used, machine(13)), (trace, SystemSpec(**roomless)))
    ]
    assert found[0] == found[1]


# c needs 30 of the 60 pages of a, which are not used while two long kernels read c.
LACKING = trace_of(
    {"a": 60, "b": 10, "c": 60},
    [
        *((1000, "", "a"), (1000, "a", "b"), (1000, "", ""), (1000, "", "c")),
        *((100_000, "c", ""), (100_000, "c", ""), (1000, "b", ""), (1000, "a", "")),
    ],
)


@pytest.mark.parametrize(
    ("method", "ends", "stalls"),
    [
        # a leaves at 1000 cycles a page from 2600 on, and c is mapped when it is gone.
        ("waiting", [1600, 2600, 62_600, 64_200], [(StallReason.SYNCHRONIZATION, 59_000)]),
        # The kernel that writes c pushes out 30 pages of a.
        ("unpaced", [1600, 2600, 3600, 34_900], []),
    ],
)
def test_kernels_wait_for_the_room_that_the_plan_makes(method, ends, stalls):
    policy = create({"name": "g10_paced", "method": method, "recovery_look_ahead": 0})
    records = simulate(LACKING, machine(100, mapping="100 GB/s"), policy)
    assert [kernel.end for kernel in records.kernels[:4]] == ends
    assert list(records.kernels[2].stalls) == stalls


@pytest.mark.parametrize(
    ("speeds", "tried", "chosen"),
    [
        ({("unpaced", 0): 0.9991}, 1, ("unpaced", 0)),
        ({("unpaced", 0): 0.3, ("waiting", 0): 0.6, ("unpaced", 128): 0.5}, 3, ("waiting", 0)),
        ({("unpaced", 0): 0.4, ("waiting", 0): 0.5, ("unpaced", 128): 0.48}, 7, ("waiting", 0)),
        ({("published", 128): 0.5}, 7, ("published", 128)),
    ],
)
def test_plans_are_tried_as_long_as_a_better_one_may_come(monkeypatch, speeds, tried, chosen):
    told = []

    def speed(design, obstacle, to_beat, until_steady):
        told.append((design.method, design.recovery_look_ahead))
        design._needs_ssd = True
        return speeds.get(told[-1], 0.1)

    monkeypatch.setattr("g10sim.policies.designs.g10.g10_paced.speed", speed)
    found = create("g10_paced").settle(trials())
    assert (len(told), (found.method, found.recovery_look_ahead)) == (tried, chosen)


def test_every_plan_is_made_once(monkeypatch):
    made = []

    def draft(trace, machine, parameters):
        made.append((parameters.planner, parameters.pacing_rounds))
        return draft_g10(trace, machine, parameters)

    monkeypatch.setattr("g10sim.policies.designs.g10.g10_paced.draft_g10", draft)
    simulated("chain", system(64, 1000), "g10_paced")
    assert sorted(made) == [("live", 1), ("live", 20)]
