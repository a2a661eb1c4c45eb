"""What every run keeps, whatever the trace, machine, policy and behaviour."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import FollowPlan, simulate
from memories import FLASH, GPU, HOST, NONE

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.data import data_path
from g10sim.config.presets import load_system
from g10sim.config.system import SystemSpec
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.designs.ideal import Ideal
from g10sim.policies.interface.moves import Evict, Fetch, Free, Protect
from g10sim.policies.interface.policy import Policy
from g10sim.records import MigrationCause, StallReason
from g10sim.sim.engine import run
from g10sim.trace.format import load_trace
from g10sim.trace.synthetic import chain, random_trace
from g10sim.trace.workload import Job, Workload

PAGE = 4096
CHOICES = {
    "transfers": ["fluid", "batched"],
    "addresses": ["own", "pooled"],
    "tensor_order": ["use", "trace"],
    "recency": ["use", "arrival"],
    "dead_tensors": ["released", "kept"],
    "running_tensors": ["pinned", "evictable"],
    "flash_capacity": ["limited", "unlimited"],
    "fault_cost": ["latency", "profiled"],
    "compute_overlap": ["after_arrival", "while_arriving"],
    "breakdown": ["computing", "in_flight"],
}
behaviours = st.one_of(
    st.just(BehaviourSpec()),
    st.just(GPG),
    st.builds(BehaviourSpec, **{name: st.sampled_from(values) for name, values in CHOICES.items()}),
)


class Restless(Policy):
    """Prefetches, evicts, frees, protects and names victims, all legally, by a simple rule."""

    name = "restless"

    def __init__(self, *, stride=3, names_victims=True):
        self.stride = stride
        self.names_victims = names_victims

    def on_kernel_start(self, view):
        trace, kernel = view.trace, view.kernel
        if kernel % 2:
            yield Protect(frozenset(trace.kernels[(kernel + 1) % len(trace.kernels)].tensors))
        for tensor in range(kernel % self.stride, len(trace.tensors), self.stride):
            if view.is_dead(tensor):
                yield Free(tensor)
            elif view.next_use(tensor) < 3:
                yield Fetch(tensor)
            elif not view.is_needed(tensor):
                yield Evict(tensor, "ssd" if tensor % 2 else "host")

    def choose_victims(self, view):
        if not self.names_victims or view.kernel % 3 == 0:
            return None
        return [t.id for t in view.trace.tensors if not view.is_needed(t.id)][:: self.stride]


@st.composite
def plans(draw, trace):
    """Moves that are legal wherever the running kernel's pages are pinned."""
    moves = []
    for kernel in sorted(draw(st.lists(st.integers(0, len(trace.kernels) - 1), max_size=12))):
        tensor = draw(st.integers(0, len(trace.tensors) - 1))
        targets = [GPU]
        if tensor not in trace.kernels[kernel].tensors:
            targets += [HOST, FLASH]
            if (
                not trace.tensors[tensor].persistent
                and not trace.births[tensor] < kernel < trace.deaths[tensor]
            ):
                targets.append(NONE)
        moves.append((kernel, tensor, draw(st.sampled_from(targets))))
    return FollowPlan(moves=tuple(moves))


@st.composite
def cases(draw, policies=True):
    """A random trace, a machine with a small or large GPU whose SSD can hold everything, and a policy."""
    trace = random_trace(
        draw(st.integers(0, 10**6)), kernels=draw(st.integers(1, 12)), largest_tensor_bytes=1 << 20
    )
    working_set = max(sum(pages(trace.tensors[t]) for t in kernel.tensors) for kernel in trace.kernels)
    everything = sum(map(pages, trace.tensors))
    gpu = draw(st.one_of(st.just(max(1, working_set)), st.integers(max(1, working_set), everything + 10)))
    host = draw(st.one_of(st.just(0), st.integers(0, everything)))
    system = small_system(gpu, host, everything, draw(st.sampled_from(["1 GB/s", "3.2 GB/s", "12 GB/s"])))
    if not policies:
        return trace, system
    policy = draw(
        st.one_of(
            st.just(BaseUvm()),
            st.builds(DeepUm, look_ahead=st.integers(1, 9)),
            st.builds(Restless, stride=st.integers(1, 4), names_victims=st.booleans()),
            plans(trace),
        )
    )
    return trace, system, policy


def pages(tensor):
    return -(-tensor.size_bytes // PAGE)


def small_system(gpu_pages, host_pages, flash_pages, ssd="3.2 GB/s"):
    return SystemSpec(
        name="small",
        gpu={"memory": f"{gpu_pages * PAGE} B", "clock": "1.2 GHz", "allocation_rate": "1200 GB/s"},
        host={"memory": f"{host_pages * PAGE} B"},
        ssd={
            "capacity": f"{flash_pages * PAGE} B",
            "read_bandwidth": ssd,
            "write_bandwidth": ssd,
            "latency": "20 us",
        },
        pcie={"bandwidth": "15.754 GB/s"},
        page_fault={"latency": "45 us"},
    )


relaxed = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@relaxed
@given(cases(), behaviours)
def test_every_run_keeps_its_books(case, behaviour):
    trace, system, policy = case
    records = simulate(trace, system, policy, behaviour, record=("timeline",))
    expected = [(iteration, kernel.id) for iteration in range(2) for kernel in trace.kernels]
    assert [(k.iteration, k.kernel) for k in records.kernels] == expected
    time = 0
    for record in records.kernels:
        assert record.start == time
        time = record.end
        assert time - record.start == record.compute_cycles + sum(cycles for _, cycles in record.stalls)
        assert all(cycles > 0 for _, cycles in record.stalls)
        assert 0 <= record.overlap_cycles <= record.in_flight_cycles
        if behaviour.breakdown == "computing":
            assert record.overlap_cycles <= record.compute_cycles
        assert 0 <= record.gpu_pages * PAGE <= system.gpu.memory
        assert 0 <= record.tier_pages["host_pages"] * PAGE <= system.host.memory
    for iteration in records.iterations:
        own = [k for k in records.kernels if k.iteration == iteration.iteration]
        assert iteration.end - iteration.start == sum(k.end - k.start for k in own)
        assert iteration.compute_cycles == iteration.ideal_cycles == sum(k.compute_cycles for k in own)
        assert iteration.peak_gpu_bytes <= system.gpu.memory
        assert iteration.peaks["peak_host_bytes"] <= system.host.memory
    for level in records.memory:
        assert level.gpu_bytes <= system.gpu.memory
        assert level.tier_bytes["host_bytes"] <= system.host.memory


@relaxed
@given(cases(), behaviours)
def test_migrations_add_up_to_traffic(case, behaviour):
    trace, system, policy = case
    records = simulate(trace, system, policy, behaviour, record=("migrations",))
    moved = {}
    for move in records.migrations:
        assert move.start <= move.end <= records.iterations[-1].end
        assert move.size_bytes > 0
        assert (move.source == GPU) is (move.target != GPU)
        assert (move.source == GPU) is (
            move.cause in (MigrationCause.PLANNED_EVICTION, MigrationCause.MAKING_ROOM)
        )
        moved[move.source, move.target] = moved.get((move.source, move.target), 0) + move.size_bytes
    for key, way in (
        ("ssd_to_gpu_bytes", (FLASH, GPU)),
        ("gpu_to_ssd_bytes", (GPU, FLASH)),
        ("host_to_gpu_bytes", (HOST, GPU)),
        ("gpu_to_host_bytes", (GPU, HOST)),
    ):
        assert sum(i.traffic[key] for i in records.iterations) == moved.get(way, 0)


@relaxed
@given(cases(), behaviours)
def test_no_policy_beats_unlimited_memory(case, behaviour):
    trace, system, policy = case
    records = simulate(trace, system, policy, behaviour)
    ideal = simulate(trace, system, Ideal(), behaviour)
    durations = sum(trace.duration_cycles(kernel, system.gpu.clock) for kernel in trace.kernels)
    assert [i.end - i.start for i in ideal.iterations] == [durations] * 2
    assert all(not i.stalls and not i.page_faults for i in ideal.iterations)
    for ours, best in zip(records.iterations, ideal.iterations, strict=True):
        assert ours.end - ours.start >= best.end - best.start


@relaxed
@given(cases(), behaviours)
def test_the_same_run_gives_the_same_records_and_watching_changes_nothing(case, behaviour):
    trace, system, policy = case
    first = simulate(trace, system, policy, behaviour, record=("timeline",))
    again = simulate(trace, system, policy, behaviour, record=("timeline",))
    assert first == again
    unwatched = simulate(trace, system, policy, behaviour, record=(), check=False)
    assert unwatched.iterations == first.iterations
    assert unwatched.events <= first.events  # pages that somebody hears of come one by one
    assert (unwatched.kernels, unwatched.migrations, unwatched.memory) == ((), (), ())


@relaxed
@given(cases(policies=False))
def test_room_for_everything_leaves_only_first_touches(case):
    trace, _ = case
    roomy = small_system(sum(map(pages, trace.tensors)) + 1, 0, sum(map(pages, trace.tensors)))
    records = simulate(trace, roomy, BaseUvm(), iterations=3)
    for iteration in records.iterations:
        reasons = {reason for reason, _ in iteration.stalls}
        allowed = {StallReason.FIRST_TOUCH} | (
            {StallReason.FAULT_FLASH} if iteration.iteration == 0 else set()
        )
        assert reasons <= allowed
        traffic = iteration.traffic
        assert traffic["gpu_to_host_bytes"] == traffic["gpu_to_ssd_bytes"] == 0
        assert traffic["host_to_gpu_bytes"] == 0
    kept = simulate(trace, roomy, BaseUvm(), BehaviourSpec(dead_tensors="kept"), iterations=3)
    assert all(not iteration.stalls for iteration in kept.iterations[1:])


@relaxed
@given(cases(policies=False))
def test_working_set_stays_while_its_kernel_runs(case):
    trace, system = case
    records = simulate(trace, system, DeepUm(look_ahead=2), record=("kernels", "migrations"))
    for kernel in records.kernels:
        computing = kernel.end - kernel.compute_cycles
        needed = trace.kernels[kernel.kernel].tensors
        leaving = [
            move
            for move in records.migrations
            if move.source == GPU
            and move.tensor in needed
            and computing < move.end
            and move.start < kernel.end
        ]
        assert [move for move in leaving if move.start >= kernel.start] == []


@settings(relaxed, max_examples=30)
@given(st.integers(2, 12), st.integers(3, 40), st.sampled_from([None, GPG]))
def test_chain_of_layers_faults_the_more_the_smaller_the_gpu(layers, slack, behaviour):
    trace = chain(layers, activation_bytes=1 << 20, weight_bytes=1 << 18)
    footprint = sum(map(pages, trace.tensors))
    working_set = max(sum(pages(trace.tensors[t]) for t in kernel.tensors) for kernel in trace.kernels)
    small = simulate(trace, small_system(working_set + slack, footprint, footprint), BaseUvm(), behaviour)
    large = simulate(trace, small_system(footprint, footprint, footprint), BaseUvm(), behaviour)
    assert small.iterations[1].page_faults >= large.iterations[1].page_faults
    assert small.iterations[1].end >= large.iterations[1].end


def bundled_trace():
    return load_trace(data_path("traces", "bert-base-b256-s128.g10t"))


def base_uvm_time(trace, **changes):
    system = load_system({"preset": "a100-40g-pcie3-znand", **changes})
    records = run(Workload((Job(trace, iterations=2),)), system, BaseUvm(), BehaviourSpec())
    return records.iterations[-1].end - records.iterations[-1].start


@pytest.mark.parametrize(
    ("key", "settings_of", "values"),
    [
        pytest.param(
            "host memory",
            lambda value: {"host": {"memory": f"{value} GiB"}},
            [0, 4, 64],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "SSD bandwidth",
            lambda value: {
                "host": {"memory": "2 GiB"},
                "ssd": {"read_bandwidth": f"{value} GB/s", "write_bandwidth": f"{value} GB/s"},
            },
            [1, 4, 16],
            marks=pytest.mark.nightly,
        ),
        ("GPU memory", lambda value: {"gpu": {"memory": f"{value} GiB"}}, [12, 16, 20]),
    ],
)
def test_more_never_slows_base_uvm_on_a_real_trace(key, settings_of, values):
    trace = bundled_trace()
    times = [base_uvm_time(trace, **{"gpu": {"memory": "12 GiB"}, **settings_of(value)}) for value in values]
    for value, before, after in zip(values[1:], times, times[1:], strict=False):
        assert after <= before * 1.01, f"{key} {value}: {before} -> {after}"
    assert times[-1] < times[0]
