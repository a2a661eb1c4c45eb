"""The planner of G10: what a plan promises, on random traces and on ones with known answers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import PAGE, machine, trace_of

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.errors import ConfigError
from g10sim.policies.designs.g10 import PlanningParameters, draft_g10, plan_g10
from g10sim.policies.designs.g10.draft import Draft, PlannedEviction
from g10sim.policies.designs.g10.live import _expected_stalls, _is_progress
from g10sim.policies.designs.g10.recovery import RecoveringJob
from g10sim.policies.designs.g10.tuned import unified_memory_factor
from g10sim.policies.interface.machine import planned_machine
from g10sim.policies.interface.moves import Evict, Fetch, Free
from g10sim.policies.interface.plan import Planned
from g10sim.policies.interface.registry import create
from g10sim.policies.planning.occupancy import Budget, Occupancy
from g10sim.trace.synthetic import chain, random_trace
from g10sim.trace.workload import Job, Workload

seeds = st.integers(min_value=0, max_value=10**6)
gpu_mib = st.integers(min_value=4, max_value=80)
host_mib = st.sampled_from([0, 8, 1000])
WAYS = {
    "live": PlanningParameters(),
    "paced": PlanningParameters(pacing_rounds=5),
    "published": PlanningParameters(planner="published"),
}
ways = st.sampled_from(list(WAYS))


def system_of(gpu, host=1000):
    found = machine(1, pcie="20 GB/s", read="8 GB/s", write="4 GB/s", mapping="100 GB/s")
    return found.model_copy(
        update={
            "gpu": found.gpu.model_copy(update={"memory": gpu << 20}),
            "host": found.host.model_copy(update={"memory": host << 20}),
        }
    )


def pages_bytes(tensor):
    return -(-tensor.size_bytes // PAGE) * PAGE


def draft_of(trace, system, parameters=None):
    return draft_g10(trace, planned_machine(system, BehaviourSpec()), parameters or PlanningParameters())


def plan_of(trace, system, parameters=None):
    return plan_g10(trace, planned_machine(system, BehaviourSpec()), parameters or PlanningParameters())


def resident_bytes(trace, draft):
    """Bytes on the GPU per kernel if the moves of a paced draft do what they are meant to."""
    kernels = len(trace.kernels)
    away = [set() for _ in range(kernels)]
    for eviction in draft.evictions:
        for kernel in range(eviction.out_by + 1, eviction.prefetch):
            away[kernel % kernels].add(eviction.tensor)
    asked = {tensor: kernel for kernel, tensor in draft.allocations}
    total = [0] * kernels
    for tensor, uses in zip(trace.tensors, trace.uses, strict=True):
        first = 0 if tensor.persistent else asked.get(tensor.id, 0)
        for kernel in range(kernels):
            alive = first <= kernel < trace.deaths[tensor.id] or kernel in uses
            if uses and alive and tensor.id not in away[kernel]:
                total[kernel] += pages_bytes(tensor)
    return total


@settings(max_examples=60, deadline=None)
@given(seeds, gpu_mib, host_mib, st.sampled_from(["live", "paced"]))
def test_occupancy_stays_within_the_target_where_the_planner_says_so(seed, gpu, host, way):
    trace, system = random_trace(seed), system_of(gpu, host)
    draft = draft_of(trace, system, WAYS[way])
    resident = resident_bytes(trace, draft)
    assert resident == draft.occupancy.bytes.tolist()
    assert draft.target_bytes == pytest.approx(0.99 * (gpu << 20))
    assert (draft.occupancy.peak_bytes <= draft.target_bytes) == (max(resident) <= draft.target_bytes)


@settings(max_examples=60, deadline=None)
@given(seeds, gpu_mib, host_mib, ways)
def test_every_evicted_tensor_is_prefetched_before_its_next_use(seed, gpu, host, way):
    trace, system = random_trace(seed), system_of(gpu, host)
    kernels = len(trace.kernels)
    # The published planner lets a prefetch start in the kernel in which the eviction ends.
    apart = 0 if way == "published" else 1
    for eviction in draft_of(trace, system, WAYS[way]).evictions:
        uses = set(trace.uses[eviction.tensor])
        assert eviction.start <= eviction.out_by <= eviction.prefetch - apart < eviction.end - apart
        assert (eviction.start - 1) % kernels in uses
        assert eviction.end % kernels in uses
        assert not any(kernel % kernels in uses for kernel in range(eviction.start, eviction.end))


@settings(max_examples=60, deadline=None)
@given(seeds, gpu_mib, host_mib, ways)
def test_migrations_of_a_tensor_do_not_overlap(seed, gpu, host, way):
    trace, system = random_trace(seed), system_of(gpu, host)
    kernels = len(trace.kernels)
    busy = {}
    for eviction in draft_of(trace, system, WAYS[way]).evictions:
        for kernel in range(eviction.start, eviction.end):
            key = (eviction.tensor, kernel % kernels)
            assert key not in busy
            busy[key] = eviction


@settings(max_examples=30, deadline=None)
@given(seeds, gpu_mib, ways)
def test_moves_leave_and_return_in_turn(seed, gpu, way):
    trace = random_trace(seed)
    plan = plan_of(trace, system_of(gpu), WAYS[way])
    steps = [move.kernel for move in plan.moves]
    assert steps == sorted(steps)
    assert all(0 <= move.kernel <= len(trace.kernels) for move in plan.moves)
    evicted = {
        tensor.id: [
            isinstance(planned.move, Evict) for planned in plan.moves if planned.move.tensor == tensor.id
        ]
        for tensor in trace.tensors
        if tensor.persistent
    }
    for turns in evicted.values():
        assert all(first != second for first, second in zip(turns, turns[1:] + turns[:1], strict=True))


@settings(max_examples=30, deadline=None)
@given(seeds, gpu_mib, host_mib)
def test_host_memory_is_never_overbooked(seed, gpu, host):
    trace, system = random_trace(seed), system_of(gpu, host)
    for parameters in WAYS.values():
        used = np.zeros(len(trace.kernels), dtype=np.int64)
        for eviction in draft_of(trace, system, parameters).evictions:
            if eviction.tier.name == "host":
                kernels = [kernel % len(used) for kernel in range(eviction.start, eviction.end)]
                used[kernels] += eviction.size_bytes
        assert used.max() <= host << 20


@settings(max_examples=20, deadline=None)
@given(seeds, gpu_mib, ways)
def test_planning_is_deterministic(seed, gpu, way):
    plans = [plan_of(random_trace(seed), system_of(gpu), WAYS[way]) for _ in range(2)]
    assert plans[0] == plans[1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(min_value=0, max_value=50), min_size=1, max_size=20).filter(any),
    st.lists(st.tuples(st.integers(0, 19), st.integers(1, 400), st.booleans()), max_size=8),
)
def test_budgets_say_when_transfers_fit(durations, transfers):
    kernels = len(durations)
    direction = Budget(np.array(durations, dtype=np.int64), 4.0, {"host": 4.0, "flash": 1.0})
    for start, size, to_ssd in transfers:
        place = "flash" if to_ssd else "host"
        free = direction.free_bytes[place].copy()
        start %= kernels
        finish = direction.finish(start, size, place)
        laps = np.concatenate([free, free])
        if finish < 2 * kernels:
            assert (
                laps[start : finish + 1].sum() == pytest.approx(size) or laps[start : finish + 1].sum() > size
            )
            assert laps[start:finish].sum() < size
        begin = direction.latest_start(start + kernels, size, place)
        if begin >= 0:
            assert laps[begin : start + kernels].sum() > size - 0.01
            assert laps[begin + 1 : start + kernels].sum() < size + 0.01 or begin == start + kernels - 1
        before = free.sum()
        direction.debit(start, size, place)
        assert direction.free_bytes[place].sum() == pytest.approx(max(0.0, before - size), abs=0.01)
        assert (direction.free_bytes["flash"] <= direction.free_bytes["host"] + 1e-6).all()
        assert (direction.free_bytes["flash"] >= -1e-6).all()


def test_nothing_moves_to_or_from_a_gpu_with_room_for_all():
    draft = draft_of(chain(8), system_of(1000))
    assert draft.occupancy.peak_bytes <= draft.target_bytes
    assert draft.evictions == []


def test_tensors_are_allocated_by_their_birth_and_freed_at_their_death():
    trace = chain(4)
    moves = plan_of(trace, system_of(1000)).moves
    for tensor in trace.tensors:
        if not tensor.persistent:
            (allocated,) = [planned.kernel for planned in moves if planned.move == Fetch(tensor.id)]
            assert allocated <= trace.births[tensor.id]
            assert Planned(trace.deaths[tensor.id], Free(tensor.id)) in moves


def test_results_written_after_their_death_are_freed_again():
    trace = trace_of(
        {"a": 1, "out": 1},
        [(10, "", "a"), (10, "a", "out"), (10, "out", ""), (10, "a", "out"), (10, "a", "")],
    )
    frees = [planned.kernel for planned in plan_of(trace, machine(10)).moves if planned.move == Free(1)]
    assert frees == [3, 4]


def test_hints_can_be_left_out():
    draft = plan_of(chain(8), system_of(4), PlanningParameters(tensor_hints=False))
    assert not [planned for planned in draft.moves if isinstance(planned.move, Free)]


def test_longest_period_is_evicted_and_comes_back_just_before_its_use():
    """Six pages of room: 'x' (4 pages) leaves while 'big' (4 pages) is there, and only then."""
    rest = [(100_000, "s", "") for _ in range(6)]
    trace = trace_of(
        {"s*": 1, "x": 4, "big": 4},
        [(100_000, "s", "x"), *rest, (100_000, "s", "big"), (100_000, "big", ""), *rest, (100_000, "x", "")],
    )
    draft = draft_of(trace, machine(6))
    (eviction,) = draft.evictions
    assert (eviction.tensor, eviction.start, eviction.end) == (1, 1, 15)
    assert eviction.out_by < 7
    assert eviction.prefetch == 9, "eager: memory is free from kernel 9 on"
    assert draft.occupancy.peak_bytes <= draft.target_bytes
    late = draft_of(trace, machine(6), PlanningParameters(eager_prefetch=False))
    assert late.evictions[0].prefetch == 14


def test_expected_stalls_lengthen_the_plan_only_under_pressure():
    trace = chain(24, activation_bytes=8 << 20, forward_ticks=300_000, backward_ticks=300_000)
    roomy, tight = (draft_of(trace, system_of(gpu), WAYS["paced"]) for gpu in (1000, 64))
    assert roomy.timeline.period == sum(trace.duration_cycles(k, machine(1).gpu.clock) for k in trace.kernels)
    assert tight.timeline.period > roomy.timeline.period
    once = draft_of(trace, system_of(64))
    assert once.timeline.period == roomy.timeline.period
    assert tight.occupancy.peak_bytes < once.occupancy.peak_bytes


def test_expected_stalls_last_until_links_have_moved_what_is_too_much_out_and_in_again():
    trace = chain(24, activation_bytes=8 << 20, forward_ticks=300_000, backward_ticks=300_000)
    once, twice = (draft_of(trace, system_of(64), PlanningParameters(pacing_rounds=n)) for n in (1, 2))
    excess = once.occupancy.peak_bytes - (64 << 20)
    stalls = twice.timeline.period - once.timeline.period
    # 20 bytes a cycle each way; every kernel's stall is rounded up.
    assert 0 <= stalls - 2 * excess / 20 < len(trace.kernels)


def test_expected_stalls_give_the_links_the_time_that_they_need_where_they_are_the_limit():
    """Kernels take 4.8 ms, in which a plan cannot bring occupancy anywhere near 48 MiB."""
    trace = chain(24, activation_bytes=8 << 20, forward_ticks=50_000, backward_ticks=50_000)
    once, paced = draft_of(trace, system_of(48)), draft_of(trace, system_of(48), WAYS["paced"])
    assert once.timeline.period == 4_800_000
    assert once.occupancy.peak_bytes > 200 << 20
    assert paced.occupancy.peak_bytes < 50 << 20
    assert paced.timeline.period * 20 > sum(eviction.size_bytes for eviction in paced.evictions)


def test_the_ssd_makes_no_difference_to_stalls_where_host_memory_holds_all_that_is_away():
    """Each of 24 layers keeps 8 MiB: at most about 200 MiB are alive, 32 on the GPU."""
    trace = chain(24, activation_bytes=8 << 20, forward_ticks=50_000, backward_ticks=50_000)
    found = system_of(32, 200)
    drives = [{"read_bandwidth": rate, "write_bandwidth": rate} for rate in (2 * 10**9, 16 * 10**9)]
    slow, fast = (
        draft_of(trace, found.model_copy(update={"ssd": found.ssd.model_copy(update=drive)}), WAYS["paced"])
        for drive in drives
    )
    assert slow.timeline.times == fast.timeline.times
    assert {eviction.tier.name for draft in (slow, fast) for eviction in draft.evictions} == {"host"}


def test_a_round_counts_that_lowers_the_pressure_by_three_percent():
    # Beside b there are 100 pages too many. x (3 pages) is idle for 9000 cycles: less than 2.5 times the 4000
    # that a copy takes, until the wait for b is counted.
    kernels = [(1000, "", "")] * 11
    for kernel, reads, writes in [(0, "", "x"), (4, "", "y"), (5, "", "b"), (6, "y", ""), (10, "x", "")]:
        kernels[kernel] = (1000, reads, writes)
    trace = trace_of({"x": 3, "y": 150, "b": 147}, kernels)
    found = [
        [
            (eviction.tensor, eviction.out_by)
            for eviction in draft_of(trace, machine(200), parameters).evictions
        ]
        for parameters in (PlanningParameters(pacing_rounds=rounds, memory_target=1.0) for rounds in (1, 2))
    ]
    assert found == [[], [(0, 3)]]
    # 100 pages leave and come back at a byte a cycle, all of them for the kernel that lacks them.
    longer = draft_of(trace, machine(200), PlanningParameters(pacing_rounds=2, memory_target=1.0)).timeline
    assert np.diff(longer.times).tolist() == [1000] * 5 + [201_000] + [1000] * 5


@pytest.mark.parametrize(
    ("highest", "total", "is_progress"),
    [(97, 200, True), (98, 194, True), (100, 194, True), (98, 195, False), (101, 100, False)],
)
def test_a_round_counts_that_relieves_the_worst_kernel_or_all_by_three_percent(highest, total, is_progress):
    assert _is_progress((highest, total), (100, 200)) is is_progress


def test_of_tiers_that_are_equally_good_the_first_is_taken():
    planned = planned_machine(machine(9), BehaviourSpec())
    host, *_ = planned.tiers
    tiers = (host, replace(host, name="other"))
    draft = draft_g10(lonely(), replace(planned, tiers=tiers), PlanningParameters())
    assert [eviction.tier.name for eviction in draft.evictions] == ["host"]


@pytest.mark.parametrize(("birth", "order"), [(4, [1, 2]), (2, [2, 1])])
def test_what_is_needed_first_is_asked_for_first(birth, order):
    """Tensor 1 comes back for kernel 3; 2 is made by kernel 2 or 4. The space of 0 is free by then."""
    tier = planned_machine(machine(100), BehaviourSpec()).tiers[0]
    draft = SimpleNamespace(
        frees=[(1, 0)],
        allocations=[(1, 2)],
        evictions=[
            PlannedEviction(1, 100, 0, 3, tier, 0, 1),
            PlannedEviction(3, 100, 1, 3, tier, 2, None),
        ],
    )
    writes = ["c" if kernel == birth else "a b d" for kernel in range(5)]
    trace = trace_of(dict.fromkeys("abcd", 1), [(1, "", names) for names in writes])
    moves = [planned.move for planned in Draft.plan(draft, trace).moves]
    assert moves == [Evict(1), Free(0), Evict(3), *map(Fetch, order)]
    without_hints = Draft.plan(draft, trace, tensor_hints=False).moves
    assert [planned.move for planned in without_hints] == [Evict(1), Evict(3), Fetch(1)]


@pytest.mark.parametrize(
    ("model", "batch", "bandwidth", "factor"),
    [
        ("BERT_Base", 512, "6.2 GB/s", 1.394),
        ("BERT_Base", 512, "6.3 GB/s", 1),
        ("BERT_Base", 256, "6.2 GB/s", 1),
        ("VIT", 1280, "6.3 GB/s", 1),
        ("VIT", 1280, "6.4 GB/s", 1.1),
        ("VIT", 1280, "6.5 GB/s", 1),
    ],
)
def test_factors_set_by_hand_are_for_ssds_between_two_bandwidths(model, batch, bandwidth, factor):
    trace = replace(lonely(), model=model, batch_size=batch)
    assert unified_memory_factor(trace, machine(9, read=bandwidth)) == factor


def test_demand_evictions_relieve_the_most_pressed_kernel_without_prefetch():
    trace = chain(24, activation_bytes=8 << 20, forward_ticks=20_000, backward_ticks=20_000)
    parameters = PlanningParameters(planner="published", tensor_hints=False)
    before = draft_of(trace, system_of(64), parameters)
    parameters = PlanningParameters(planner="published", tensor_hints=False, demand_evictions=True)
    after = draft_of(trace, system_of(64), parameters)
    added = after.evictions[len(before.evictions) :]
    assert added
    assert all(eviction.prefetch is None and eviction.tier.name == "ssd" for eviction in added)
    left = after.occupancy.bytes[after.pressed_kernel]
    assert left < 0.9 * after.target_bytes <= left + added[-1].size_bytes


def test_gigabyte_of_the_published_planner_is_larger():
    binary = planned_machine(machine(1), GPG)
    decimal = planned_machine(machine(1), BehaviourSpec())
    assert binary.link_rate / decimal.link_rate == pytest.approx(2**30 / 10**9)


def test_gpus_share_the_machine_evenly():
    alone = planned_machine(system_of(10, 100), BehaviourSpec())
    half = planned_machine(system_of(10, 100), BehaviourSpec(), gpus=(0, 1), gpu=1)
    assert half.tier("host").capacity_bytes == alone.tier("host").capacity_bytes // 2
    assert half.tier("ssd").write_rate == alone.tier("ssd").write_rate / 2
    assert half.link_rate == alone.link_rate


def test_policy_plans_every_job_and_keeps_its_parameters():
    policy = create({"name": "g10", "safety_margin": 3.0})
    assert policy.parameters() == {
        "safety_margin": 3.0,
        "memory_target": 0.99,
        "eager_prefetch": True,
        "ranking": "benefit",
        "planning_limit": None,
    }
    job = Job(chain(8))
    plans = policy.plan(Workload((job, job)), system_of(4), BehaviourSpec())
    assert plans[0] == plans[1] == policy.plan_job(job, system_of(4), BehaviourSpec())
    published = policy.plan_job(job, system_of(4), BehaviourSpec(planner="published"))
    assert (plans[0].planner, published.planner) == ("g10, live planner", "g10, published planner")


def test_benefit_per_cost_puts_a_small_tensor_with_a_long_period_first():
    # One page too many while b (2 pages) lives, during kernels 3 to 8. Without p (1 page) there is room all
    # that time; without q (8 pages), while q is idle: more bytes x time, but copies eight times as long.
    reads = ["p q", "q", "q", "q", "", "", "", "", "b q", "q", "q", "p q"]
    kernels = [(100_000, names, "b" if kernel == 3 else "") for kernel, names in enumerate(reads)]
    trace = trace_of({"p*": 1, "q*": 8, "b": 2}, kernels)
    found = {}
    for ranking in ("benefit", "benefit_per_cost"):
        parameters = PlanningParameters(ranking=ranking, memory_target=1.0)
        draft = draft_of(trace, machine(10), parameters)
        found[ranking] = [trace.tensors[eviction.tensor].name for eviction in draft.evictions]
    assert found == {"benefit": ["q", "p"], "benefit_per_cost": ["p"]}


class StrayView:
    """Kernel 1 of three; tensor 'b' is in host memory though the plan never evicted it."""

    job, gpu, kernel, iteration, now_cycles = 0, 0, 1, 0, 0

    def __init__(self, trace, free_pages, host_pages=2, in_transfer=()):
        self.trace, self.free_bytes = trace, free_pages * PAGE
        self._host, self._in_transfer = {1: host_pages * PAGE}, dict(in_transfer)

    def away_bytes(self, tensor):
        return self._host.get(tensor, 0)

    def is_whole(self, tensor):
        return not self.away_bytes(tensor) and not self.in_transfer_bytes(tensor)

    def in_transfer_bytes(self, tensor):
        return self._in_transfer.get(tensor, 0)

    def is_dead(self, tensor):
        return self.kernel >= self.trace.deaths[tensor]


def stray_trace():
    return trace_of({"a": 2, "b": 2, "c": 2}, [(10, "", "a b"), (10, "a", "c"), (10, "b c", "")])


@pytest.mark.parametrize(
    ("view", "look_ahead", "fetched"),
    [
        (StrayView(stray_trace(), free_pages=4), 128, [1]),
        (StrayView(stray_trace(), free_pages=4), 0, []),
        (StrayView(stray_trace(), free_pages=4, host_pages=0), 128, []),
        (StrayView(stray_trace(), free_pages=2), 128, []),
        (StrayView(stray_trace(), free_pages=4, in_transfer={1: 2 * PAGE}), 128, []),
    ],
    ids=["fetched", "off", "nothing astray", "no room", "room taken by transfers"],
)
def test_strays_are_fetched_back_into_free_memory(view, look_ahead, fetched):
    policy = create({"name": "g10_paced", "recovery_look_ahead": look_ahead})
    policy.plan(Workload((Job(view.trace),)), machine(10), BehaviourSpec())
    assert [action.tensor for action in policy.on_kernel_start(view)] == fetched


def test_weights_that_the_next_iteration_needs_are_fetched_back():
    trace = trace_of({"a": 2, "w*": 2}, [(10, "w", "a"), (10, "a", ""), (10, "", "")])
    policy = create("g10_paced")
    policy.plan(Workload((Job(trace),)), machine(10), BehaviourSpec())
    assert policy.on_kernel_start(StrayView(trace, free_pages=4)) == [Fetch(1)]


def test_recovery_look_ahead_is_a_number_of_kernels():
    with pytest.raises(ConfigError, match="recovery_look_ahead: found -1; allowed: a whole number from 0"):
        create({"name": "g10_paced", "recovery_look_ahead": -1})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"safety_margin": 0.5}, "safety_margin: found 0.5; allowed: a number from 1 to 1000"),
        ({"memory_target": True}, "memory_target: found True; allowed: a number from 0.01 to 1"),
        ({"memory_factor": "2"}, "memory_factor: found '2'; allowed: a number from 0.01 to 1000"),
        ({"planner": "best"}, "planner: found 'best'; allowed: live, published"),
        ({"ranking": "cost"}, "ranking: found 'cost'; allowed: benefit, benefit_per_cost"),
        ({"eager_prefetch": 1}, "eager_prefetch: found 1; allowed: true or false"),
        ({"pacing_rounds": 0}, "pacing_rounds: found 0; allowed: a whole number from 1 to 100"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match="found") as error:
        PlanningParameters(**parameters)
    assert str(error.value) == message


def lonely(cycles=100_000):
    """Nine long kernels: s and w (4 pages) are read by the first and the last, b (5) lives at 3 and 4."""
    kernels = [(cycles, "s w", ""), *[(cycles, "", "")] * 2, (cycles, "", "b"), (cycles, "b", "")]
    return trace_of({"s*": 1, "w*": 4, "b": 5}, [*kernels, *[(cycles, "", "")] * 3, (cycles, "s w", "")])


@pytest.mark.parametrize(
    ("pages", "planner", "eager", "prefetch"),
    [
        (9, "live", False, 7),
        (9, "live", True, 5),
        (9, "published", False, 7),
        (9, "published", True, 2),
        (7, "published", True, 5),
    ],
)
def test_eager_prefetches_begin_at_the_first_kernel_with_room(pages, planner, eager, prefetch):
    # w leaves during kernel 1. Room for it is free again at 5; the published planner looks at memory without
    # w itself, and so finds room as soon as w has left, or where b fills memory without it, when b is dead.
    draft = draft_of(lonely(), machine(pages), PlanningParameters(planner=planner, eager_prefetch=eager))
    moves = [(eviction.tensor, eviction.out_by, eviction.prefetch) for eviction in draft.evictions]
    assert moves == [(1, 1, prefetch)]


@pytest.mark.parametrize(
    ("cycles", "margin", "tier"), [(100_000, 40.0, "host"), (20_000, 2.5, "host"), (18_000, 2.5, "ssd")]
)
def test_the_published_planner_sends_to_the_host_what_has_no_time_for_the_ssd(cycles, margin, tier):
    # A way takes the SSD 1000 + 2000 + 4000 / 0.25 = 19,000 cycles, the host 5000; w is idle for 7 kernels.
    # A copy to the SSD that ends with the kernel that it begins with counts as finding no time, too.
    parameters = PlanningParameters(planner="published", safety_margin=margin, eager_prefetch=False)
    (eviction,) = draft_of(lonely(cycles), machine(9), parameters).evictions
    assert (eviction.tensor, eviction.tier.name) == (1, tier)


@pytest.mark.parametrize(("cycles", "moves"), [(3000, []), (4000, [(1, 3)])])
def test_the_published_planner_keeps_what_would_come_back_in_the_kernel_that_it_leaves_in(cycles, moves):
    # w (4 pages of 1000 bytes) may cross the link, at a byte a cycle, during three kernels.
    kernels = [(cycles, "w", ""), (cycles, "", "b"), *[(cycles, "b", "")] * 2, (cycles, "w", "")]
    parameters = PlanningParameters(planner="published", safety_margin=1.0, eager_prefetch=False)
    draft = draft_of(trace_of({"w*": 4, "b": 5}, kernels), machine(8), parameters)
    assert [(eviction.out_by, eviction.prefetch) for eviction in draft.evictions] == moves


def test_what_comes_back_for_one_kernel_takes_the_link_in_turn():
    # x and y (40 pages each) are idle from kernel 1 to 8, b (80) lives at 3 and 4. One fits kernel 8; of the
    # other, 30,000 bytes have to come during kernel 7.
    reads = {0: "x y", 4: "b", 9: "x y"}
    kernels = [(50_000, reads.get(kernel, ""), "b" if kernel == 3 else "") for kernel in range(10)]
    trace = trace_of({"x*": 40, "y*": 40, "b": 80}, kernels)
    draft = draft_of(trace, machine(81), PlanningParameters(eager_prefetch=False))
    moves = sorted((eviction.out_by, eviction.prefetch) for eviction in draft.evictions)
    assert moves == [(1, 8), (2, 7)]


@pytest.mark.parametrize(
    ("host_pages", "b_pages", "tiers"),
    [(1000, 8, ["host", "host"]), (4, 8, ["ssd", "host"]), (4, 10, ["ssd", "ssd"])],
)
def test_host_memory_is_spared_until_it_holds_all_that_is_too_much(host_pages, b_pages, tiers):
    # x and y (4 pages each) are idle from kernel 1 to 8; beside b, which lives at 3 and 4, 7 or 9 pages are
    # too many, and 3 or 5 once the first has left.
    reads = {0: "x y", 4: "b", 9: "x y"}
    kernels = [(100_000, reads.get(kernel, ""), "b" if kernel == 3 else "") for kernel in range(10)]
    trace = trace_of({"x*": 4, "y*": 4, "b": b_pages}, kernels)
    draft = draft_of(trace, machine(9, host_pages), PlanningParameters(memory_target=1.0))
    assert [eviction.tier.name for eviction in draft.evictions] == tiers


def test_of_what_is_evicted_for_demand_the_most_bytes_and_time_go_first():
    # Kernels are too short for copies in time. Beside b a page is too much. x is idle for 4 kernels around b,
    # y, which is larger, for 12.
    reads = {0: "y", 4: "x", 7: "b", 9: "x", 13: "y"}
    kernels = [(1000, reads.get(kernel, ""), "b" if kernel == 6 else "") for kernel in range(14)]
    trace = trace_of({"x*": 20, "y*": 30, "b": 40}, kernels)
    for evicts, tensors in ((False, []), (True, [1])):
        parameters = PlanningParameters(demand_evictions=evicts, memory_target=1.0)
        found = [eviction.tensor for eviction in draft_of(trace, machine(89), parameters).evictions]
        assert found == tensors


def test_the_published_planner_goes_by_time_alone_across_the_border():
    reads = {3: "s w", 4: "s w", 8: "s b"}
    kernels = [(100_000, reads.get(kernel, "s"), "b" if kernel == 7 else "") for kernel in range(9)]
    trace = trace_of({"s*": 1, "w*": 4, "b": 5}, kernels)
    plan = plan_of(trace, machine(9), PlanningParameters(planner="published", tensor_hints=False))
    # Idle from kernel 5 to kernel 3 of the next iteration. The way back takes 19,000 cycles, and half as much
    # again is left over for it: that is during kernel 2.
    assert plan.moves == (Planned(2, Fetch(1)), Planned(5, Evict(1, "ssd")))


@pytest.mark.parametrize("published_order", [True, False])
def test_the_published_planner_takes_the_period_that_relieves_the_most(published_order):
    # b (4 pages) is too much from kernel 4 to 8. x is idle all that time, y from 6 on.
    reads = {0: "s x y", 5: "s y", 8: "s b", 11: "s x y"}
    kernels = [(100_000, reads.get(kernel, "s"), "b" if kernel == 4 else "") for kernel in range(12)]
    trace = trace_of({"s*": 1, "x*": 4, "y*": 4, "b": 4}, kernels)
    parameters = PlanningParameters(planner="published", published_order=published_order)
    draft = draft_of(trace, machine(11), parameters)
    assert [eviction.tensor for eviction in draft.evictions] == [1]


def test_the_published_planner_counts_all_kernels_of_a_period_across_the_border():
    # b (4 pages) is too much at kernels 3 and 4. x is not used from 10 to 7 of the next iteration, and
    # relieves both for the time of the kernels before them; y is not used at 3 and 4.
    reads = dict.fromkeys(range(12), "s y") | {3: "s", 4: "s b"} | dict.fromkeys((7, 8, 9), "s x y")
    kernels = [
        (100_000 if kernel else 1000, reads[kernel], "b" if kernel == 3 else "") for kernel in range(12)
    ]
    trace = trace_of({"s*": 1, "x*": 4, "y*": 4, "b": 4}, kernels)
    draft = draft_of(trace, machine(11), PlanningParameters(planner="published"))
    first = draft.evictions[0]
    assert (first.tensor, first.wraps) == (1, True)


@pytest.mark.parametrize(
    ("host_pages", "tiers"), [(4, ["host", "ssd", "ssd"]), (8, ["host", "host", "ssd"]), (12, ["host"] * 3)]
)
def test_the_published_planner_fills_host_memory_and_no_more(host_pages, tiers):
    # Beside b all three have to leave. Copies within one kernel count as finding no time on the SSD.
    reads = dict.fromkeys(range(30), "s") | {0: "s x y z", 29: "s x y z", 16: "s b"}
    kernels = [(20_000, reads[kernel], "b" if kernel == 15 else "") for kernel in range(30)]
    trace = trace_of({"s*": 1, "x*": 4, "y*": 4, "z*": 4, "b": 12}, kernels)
    draft = draft_of(trace, machine(13, host_pages), PlanningParameters(planner="published"))
    assert [eviction.tier.name for eviction in draft.evictions] == tiers


def test_stalls_are_expected_where_pressure_exceeds_all_before_and_all_behind():
    def stalls(planned, on_gpu=0):
        """Of kernels whose tensors press so much, `on_gpu` pages of which never left."""
        away = {tier.name: Occupancy(np.zeros(4, dtype=np.int64)) for tier in planned.tiers}
        occupied = Occupancy(np.full(4, on_gpu * PAGE))
        selection = SimpleNamespace(machine=planned, used=away, occupancy=occupied)
        pressure = np.array([0, 10, 0, 4]) * PAGE
        return _expected_stalls(pressure, np.zeros(4, dtype=np.int64), selection).tolist()

    # To host memory and back at a byte a cycle: all ten leave for kernel 1, and six return behind it.
    assert stalls(planned_machine(machine(10), BehaviourSpec())) == [0, 16_000, 0, 4000]
    # With 3 pages of host memory and twice the link, a quarter of the rest is expected to cross the SSD.
    few = planned_machine(machine(10, 3, pcie="2 GB/s"), BehaviourSpec())
    out, back = (1500 + 7 * (375 + 250 / rate) for rate in (0.25, 0.5))
    last = 1500 + 1 * (375 + 250 / 0.5)
    assert stalls(few) == [0, out + back - last, 0, last]
    # What is on the GPU is not away: host memory holds the rest.
    assert stalls(few, on_gpu=7) == [0, 10 * 500 + 6 * 500, 0, 4 * 500]


def test_the_published_planner_moves_a_byte_beside_kernels_that_take_no_time():
    kernels = [(0, "s", ""), (100_000, "s a", ""), (100_000, "s", "b"), (100_000, "s b", ""), (0, "s a", "")]
    trace = trace_of({"s*": 1, "a*": 1, "b": 2}, kernels, page=1)
    plan = plan_of(trace, machine(4, page=1), PlanningParameters(planner="published", tensor_hints=False))
    # Copies within one kernel count as finding no time on the SSD.
    assert plan.moves == (Planned(2, Evict(1)), Planned(3, Fetch(1)))


@pytest.mark.parametrize(("planner", "same"), [("live", True), ("published", False)])
def test_targets_set_by_hand_are_those_of_the_published_planner(planner, same):
    renamed = replace(lonely(), model="BERT_Base", batch_size=512)
    plans = [
        create("g10").plan_job(Job(trace), machine(9), BehaviourSpec(planner=planner)).moves
        for trace in (lonely(), renamed)
    ]
    assert (plans[0] == plans[1]) == same


def test_space_is_asked_for_from_the_first_kernel_on_that_is_early_enough():
    # Mapping three pages takes 3000 cycles: three kernels of 1000.
    kernels = [(1000, "w", "")] * 6
    trace = trace_of({"w*": 1, "b": 3}, [*kernels, (1000, "w", "b")])
    assert draft_of(trace, machine(100)).allocations == [(3, 1)]
    assert trace.births[1] == 6


def test_an_eager_prefetch_begins_right_after_its_eviction_where_memory_is_free_by_then():
    # b (5 pages) is there during kernel 3, c (5) during kernel 7: 4 pages too many beside x, y and z. x (4)
    # relieves both, but not quite; y (6, not used before 5) and z (6, not used after 5) then do without it.
    reads = ["x y z", *["z"] * 4, "y z", *["y"] * 3, "x y z"]
    writes = {3: "b", 7: "c"}
    kernels = [(100_000, names, writes.get(kernel, "")) for kernel, names in enumerate(reads)]
    trace = trace_of({"x*": 4, "y*": 6, "z*": 6, "b": 5, "c": 5}, kernels)
    draft = draft_of(trace, machine(17))
    moves = {trace.tensors[e.tensor].name: (e.out_by, e.prefetch) for e in draft.evictions}
    assert moves == {"x": (1, 2), "y": (1, 4), "z": (6, 8)}


def test_the_target_is_a_share_of_all_the_memory_that_is_planned_with():
    planned = replace(planned_machine(machine(100), BehaviourSpec()), gpu_bytes=1000)
    parameters = PlanningParameters(memory_factor=1.5, memory_target=0.8)
    assert draft_g10(lonely(), planned, parameters).target_bytes == 1200


def recovered(kernel, eviction, look_ahead=5, **view):
    """Prefetches of tensor 0, which kernels 0 and 4 of six read, in kernel 0 <= ``kernel`` < 6."""
    draft, kernels = SimpleNamespace(evictions=[eviction]), [[0], [], [], [], [0], []]
    found = RecoveringJob(draft, None, kernels, 1000, look_ahead)
    seen = {
        "kernel": kernel,
        "free_bytes": 1000,
        "is_whole": lambda tensor: False,
        "is_dead": lambda tensor: False,
        "in_transfer_bytes": lambda tensor: 0,
        "away_bytes": lambda tensor: 100,
        "trace": SimpleNamespace(lasting=[True]),
    }
    return list(found.on_kernel_start(SimpleNamespace(**seen | view)))


def test_what_the_plan_keeps_away_returns_when_the_plan_says():
    tier = planned_machine(machine(100), BehaviourSpec()).tiers[0]
    eviction = PlannedEviction(0, 100, 1, 4, tier, 2, 3)
    assert [recovered(kernel, eviction) for kernel in range(1, 4)] == [[], [], []]
    assert recovered(0, eviction) == [Fetch(0)]
    # Without a prefetch of the plan it is away until the kernel that needs it.
    demanded = replace(eviction, prefetch=None)
    assert recovered(3, demanded) == []
    # An absence over the border counts in the next iteration, too: from kernel 5 to 6, which is its kernel 0.
    around = replace(eviction, start=5, end=6, prefetch=6)
    assert [recovered(kernel, around) for kernel in (0, 5)] == [[], []]
    assert recovered(1, around) == [Fetch(0)]


def test_recovery_looks_some_kernels_ahead_and_no_further_than_an_iteration():
    eviction = PlannedEviction(0, 100, 1, 2, None, 1, 2)
    assert recovered(3, eviction, look_ahead=1) == [Fetch(0)]
    assert recovered(4, eviction, look_ahead=1) == []
    assert recovered(4, eviction, look_ahead=2) == [Fetch(0)]
    assert recovered(3, eviction, look_ahead=20) == [Fetch(0)]


def test_recovery_takes_no_room_that_others_need():
    tier = planned_machine(machine(100), BehaviourSpec()).tiers[0]
    eviction = PlannedEviction(0, 100, 1, 2, tier, 1, 2)
    # A tenth of memory, 100 bytes, is left to what is about to be made.
    assert recovered(3, eviction, free_bytes=200) == [Fetch(0)]
    assert recovered(3, eviction, free_bytes=199) == []
    assert recovered(3, eviction, is_whole=lambda tensor: True) == []
    assert recovered(3, eviction, is_dead=lambda tensor: True) == []
    assert recovered(3, eviction, away_bytes=lambda tensor: 0) == []
    mortal = SimpleNamespace(lasting=[False])
    assert recovered(5, eviction, trace=mortal) == []  # kernel 6 is of the next iteration
