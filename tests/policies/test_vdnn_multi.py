"""Offloading of layers on GPUs that share links: the ladder from vDNN to planning for contention."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise import LayerSpec, layerwise_trace
from memories import HOST
from vdnn_networks import alexnet, chains, titan_x, vgg

import g10sim
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import ExchangeSpec, VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, ConfigError, UnsupportedError
from g10sim.policies.designs.vdnn.layers import LayerKind, layers_of, schedule_of
from g10sim.policies.designs.vdnn_multi.offload_set import (
    Offloaded,
    OffloadTimeline,
    _Exposure,
    by_window,
    just_in_time,
    layers_to_offload,
    pruned,
)
from g10sim.policies.designs.vdnn_multi.steering import Rescue, SteeredJob, plan_prefetches
from g10sim.policies.designs.vdnn_multi.vdnn_multi import VdnnMulti, fair_share
from g10sim.policies.interface.moves import Await, Evict
from g10sim.policies.interface.registry import create
from g10sim.policies.planning.occupancy import Occupancy
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

TRACES = Path(g10sim.__file__).parents[1] / "traces"
GPUS = (1, 2, 4)


def node(gpus, link="12.8 GB/s", memory="12 GB", *, uplink=True, service="fair", page="512 B"):
    """Titan X cards that share an uplink as fast as one card's link, or have root ports of their own."""
    plain = titan_x(link, memory, host="1024 GiB").model_dump(mode="json")
    plain["gpu"].update(count=gpus, page_size=page)
    shared = [{"name": "uplink", "gpus": list(range(gpus)), "bandwidth": link}] if uplink else []
    plain["pcie"].update(shared=shared, service=service)
    return SystemSpec(**plain)


def replicate(trace, system, policy, *, iterations=2, exchange=None, **options):
    jobs = tuple(Job(trace, gpu=gpu, iterations=iterations) for gpu in range(system.gpu.count))
    spec = None if exchange is None else ExchangeSpec(method=exchange)
    return run(Workload(jobs, exchange=spec), system, create(policy), **options)


def multi(step, **parameters):
    return {"name": "vdnn_multi", "ladder": step, **parameters}


def performance(records):
    """Mean over GPUs of ideal time over time, in the last iteration."""
    last = {record.job: record for record in records.iterations}
    return np.mean([record.ideal_cycles / (record.end - record.start) for record in last.values()])


@cache
def network(name):
    if name in ("VGG-E", "AlexNet"):
        return vgg(64) if name == "VGG-E" else alexnet(128)
    return g10sim.load_trace(TRACES / f"{name}.g10t")


# --- shares of links ---


def test_a_share_is_the_capacity_over_the_gpus_that_compute():
    plain = node(4).model_dump(mode="json")
    plain["pcie"]["shared"] += [{"name": "pair", "gpus": [0, 1], "bandwidth": "8 GB/s"}]
    system = SystemSpec(**plain)
    assert fair_share(system, 0, {0}) == 8 * 10**9
    assert fair_share(system, 0, {0, 1, 2, 3}) == 3_200_000_000
    assert fair_share(system, 0, {0, 1}) == 4 * 10**9
    assert fair_share(system, 2, {2}) == 12_800_000_000
    plain["host"]["memory_bandwidth"] = "4 GB/s"
    assert fair_share(SystemSpec(**plain), 2, {2, 3}) == 2 * 10**9
    plain["host"]["sockets"] = [{"name": "a", "gpus": [0, 1]}, {"name": "b", "gpus": [2, 3]}]
    assert fair_share(SystemSpec(**plain), 2, {0, 1, 2}) == 4 * 10**9
    assert fair_share(node(1024, "1 kB/s"), 0, range(1024)) == 1


# --- arbitration ---


def pair(forward_ns=10_000_000):
    """Two convolutions that take 10 ms and copy their inputs in 2 ms at a byte per nanosecond."""
    layers = [
        LayerSpec("conv1", "Conv2d", 2_000_000, forward_ns, 10**7),
        LayerSpec("conv2", "Conv2d", 2_000_000, forward_ns, 10**7),
        LayerSpec("classifier", "Linear", 1_000, 10**6, 10**6, weight_bytes=1_000),
    ]
    return layerwise_trace("pair", 1, 2_000_000, layers)


@pytest.mark.parametrize(
    ("arbitration", "ends"),
    [
        ("fair", {0: [4, 14], 1: [4, 14]}),
        ("first_come", {0: [2, 12], 1: [4, 14]}),
        ("deadline", {0: [2, 14], 1: [4, 12]}),
        ("machine", {0: [4, 14], 1: [4, 14]}),
    ],
)
def test_copies_share_the_uplink_or_take_turns(arbitration, ends):
    policy = multi("K2", arbitration=arbitration)
    records = replicate(
        pair(), node(2, "1 GB/s", page="1000 B"), policy, iterations=1, record=("migrations",)
    )
    found = {0: {}, 1: {}}
    for move in records.migrations:
        if move.target is HOST:
            found[move.gpu][move.tensor] = move.end
    assert {gpu: [end // 10**6 for end in sorted(moves.values())] for gpu, moves in found.items()} == ends


def test_the_machine_decides_where_the_policy_leaves_it_to_it():
    trace = network("VGG-E")
    ordered = replicate(trace, node(2, service="first_come"), multi("K2", arbitration="machine"))
    assert ordered == replicate(trace, node(2), multi("K2", arbitration="first_come"))
    assert ordered != replicate(trace, node(2), multi("K2"))
    assert replicate(trace, node(2, service="first_come"), multi("K2")) == replicate(
        trace, node(2), multi("K2")
    )


# --- what is offloaded ---


def timeline_of(trace, clock=10**9, page=512):
    durations = [trace.duration_cycles(kernel, clock) for kernel in trace.kernels]
    return OffloadTimeline(trace, durations, page)


def chosen_layers(trace, budget, rate=12.8):
    timeline, layers = timeline_of(trace), layers_of(trace, fuse_activations=True)
    candidates, kind = [one for one in layers if one.kind is not LayerKind.MATRIX], LayerKind.CONVOLUTION
    returns = just_in_time(timeline)
    return layers_to_offload(timeline, candidates, budget, kind, lambda size: round(size / rate), returns)


def used_bytes(trace, layers, copy_cycles=lambda size: round(size / 12.8)):
    timeline = timeline_of(trace)
    used, returns = timeline.occupancy(), just_in_time(timeline)
    for layer in layers:
        offloaded = timeline.offloaded(layer, copy_cycles, returns)
        used.add(offloaded.gone, offloaded.back, -offloaded.size_bytes)
    return used.peak_bytes


def test_nothing_is_offloaded_where_everything_fits():
    trace = network("VGG-E")
    assert chosen_layers(trace, used_bytes(trace, ())) == ()
    records = replicate(trace, node(4), multi("K4"))
    assert {record.traffic["gpu_to_host_bytes"] for record in records.iterations} == {0}
    assert performance(records) == 1


@pytest.mark.parametrize("gigabytes", [3.8, 4.2, 4.6, 5])
def test_the_set_fits_the_budget_and_nothing_in_it_is_for_nothing(gigabytes):
    trace, budget = network("VGG-E"), int(gigabytes * 1e9)
    chosen = chosen_layers(trace, budget)
    assert used_bytes(trace, chosen) <= budget < used_bytes(trace, ())
    for layer in chosen:
        assert used_bytes(trace, [other for other in chosen if other is not layer]) > budget


def test_a_budget_that_cannot_be_met_takes_all_that_helps():
    trace = network("VGG-E")
    assert used_bytes(trace, chosen_layers(trace, 10**6)) <= used_bytes(
        trace, chosen_layers(trace, 4 * 10**9)
    )


def test_of_what_does_not_matter_any_more_the_most_bytes_stay():
    trace = pair()
    timeline = timeline_of(trace)
    layers = [
        timeline.offloaded(layer, lambda size: size, just_in_time(timeline))
        for layer in layers_of(trace, fuse_activations=True)[:2]
    ]
    small, large = (
        replace(layer, size_bytes=size, gone=0, back=2) for layer, size in zip(layers, (10, 20), strict=True)
    )
    used = Occupancy(np.zeros(len(trace.kernels), dtype=np.int64))
    # There is room for either of them, but not for both.
    assert pruned([small, large], used, 20) == [small]


def test_out_of_memory_sends_out_what_is_used_last_or_nothing():
    trace = pair()
    policy = VdnnMulti(ladder="K4")
    policy.plan(Workload((Job(trace),)), node(1), BehaviourSpec())
    view = Kernels(trace)
    view.job, view.kernel, view.needed = 0, 2, trace.kernels[2].tensors
    assert list(policy.on_out_of_memory(view)) == []
    view.whole = {tensor.id for tensor in trace.tensors}
    assert list(policy.on_out_of_memory(view)) == [Evict(1)]


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize(
    ("step", "backward"),
    [("K2", [2, 1, None]), ("K4", [Await(evictions=False, prefetches=True)] * 3)],
)
def test_layers_end_with_the_copies_that_they_issued_where_layers_join(step, backward, joins):
    """Both layers offload an input; those of their backward passes, 5 to 7, ask for those of the next."""
    trace = pair()
    policy = VdnnMulti(ladder=step, offload="conv", layer_end_join=joins)
    policy.plan(Workload((Job(trace),)), node(1), BehaviourSpec())
    view, awaited = Kernels(trace), {}
    assert policy.state(view) == ()  # nothing has come early
    for view.kernel in range(len(trace.kernels)):
        awaited.update((view.kernel, move) for move in policy.on_kernel_end(view))
    asked = [
        Await(frozenset([one]), evictions=False, prefetches=True) if isinstance(one, int) else one
        for one in backward
    ]
    expected = {0: Await(frozenset([1])), 1: Await(frozenset([2])), **dict(enumerate(asked, 5))}
    assert awaited == ({kernel: move for kernel, move in expected.items() if move} if joins else {})


def test_fewer_bytes_are_offloaded_than_by_every_convolution():
    trace = network("VGG-E")
    moved = {
        step: replicate(trace, node(1, memory="5 GB"), multi(step))
        .iterations[-1]
        .traffic["gpu_to_host_bytes"]
        for step in ("K1", "K3", "K4")
    }
    assert 0 < moved["K4"] <= moved["K3"] < moved["K1"] / 3


def two_candidates():
    """Maps of equal size before the layer in which memory is short."""
    layers = [
        LayerSpec("conv1", "Conv2d", 1_000_000, 10**6, 10**6),
        LayerSpec("conv2", "Conv2d", 1_000_000, 10**6, 10**6),
        LayerSpec("conv3", "Conv2d", 1_000_000, 10**6, 10**6),
        LayerSpec("conv4", "Conv2d", 4_000_000, 10**6, 10**6),
        LayerSpec("classifier", "Linear", 1_024, 10**6, 10**6, weight_bytes=1_024),
    ]
    return layerwise_trace("two", 1, 1_000_000, layers)


def test_of_equal_maps_the_one_that_is_longest_away_goes_first():
    trace = two_candidates()
    first = layers_of(trace, fuse_activations=True)[0]
    assert chosen_layers(trace, used_bytes(trace, ()) - 500_000, rate=10) == (first,)


def test_a_small_map_goes_before_a_large_one_that_would_wait_for_the_link():
    """At a byte a nanosecond: memory is short at 6 ms, and layers begin at 0, 1, 2 ... ms."""
    sizes = [3_500_000, 1_000_000, 1000, 1000, 8_000_000]
    layers = [
        LayerSpec(f"conv{place}", "Conv2d", size, 10**6, 10**7) for place, size in enumerate(sizes, start=1)
    ]
    layers.append(LayerSpec("classifier", "Linear", 1_024, 10**6, 10**7, weight_bytes=1_024))
    trace = layerwise_trace("copies", 1, 3_500_000, layers)
    first, second, third, *_ = layers_of(trace, fuse_activations=True)
    most = used_bytes(trace, ())
    assert chosen_layers(trace, most - 3_000_000, rate=1.0) == (first,)
    # The link is busy until 3.5 ms. Of the second map, 3.5 MB more, 1 MB would be late; the third is not.
    assert chosen_layers(trace, most - 4_000_000, rate=1.0) == (first, third)
    assert chosen_layers(trace, most - 5_000_000, rate=1.0) == (first, second)


@pytest.mark.parametrize(
    ("copy", "short", "exposed"),
    [
        (7000, [2, 6], 1000 + 5000),  # out from 0 to 6000, where memory is short; back from 7000 to 9000
        (7000, [2], 0 + 1000),  # out until it is needed, at 9000; back from 3000 on
        (7000, [2, 3, 6], 4000 + 5000),
        (7000, [2, 9], 0 + 1000),
    ],
)
def test_copies_are_exposed_as_far_as_they_do_not_fit_around_a_shortage(copy, short, exposed):
    """A layer's tensors leave from kernel 0 on; kernel 3 is the first without them, 9 needs them again."""
    offloaded = Offloaded(None, 0, leaves=0, gone=3, needed=9, back=9, copy=copy)
    exposure = _Exposure([offloaded], np.arange(11) * 1000)
    assert exposure.cycles(np.array([0]), np.array(short)).tolist() == [exposed]


# --- when it is prefetched ---


def planned(trace, budget, rate=1.0, shifts=None):
    timeline = timeline_of(trace)
    layers = [
        layer for layer in layers_of(trace, fuse_activations=True) if layer.kind is LayerKind.CONVOLUTION
    ]
    triggers = plan_prefetches(timeline, layers, budget, lambda size: round(size / rate), shifts or {})
    return {
        trigger.tensor: (timeline.times[trigger.issue], timeline.times[trigger.needed])
        for trigger in triggers
    }


def test_prefetches_start_at_the_last_boundary_that_hides_them():
    # Forward 10 + 10 + 1 ms, backward of the classifier 1 ms, of each convolution 10 ms; copies take 2 ms.
    trace = pair()
    triggers = planned(trace, budget=10**12)
    x1, x2 = (
        layers_of(trace, fuse_activations=True)[0].inputs[0],
        layers_of(trace, fuse_activations=True)[1].inputs[0],
    )
    millisecond = 10**6
    # conv2 is reached at 22 ms: 20 ms is in the forward pass, so with its end; conv1 at 32 ms: L = 30 ms.
    assert triggers == {x2: (21 * millisecond, 22 * millisecond), x1: (22 * millisecond, 32 * millisecond)}


def test_a_shift_moves_a_prefetch_by_boundaries_and_never_behind_its_use():
    trace = pair()
    x1 = layers_of(trace, fuse_activations=True)[0].inputs[0]
    plain = planned(trace, 10**12)[x1]
    assert planned(trace, 10**12, shifts={x1: 1})[x1][0] < plain[0]
    assert planned(trace, 10**12, shifts={x1: -1})[x1] == (plain[1], plain[1])
    assert planned(trace, 10**12, shifts={x1: -9})[x1] == (plain[1], plain[1])


def test_memory_decides_how_early_a_prefetch_may_be():
    trace = network("VGG-E")
    late, early = planned(trace, 3 * 10**9, 3.2), planned(trace, 10**12, 3.2)
    assert all(late[tensor][0] >= early[tensor][0] for tensor in early)
    assert any(late[tensor][0] > early[tensor][0] for tensor in early)


def test_a_prefetch_follows_the_last_kernel_without_room_for_it():
    trace, millisecond = pair(), 10**6
    x2 = layers_of(trace, fuse_activations=True)[1].inputs[0]
    # Beside the classifier's backward pass, from 21 to 22 ms, 4 MB are there without x2.
    assert planned(trace, 6_100_000)[x2] == (21 * millisecond, 22 * millisecond)
    assert planned(trace, 5_000_000)[x2] == (22 * millisecond, 22 * millisecond)


def test_a_window_reaches_back_to_the_next_heavy_layer_or_the_last_one():
    parts = [("conv1", "Conv2d"), ("pool", "MaxPool2d"), ("conv2", "Conv2d"), ("conv3", "Conv2d")]
    specs = [LayerSpec(name, kind, 1000, 1000, 1000) for name, kind in [*parts, ("classifier", "Linear")]]
    trace = layerwise_trace("window", 1, 1000, specs)
    layers, timeline = layers_of(trace, fuse_activations=True), timeline_of(trace)
    returns = by_window(layers, LayerKind.CONVOLUTION)
    found = [timeline.offloaded(layer, lambda size: 0, returns).back for layer in layers[:4]]
    ends = [layers[index].backward[0] for index in (2, 2, 3, 4)]
    assert found == ends


class Kernels:
    """A view of kernels one after another, in which tensors are where the test says."""

    def __init__(self, trace):
        self.trace, self.job, self.iteration, self.kernel = trace, 0, 0, 0
        self.measured_cycles = [kernel.duration for kernel in trace.kernels]
        self.free_bytes = self.largest_hole_bytes = 10**12
        self.whole, self.needed = set(), ()

    @property
    def whole_tensors(self):
        return frozenset(self.whole)

    def is_whole(self, tensor):
        return tensor in self.whole

    def is_needed(self, tensor):
        return tensor in self.needed

    def size_bytes(self, tensor):
        return self.trace.tensors[tensor].size_bytes

    def resident_bytes(self, tensor):
        return self.size_bytes(tensor) * self.is_whole(tensor)

    def in_transfer_bytes(self, tensor):
        return 0

    def next_use(self, tensor):
        uses, kernels = self.trace.uses[tensor], len(self.trace.kernels)
        return next(use for use in (*uses, uses[0] + kernels) if use > self.kernel) - self.kernel


def steered(trace, copy_cycles):
    """Return a job whose first layer is prefetched as planned."""
    layers = layers_of(trace, fuse_activations=True)
    return SteeredJob(
        {}, {}, schedule=schedule_of(trace, layers, LayerKind.CONVOLUTION, layers[:1]), trace=trace,
        planned=layers[:1], feedback=True, page_bytes=512, budget_bytes=10**12, copy_cycles=copy_cycles,
    )  # fmt: skip


def test_a_prefetch_that_was_late_is_issued_a_boundary_earlier_in_the_next_iteration():
    trace = pair()
    layers = layers_of(trace, fuse_activations=True)
    (x1,) = layers[0].inputs
    view = Kernels(trace)
    steering = steered(trace, lambda size: size)
    issued = []
    for view.iteration in (0, 1):
        steering.on_iteration_start(view)
        for view.kernel in range(len(trace.kernels)):
            issued += [view.kernel for fetch in steering.on_kernel_start(view) if fetch.tensor == x1]
        assert steering.is_steady(view) == (view.iteration == 1)
        view.whole = {x1}  # from then on every prefetch is in time
    # Kernels 5 and 6 start at 22 ms, kernel 4 at 21 ms; kernel 7 needs x1 at 32 ms, which takes 2 ms.
    assert issued == [6, 4]


@pytest.mark.parametrize(
    ("arrives", "wanted", "issued"), [(7, None, 6), (7, 8, 7), (8, 8, 7), (9, 10, 7), (10, 10, 6), (7, 11, 6)]
)
def test_what_came_more_than_a_layer_early_comes_later_if_its_memory_was_wanted(arrives, wanted, issued):
    """Seen at a kernel in the first iteration, while memory is full at another."""
    trace = two_candidates()
    layers = layers_of(trace, fuse_activations=True)
    (x1,) = layers[0].inputs
    assert [layer.backward for layer in layers] == [(11,), (10,), (9,), (8,), (6, 7)]
    view = Kernels(trace)
    steering = steered(trace, lambda size: 3_500_000)
    found = []
    for view.iteration in (0, 1, 2):
        steering.on_iteration_start(view)
        for view.kernel in range(len(trace.kernels)):
            is_there = view.kernel >= (10 if view.iteration else arrives)
            view.whole, is_full = {x1} if is_there else set(), (view.iteration, view.kernel) == (0, wanted)
            view.free_bytes = 0 if is_full else 10**12
            found += [view.kernel for _ in steering.on_kernel_start(view)]
        assert steering.is_steady(view) == (view.iteration > 0 or issued == 6)
    # Kernels take a millisecond, 7 none; kernel 11 needs x1 at 9 ms, 3.5 ms after 5.5 ms.
    assert found == [6, issued, issued]


def test_what_the_backward_pass_reads_last_makes_room_before_weights():
    trace = pair()
    view = Kernels(trace)
    view.kernel, view.needed = 2, trace.kernels[2].tensors
    view.whole = {tensor.id for tensor in trace.tensors}
    names = [trace.tensors[tensor].name for tensor in (0, 1, 2)]
    assert names == ["classifier.weight", "input", "conv1.output"]
    assert Rescue(trace).victim(view) == 1
    view.whole -= {1}
    assert Rescue(trace).victim(view) == 2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_feedback_plans_for_the_times_that_kernels_really_take(seed):
    """Kernels that take less than planned make prefetches late, until the plan follows what was measured."""
    layers = []
    for number in range(5):
        layers.append(LayerSpec(f"big{number}", "MaxPool2d", 1_000_000, 10**6, 300_000))
        layers.append(LayerSpec(f"conv{number}", "Conv2d", 1_000, 10**6, 300_000))
        layers += [
            LayerSpec(f"small{number}.{part}", "MaxPool2d", 1_000, 100_000, 300_000) for part in range(7)
        ]
    layers.append(LayerSpec("classifier", "Linear", 1_000, 10**6, 10**6, weight_bytes=1_000))
    trace, system = layerwise_trace("even", 1, 1_000, layers), node(1, "1 GB/s", page="1000 B")
    workload = Workload((Job(trace, iterations=3),), VariationSpec(magnitude=0.6), seed=seed)
    waits = {}
    for feedback in (True, False):
        policy = create(multi("K4", offload="conv", headroom=0.0, feedback=feedback))
        records = run(workload, system, policy)
        waits[feedback] = [i.end - i.start - i.ideal_cycles for i in records.iterations]
        steady = run(replace(workload, jobs=(Job(trace, iterations="auto"),)), system, policy).iterations
        expected = [None, False, True] if feedback else [None, True]
        assert [record.steady for record in steady] == expected
    first = waits[False][0]
    assert first > 0
    assert waits == {True: [first, 0, 0], False: [first] * 3}


# --- the ladder ---


@pytest.mark.parametrize("gpus", GPUS)
def test_the_first_step_is_vdnn_on_every_gpu(gpus):
    trace, system = network("VGG-E"), node(gpus)
    ours, theirs = (
        replicate(trace, system, policy) for policy in (multi("K1"), {"name": "vdnn", "mode": "conv"})
    )
    assert ours.iterations == theirs.iterations
    nothing = replicate(trace, system, {"name": "vdnn", "mode": "none"})
    assert replicate(trace, system, multi("K0")).iterations == nothing.iterations


@pytest.mark.parametrize(("gpus", "expected"), [(1, 0.97), (2, 0.82), (4, 0.57)])
def test_contention_slows_independent_offloading(gpus, expected):
    """Worked out from the times of figure 6 of the vDNN paper: a layer takes max(computing, copying)."""
    found = performance(replicate(network("VGG-E"), node(gpus), multi("K1")))
    assert found == pytest.approx(expected, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["12 GB", "5 GB"])
def test_the_gap_closes_with_root_ports_of_their_own(memory):
    trace = network("VGG-E")

    def gap(system):
        steps = (performance(replicate(trace, system, multi(step))) for step in ("K1", "K4"))
        return -np.subtract(*steps)

    assert gap(node(4, memory=memory)) > 0.4
    apart = node(4, memory=memory, uplink=False)
    assert gap(apart) == pytest.approx(gap(node(1, memory=memory)), abs=1e-9)
    assert 0 <= gap(apart) < 0.03
    assert 0 <= gap(node(4, "400 GB/s", memory=memory)) < 0.01


# K1 runs in each of these memories; in all but the first it has to offload something.
CASES = [("VGG-E", memory, gpus) for memory in ("12 GB", "5 GB", "4.8 GB") for gpus in GPUS]
CASES += [("AlexNet", memory, gpus) for memory in ("0.75 GB", "0.7 GB", "0.65 GB") for gpus in GPUS]
CASES += [("bert-base-b256-s128", "30 GiB", 1)]
QUICK = [("VGG-E", "4.8 GB", 2), ("AlexNet", "0.65 GB", 1)]
LONG = [case for case in CASES if case[1] in ("5 GB", "0.75 GB", "0.7 GB", "30 GiB")]
"""Of every night only: the least and the most memory of each kind are among the others."""


def marks(case):
    return () if case in QUICK else pytest.mark.nightly if case in LONG else pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "memory", "gpus"), [pytest.param(*case, marks=marks(case)) for case in CASES]
)
def test_no_step_that_plans_for_contention_is_slower_than_one_below_it(name, memory, gpus):
    trace, page = network(name), "512 B" if name in ("VGG-E", "AlexNet") else "4 KiB"
    system = node(gpus, memory=memory, page=page)
    found = {step: replicate(trace, system, multi(step)) for step in ("K1", "K3", "K4")}
    speeds = {step: performance(records) for step, records in found.items()}
    assert 0 < speeds["K1"] < 1
    assert speeds["K1"] <= speeds["K3"] <= speeds["K4"]
    assert all(
        (found[step].iterations[-1].traffic["gpu_to_host_bytes"] > 0) == (memory != "12 GB")
        for step in found
        if step != "K1"
    )
    if name == "VGG-E":
        assert speeds["K1"] < performance(replicate(trace, system, multi("K2"))) <= speeds["K3"]


def test_results_say_what_was_chosen():
    note = replicate(network("VGG-E"), node(2, memory="5 GB"), multi("K4")).note
    assert re.fullmatch(r"1 layers offload, headroom 0%, the fastest of \d+ trials", note)


def test_long_traces_are_not_tried_out(monkeypatch):
    monkeypatch.setattr("g10sim.policies.designs.vdnn_multi.vdnn_multi._MOST_KERNELS", 5)
    records = replicate(network("VGG-E"), node(2, memory="5 GB"), multi("K4"))
    assert records.note == "1 layers offload, headroom 0%, nothing tried with more than 5 kernels"


@pytest.mark.parametrize("step", ["K1", "K2", "K3", "K4"])
@pytest.mark.parametrize("exchange", ["ring", "host", "none"])
def test_one_replica_is_the_single_gpu(step, exchange):
    trace = network("VGG-E")
    alone = run(Workload((Job(trace),)), node(1, memory="5 GB"), create(multi(step)))
    assert replicate(trace, node(1, memory="5 GB"), multi(step), exchange=exchange) == alone


# --- bounds ---


@settings(max_examples=40, deadline=None)
@given(
    chains(largest=60),
    st.sampled_from([{"name": "vdnn", "mode": "all"}, {"name": "vdnnpp", "mode": "all"}])
    | st.builds(
        lambda step, offload, join, service, prefetch: multi(
            step, offload=offload, layer_end_join=join, arbitration=service, prefetch=prefetch
        ),
        st.sampled_from(["K0", "K1", "K2", "K3", "K4"]),
        st.sampled_from([None, "none", "conv", "contention_aware"]),
        st.sampled_from([None, True, False]),
        st.sampled_from([None, "machine", "fair", "first_come", "deadline"]),
        st.sampled_from([None, "window", "planned"]),
    ),
    st.integers(1, 4),
    st.sampled_from(["ring", "host", "none"]),
    st.integers(40, 100),
)
def test_no_iteration_beats_its_kernels_or_the_bytes_on_any_link(trace, policy, gpus, exchange, percent):
    memory = used_bytes(trace, ()) * percent // 100
    system = node(gpus, "1 GB/s", memory=f"{memory} B")
    try:
        records = replicate(trace, system, policy, exchange=exchange, iterations=2, check=True)
    except (UnsupportedError, CapacityError):
        return
    start, end = min(i.start for i in records.iterations), max(i.end for i in records.iterations)
    out = sum(record.traffic["gpu_to_host_bytes"] for record in records.iterations)
    back = sum(record.traffic["host_to_gpu_bytes"] for record in records.iterations)
    assert end - start >= max(out, back)  # the uplink carries a byte per cycle in each direction
    for record in records.iterations:
        took = record.end - record.start
        own = (record.traffic["gpu_to_host_bytes"], record.traffic["host_to_gpu_bytes"])
        assert took >= max(record.ideal_cycles, *own)
    again = replicate(trace, system, policy, exchange=exchange, iterations=2)
    assert again.iterations == records.iterations


# --- parameters ---


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ladder": "K5"}, "ladder: found 'K5'; allowed: K0, K1, K2, K3, K4"),
        ({"offload": "all"}, "offload: found 'all'; allowed: none, conv, contention_aware"),
        ({"layer_end_join": "yes"}, "layer_end_join: found 'yes'; allowed: true or false"),
        (
            {"arbitration": "exclusive"},
            "arbitration: found 'exclusive'; allowed: machine, fair, first_come, deadline",
        ),
        ({"prefetch": "late"}, "prefetch: found 'late'; allowed: window, planned"),
        ({"feedback": 1}, "feedback: found 1; allowed: true or false"),
        ({"headroom": 1}, "headroom: found 1; allowed: a number from 0 to less than 1"),
        ({"headroom": True}, "headroom: found True; allowed: a number from 0 to less than 1"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ConfigError, match=message):
        create({"name": "vdnn_multi", **parameters})


def test_from_step_k3_on_tensors_may_leave_even_where_no_layer_offloads():
    steps = [f"K{number}" for number in range(5)]
    none = [VdnnMulti(ladder=step, offload="none").offloads for step in steps]
    assert none == [False, False, False, True, True]
    assert VdnnMulti(ladder="K1").offloads
    assert not VdnnMulti(ladder="K0").offloads


def test_every_ingredient_is_a_switch_of_its_own():
    built = create(
        multi(
            "K0",
            offload="contention_aware",
            layer_end_join=False,
            arbitration="deadline",
            prefetch="planned",
            headroom=0.0,
        )
    )
    trace, system = network("VGG-E"), node(2, memory="5 GB")
    assert isinstance(built, VdnnMulti)
    assert replicate(trace, system, built.parameters() | {"name": "vdnn_multi"}).iterations == (
        replicate(trace, system, multi("K4", headroom=0.0)).iterations
    )
    base = replicate(trace, system, multi("K2")).iterations
    for switch in (
        {"layer_end_join": True},
        {"arbitration": "deadline"},
        {"prefetch": "planned"},
        {"offload": "none"},
    ):
        try:
            assert replicate(trace, system, multi("K2", **switch)).iterations != base, switch
        except UnsupportedError:
            assert switch == {"offload": "none"}


def test_kernels_that_join_with_planned_prefetches_wait_for_them():
    trace, system = network("VGG-E"), node(1, "3.2 GB/s")
    records = replicate(trace, system, multi("K4", offload="conv", layer_end_join=True))
    # What is under way when a layer ends has come when the next one begins.
    assert set(dict(records.iterations[-1].stalls)) == {StallReason.SYNCHRONIZATION}
