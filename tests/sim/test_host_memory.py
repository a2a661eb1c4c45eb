"""Pinned, pageable and compressed host memory, by timelines worked out by hand.

A page of 1000 bytes crosses PCIe in 1000 cycles; a cycle is a nanosecond.
"""

import dataclasses

import pytest
from machines import PAGE, iteration_times, kernel_times, machine, simulate, trace_of
from memories import GPU, HOST
from vdnn_networks import VGG_16, alexnet, titan_x, vgg

from g10sim.config.host import CompressionSpec, HostSpec, PinnedSpec
from g10sim.hardware.host_memory.host_buffers import HostBuffers, HostMemory, packed_bytes
from g10sim.hardware.host_memory.pinned import PinnedMemory
from g10sim.policies.designs.vdnn.vdnnpp import VdnnPlusPlus
from g10sim.policies.interface.moves import Await, Evict, Fetch, KeepUncompressed
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.records import StallReason
from g10sim.trace.model import TensorKind

LATE = StallReason.LATE_PREFETCH


def near(value):
    return pytest.approx(value, abs=2)


def host_machine(gpu_pages=100, **host):
    system = machine(gpu_pages)
    return system.model_copy(update={"host": HostSpec(memory="1 MB", **host)})


class Copies(Policy):
    """Evicts and prefetches what it is told to, kernel by kernel."""

    name = "copies"
    requirements = Requirements(placement="contiguous")

    def __init__(self, actions, keeps=False):
        self.actions = actions
        self.requirements = Requirements(placement="contiguous", keeps_host_buffers=keeps)

    def on_kernel_start(self, view):
        return self.actions.get(view.kernel, ())


def idle_for(cycles=20_000, sizes=(4, 4)):
    """Tensors a and b are made, two kernels do without them, then they are read."""
    a, b = sizes
    return trace_of(
        {"a": a, "b": b}, [(1000, "", "a b"), (cycles, "", ""), (cycles, "", ""), (1000, "a b", "")], "idle"
    )


def out_and_in(*tensors, density=None):
    return Copies({1: [Evict(t, density=density) for t in tensors], 2: [Fetch(t) for t in tensors]})


def moves(records, iteration_end):
    return [
        (record.tensor, record.target, record.start, record.end)
        for record in records.migrations
        if record.end <= iteration_end
    ]


def transfers(system, policy, trace=None, iterations=1):
    records = simulate(
        trace or idle_for(), system, policy, iterations=iterations, record=("kernels", "migrations")
    )
    return records, [(m.tensor, m.target, m.start, m.end) for m in records.migrations]


def test_pinning_delays_a_copy_and_one_thread_pins():
    pinned = {"pin_latency": "1 us", "pin_rate": "1 GB/s"}
    _, moved = transfers(host_machine(pinned=pinned), out_and_in(0, 1))
    # Pinning takes 1000 + 4000 each: a may leave at 6000, b at 11,000.
    assert moved[0] == near((0, HOST, 6000, 10_000))
    assert moved[1] == near((1, HOST, 11_000, 15_000))


def test_pinning_overlaps_with_the_copies_before():
    pinned = {"pin_rate": "4 GB/s"}
    _, moved = transfers(host_machine(pinned=pinned), out_and_in(0, 1))
    # a from 2000 to 6000, while b is pinned.
    assert moved[0] == near((0, HOST, 2000, 6000))
    assert moved[1] == near((1, HOST, 6000, 10_000))


@pytest.mark.parametrize(("keeps", "again"), [(True, 0), (False, 4000)])
def test_buffers_are_pinned_once_if_they_are_kept(keeps, again):
    policy = out_and_in(0)
    policy.requirements = dataclasses.replace(policy.requirements, keeps_host_buffers=keeps)
    records, moved = transfers(host_machine(pinned={"pin_rate": "1 GB/s"}), policy, iterations=2)
    start = records.iterations[1].start + 1000
    second = next(move for move in moved if move[1] == HOST and move[2] >= start)
    assert second[2] == near(start + again)
    assert [record.contiguous.peak_pinned_bytes for record in records.iterations] == [4 * PAGE] * 2


def test_unpinning_takes_time_and_counts_until_it_is_done():
    pinned = PinnedMemory(PinnedSpec(limit="10 kB", unpin_latency="1 us", unpin_rate="1 GB/s"), 10**9)
    assert pinned.pin(6000, now=0) == 0
    assert not pinned.fits(6000, now=0)
    pinned.unpin(6000, now=500)
    assert not pinned.fits(6000, now=7499)
    assert pinned.fits(6000, now=7500)
    # The thread that unpins is the one that pins.
    assert pinned.pin(1, now=500) == 7500


def test_the_most_pinned_memory_is_that_of_each_iteration():
    class OnlyFirst(Copies):
        """Copies in the first iteration alone."""

        def on_kernel_start(self, view):
            return super().on_kernel_start(view) if view.iteration == 0 else ()

    policy = OnlyFirst(out_and_in(0).actions)
    records, moved = transfers(host_machine(pinned={"unpin_latency": "1 us"}), policy, iterations=2)
    # Back at 25,000, and unpinned 1000 cycles later: long before the second iteration begins.
    assert moved[-1] == near((0, GPU, 21_000, 25_000))
    assert [record.contiguous.peak_pinned_bytes for record in records.iterations] == [4 * PAGE, 0]


def test_beyond_the_limit_copies_use_pageable_memory():
    pinned = {"limit": "4 kB", "pageable_bandwidth": "0.5 GB/s"}
    records, moved = transfers(host_machine(pinned=pinned), out_and_in(0, 1))
    assert moved[0] == near((0, HOST, 1000, 5000))
    assert moved[1] == near((1, HOST, 5000, 13_000))
    back = [move for move in moved if move[1] == GPU and move[0] == 1][-1]
    assert back[3] - back[2] == near(8000)
    assert records.iterations[0].contiguous.peak_pinned_bytes == 4 * PAGE


def test_a_copy_that_a_full_ssd_diverts_to_host_memory_is_not_pinned():
    system = machine(100, flash_pages=0, write="1 GB/s")
    pinned = PinnedSpec(pageable_bandwidth="0.5 GB/s")
    system = system.model_copy(update={"host": HostSpec(memory="1 MB", pinned=pinned)})
    records, moved = transfers(system, Copies({1: [Evict(0, "ssd")], 2: [Fetch(0)]}))
    assert moved[0] == near((0, HOST, 1000, 9000))
    assert moved[1][:2] == (0, GPU)
    assert moved[1][3] - moved[1][2] == near(8000)
    assert records.iterations[0].contiguous.peak_pinned_bytes == 0


def test_beyond_the_limit_tensors_may_stay():
    pinned = {"limit": "4 kB", "beyond_limit": "stays"}
    records, moved = transfers(host_machine(pinned=pinned), out_and_in(0, 1))
    assert {move[0] for move in moved if move[1] == HOST} == {0}
    assert records.iterations[0].traffic["gpu_to_host_bytes"] == 4 * PAGE


WORKERS = {"workers": 2, "compression_rate": "1 GB/s", "decompression_rate": "0.5 GB/s"}


def test_compression_makes_a_tensor_small_and_expanding_it_delays_the_fetch():
    system = host_machine(compression=WORKERS)
    records, moved = transfers(system, out_and_in(0, density=0.2))
    # Out until 5000, compressed until 7000; expanded from 21,000 to 25,000, then copied.
    assert moved[:2] == [near((0, HOST, 1000, 5000)), moved[1]]
    assert moved[-1] == near((0, GPU, 25_000, 29_000))
    # A bit for each of 1000 elements, and 2 of 8 pieces: 125 + 1000 beside the raw 4000.
    assert packed_bytes(4000, 0.2, system.host.compression) == 1125
    assert records.iterations[0].contiguous.peak_pinned_bytes == 5125


def test_a_kept_buffer_is_compressed_once_that_is_asked_for():
    class Later(Copies):
        """Compresses from the second iteration on."""

        def on_kernel_start(self, view):
            density = 0.2 if view.iteration else None
            return {1: [Evict(0, density=density)], 2: [Fetch(0)]}.get(view.kernel, ())

    records, _ = transfers(host_machine(compression=WORKERS), Later({}, keeps=True), iterations=2)
    assert [one.contiguous.peak_pinned_bytes for one in records.iterations] == [4000, 5125]


def test_compressed_tensors_go_through_the_workers_one_at_a_time():
    policy = out_and_in(0, 1, density=0.5)
    slow = {**WORKERS, "compression_rate": "0.25 GB/s"}
    records, moved = transfers(host_machine(compression=slow), policy)
    # a is compressed from 5000 to 13,000, b, which arrives at 9000, from 13,000 to 21,000: just in time.
    back = {move[0]: move[2:] for move in moved if move[1] == GPU and move[2] > 5000}
    # Expanding takes 4000 each: from 21,000 and from 25,000.
    assert back[0] == near((25_000, 29_000))
    assert back[1] == near((29_000, 33_000))
    assert records.iterations[0].stalls == ()


@pytest.mark.parametrize(("bandwidth", "compressed"), [(None, 7000), ("100 GB/s", 7000), ("2 GB/s", 9562)])
def test_workers_share_the_bandwidth_of_host_memory_with_copies(bandwidth, compressed):
    """a is compressed from 5000 on, 5125 bytes read and written, while b goes out until 9000.

    Two bytes a cycle are one for b and one for the workers, then two for them. The fetch of a is issued at
    9000: it is expanded as soon as it is compressed, in 4000 cycles, and copied.
    """
    policy = Copies({1: [Evict(0, density=0.2), Evict(1)], 2: [Fetch(0)]})
    system = host_machine(compression=WORKERS, memory_bandwidth=bandwidth)
    _, moved = transfers(system, policy, idle_for(8000))
    returns = next(move for move in moved if move[1] == GPU)
    assert returns[:3] == near((0, GPU, max(compressed, 9000) + 4000))


def test_a_tensor_wanted_before_it_is_compressed_comes_as_it_is():
    slow = {**WORKERS, "compression_rate": "0.1 GB/s"}
    records, moved = transfers(host_machine(compression=slow), out_and_in(0, 1, density=0.5))
    # a is in the workers' hands until 25,000 and expanded until 29,000; b is not, but comes behind a.
    back = {move[0]: move[2:] for move in moved if move[1] == GPU and move[2] > 5000}
    assert back[0] == near((29_000, 33_000))
    assert back[1] == near((33_000, 37_000))
    assert records.kernels[3].stalls == ()


def test_a_buffer_that_is_given_up_while_workers_compress_it_is_unpinned_when_they_are_done():
    """Two workers read 4000 bytes in 2000 cycles, into 1125."""
    host = HostMemory(HostSpec(memory="1 MB", compression=WORKERS), 10**9)
    buffers = HostBuffers(host, PAGE, keeps=False)
    buffers.admit(0, 4, 0.2)
    buffers.stored(0, 4)
    buffers.release(0)
    used = []
    for now in (1999, 2000):
        host.advance(now)
        used.append(host.pinned.used)
    assert used == [5125, 0]


def test_compression_that_has_not_begun_can_be_dropped():
    actions = {
        1: [Evict(0, density=0.1), Evict(1, density=0.1)],
        2: [KeepUncompressed()],
    }
    slow = {**WORKERS, "compression_rate": "0.1 GB/s"}
    records, moved = transfers(host_machine(compression=slow), Copies(actions))
    # a is compressed from 5000 to 25,000 and expanded when kernel 3 demands it, at 41,000; b stays raw.
    assert moved[-2:] == [near((0, GPU, 45_000, 49_000)), near((1, GPU, 49_000, 53_000))]
    assert records.iterations[0].contiguous.peak_pinned_bytes == 4000 + 4000 + 125 + 500


def test_nothing_is_compressed_that_would_not_be_smaller():
    system = host_machine(compression=WORKERS)
    records, moved = transfers(system, out_and_in(0, density=1.0))
    assert moved[-1] == near((0, GPU, 21_000, 25_000))
    assert records.iterations[0].contiguous.peak_pinned_bytes == 4000


def test_a_density_with_ten_digits_is_the_fraction_that_it_stands_for():
    thirds = CompressionSpec(workers=1, compression_rate="1 GB/s", decompression_rate="1 GB/s", pieces=3)
    # A bit for each of 750 elements, the third that is filled and the one after it.
    assert packed_bytes(3000, 0.3333333333, thirds) == packed_bytes(3000, 1 / 3, thirds) == 94 + 2000


def test_what_dies_in_host_memory_gives_up_its_buffer():
    trace = trace_of({"a": 4}, [(1000, "", "a"), (9000, "", ""), (1000, "a", "")], "dies")
    system = host_machine(compression={**WORKERS, "compression_rate": "0.1 GB/s"})
    records, _ = transfers(system, Copies({1: [Evict(0, density=0.1)]}), trace, iterations=3)
    assert len({record.contiguous.peak_pinned_bytes for record in records.iterations}) == 1


SPEC = CompressionSpec(workers=8, compression_rate="1 GB/s", decompression_rate="1 GB/s")


@pytest.mark.parametrize(
    ("trace", "percent", "ideal", "packed", "peak"),
    [
        (alexnet(128), [50, 80, 40, 60, 70, 70, 30, 60], 0.44, 0.34, 0.29),
        (
            vgg(16, VGG_16),
            [50, 20, 30, 20, 10, 20, 20, 20, 10, 20, 20, 10, 10, 10, 20, 20, 10, 15],
            0.72,
            0.66,
            0.59,
        ),
    ],
    ids=["AlexNet", "VGG-16"],
)
def test_compression_of_the_networks_of_vdnnpp(trace, percent, ideal, packed, peak):
    """Densities of vDNN++'s public test give the pinned memory that they were reported to save."""
    maps = [tensor.size_bytes for tensor in trace.tensors if tensor.kind is TensorKind.ACTIVATION]
    maps = maps[: len(percent)]
    densities = [share / 100 for share in percent]
    total = sum(maps)
    exact = sum(size * density + size / 32 for size, density in zip(maps, densities, strict=True))
    assert 1 - exact / total == pytest.approx(ideal, abs=0.01)
    small = [packed_bytes(size, density, SPEC) for size, density in zip(maps, densities, strict=True)]
    assert 1 - sum(small) / total == pytest.approx(packed, abs=0.01)
    highest = max(sum(small[: i + 1]) + maps[i] for i in range(len(maps)))
    assert 1 - highest / total == pytest.approx(peak, abs=0.01)


def test_vdnnpp_pins_less_with_compression():
    """Layers long enough for the workers: at most training data, packed maps and one raw one are pinned."""
    trace = alexnet(128)
    slow = dataclasses.replace(
        trace,
        kernels=tuple(dataclasses.replace(kernel, duration=30 * kernel.duration) for kernel in trace.kernels),
    )
    system = titan_x(compression={**SPEC.model_dump(mode="json"), "compression_rate": "4 GB/s"})
    plain = simulate(slow, system, VdnnPlusPlus(mode="all"), record=())
    packed = simulate(slow, system, VdnnPlusPlus(mode="all", density=0.2), record=())
    assert iteration_times(plain) == iteration_times(packed)
    maps = [tensor.size_bytes for tensor in trace.tensors if tensor.kind is TensorKind.ACTIVATION][:7]
    small = [packed_bytes(size, 0.2, SPEC) for size in maps]
    training_data = 3 * 224 * 224 * 4 * 128
    most = max(sum(small[: i + 1]) + maps[i] for i in range(len(maps)))
    assert plain.iterations[1].contiguous.peak_pinned_bytes == training_data + sum(maps)
    assert packed.iterations[1].contiguous.peak_pinned_bytes == training_data + most


def test_defaults_cost_nothing():
    free = kernel_times(simulate(idle_for(), machine(100), out_and_in(0, 1)))
    limited = host_machine(pinned={"limit": "1 MB"})
    assert kernel_times(simulate(idle_for(), limited, out_and_in(0, 1))) == free


class CallsOff(Policy):
    """Asks for two evictions, waits for the first, and needs the tensor of the second at once."""

    requirements = Requirements(addresses="own", pins_on_use=True)

    def on_kernel_start(self, view):
        return {1: [Evict(0, "host"), Evict(1, "host")], 3: [Evict(1, "host")]}.get(view.kernel, ())

    def on_kernel_end(self, view):
        return [Await(frozenset([0]))] if view.kernel == 1 else ()


@pytest.mark.parametrize("record", [(), ("timeline",)])
def test_what_is_called_off_before_it_begins_is_not_pinned(record):
    """From 7000 on "a" is pinned and leaves; "b" is pinned from 14,001 on, too late to leave by 16,001."""
    kernels = [(1000, "", "a b"), (1000, "", "c"), (1000, "b", ""), (2000, "c", ""), (1000, "a b", "")]
    trace, system = trace_of({"a": 4, "b": 1, "c": 1}, kernels), machine(fault="0 s")
    host = system.host.model_copy(update={"pinned": PinnedSpec(pin_latency="3 us")})
    system = system.model_copy(update={"host": host})
    records = simulate(trace, system, CallsOff(), iterations=1, record=record)
    assert iteration_times(records) == [6000 + 7001 + 1000 + 2000 + 4000 + 1000]
