"""Drives whose cache is used up: fast until so many bytes were written, slow from then on."""

from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import GPG10, OWN, PAGE, FollowPlan, iteration_times, machine, simulate, trace_of
from memories import FLASH, GPU, NO_VICTIMS, memory_of

from g10sim.config.document import parse_document
from g10sim.config.presets import load_system
from g10sim.config.ssd import SsdSpec
from g10sim.errors import ConfigError
from g10sim.experiment.uncertainty import scaled
from g10sim.hardware.pools import Door, Pool
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.sizing.resources import find
from g10sim.trace.synthetic import chain

# A page takes 4000 cycles to the cache, and 10,000 to the flash behind it.
FAST, SLOW = 4000, 10_000


def cached(pages, *, sustained="0.1 GB/s", drives=1, **changes):
    """A machine whose drive takes so many pages at once."""
    system = machine(**changes)
    cache = {"capacity": f"{pages * PAGE} B", "sustained": sustained}
    drive = {**system.ssd.model_dump(mode="json"), "write_cache": cache, "drives": drives}
    return system.model_copy(update={"ssd": SsdSpec.model_validate(drive)})


class Bench:
    """Transfers and a memory that holds tensors of these pages."""

    def __init__(self, system, *pages):
        door, pools = Door(), [Pool(tier, PAGE) for tier in system.all_tiers]
        self.transfers, self.now = FluidTransfers(system, pools, door=door), 0
        self.memory = memory_of(pages, sum(pages), pools, PAGE, door)
        self.drive = system.all_tiers[1]
        for tensor in range(len(pages)):
            self.memory.place(tensor, GPU)
        self.transfers.attach(0, 0, self.memory, NO_VICTIMS)

    def cycles(self, *, until=lambda: False):
        """Cycles until nothing moves any more, or something holds."""
        self.transfers.changed()
        began = self.now
        while not until() and (change := self.transfers.next_change()) is not None:
            self.transfers.advance(change)
            self.now = change
        return self.now - began

    def evict(self, *tensors):
        for tensor in tensors:
            self.memory.request_eviction(tensor, FLASH)
        return self.cycles()

    def fetch(self, tensor):
        self.memory.request_prefetch(tensor)
        return self.cycles()


def time_of(pages, cache):
    return min(pages, cache) * FAST + max(0, pages - cache) * SLOW


@given(cache=st.integers(0, 40), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_what_is_written_first_is_fast_and_the_rest_slow(cache, sizes):
    bench = Bench(cached(cache), *sizes)
    assert bench.evict(*range(len(sizes))) == time_of(sum(sizes), cache)


def test_all_that_was_written_before_counts_and_what_is_read_does_not():
    bench = Bench(cached(10), 8)
    assert bench.evict(0) == 8 * FAST
    assert bench.fetch(0) == 8 * 2000
    assert bench.evict(0) == 2 * FAST + 6 * SLOW
    bench.now += 10**9  # a second without I/O
    bench.transfers.advance(bench.now)
    bench.fetch(0)
    assert bench.evict(0) == 8 * SLOW


def test_a_cache_may_be_used_up_in_the_middle_of_a_page():
    system = cached(0)
    cache = system.ssd.write_cache.model_copy(update={"capacity": 2500})
    system = system.model_copy(update={"ssd": system.ssd.model_copy(update={"write_cache": cache})})
    assert Bench(system, 4).evict(0) == 2500 * 4 + 1500 * 10


def test_several_drives_have_as_many_caches():
    # Two drives write 2 bytes in 4 cycles, and 2 bytes in 10 behind 10 pages each.
    assert Bench(cached(10, drives=2), 30).evict(0) == 20 * FAST // 2 + 10 * SLOW // 2


def test_copies_from_the_host_use_it_up():
    bench = Bench(cached(10), 5)
    links = bench.transfers.topology.to_host(0, bench.drive, back=True)
    message = bench.transfers.send(links, 12 * PAGE)
    assert bench.cycles(until=lambda: message.is_done) == time_of(12, 10)
    assert bench.evict(0) == 5 * SLOW


def rounds(system, iterations):
    """Every iteration writes 10 pages while a kernel needs none, and reads them again."""
    trace = trace_of({"w*": 10}, [(1000, "w", "w"), (110_000, "", ""), (40_000, "", "")])
    policy = FollowPlan(moves=[(1, 0, FLASH), (2, 0, GPU)])
    return simulate(trace, system, policy, iterations=iterations)


def test_iterations_that_use_up_the_cache_are_not_steady_though_they_take_as_long():
    records = rounds(cached(35), "auto")
    assert iteration_times(records)[1:] == [151_000] * 4
    assert [record.steady for record in records.iterations] == [None, False, False, False, True]


def test_without_room_the_drive_is_as_slow_as_behind_its_cache():
    assert cached(0).all_tiers[1].write_bandwidth == 100_000_000
    assert cached(1).all_tiers[1].write_bandwidth == 250_000_000
    assert cached(0, sustained="2 GB/s").all_tiers[1].write_bandwidth == 250_000_000


@given(
    host_pages=st.integers(0, 120), cache=st.integers(1, 120), write=st.sampled_from(["0.25 GB/s", "2 GB/s"])
)
def test_victims_that_go_to_the_drive_once_the_host_is_full_use_it_up(host_pages, cache, write):
    """A timeline has every flow go on by itself; without one, what follows from links alone is jumped."""
    trace = chain(6, activation_bytes=15 * PAGE, weight_bytes=7 * PAGE)
    system = cached(cache, gpu_pages=100, host_pages=host_pages, write=write)
    ways = (simulate(trace, system, BaseUvm(), OWN, record=what) for what in ((), ("timeline",)))
    first, second = ([*map(attrgetter("end", "traffic"), run.iterations)] for run in ways)
    assert first == second


def test_a_cache_larger_than_all_that_is_written_changes_nothing():
    drive = {"write": "10 MB/s"}
    assert iteration_times(rounds(cached(10**6, **drive), 4)) == iteration_times(rounds(machine(**drive), 4))


def test_batches_of_the_published_simulator_refuse_it():
    trace = trace_of({"w*": 10}, [(1000, "w", "")])
    with pytest.raises(ConfigError, match=r"^system.ssd.write_cache: found with .*; allowed: null with it$"):
        simulate(trace, cached(10), FollowPlan(), GPG10)


def test_a_further_tier_has_a_cache_of_its_own():
    keys = "capacity: 1 TB, read: 7 GB/s, write: 5 GB/s, latency: 60 us"
    text = f"{{name: old, kind: ssd, {keys}, write_cache: {{capacity: 80 GB, sustained: 1 GB/s}}}}"
    document = parse_document(f"tiers: [host, {text}]\n", "run.yaml")
    tiers = load_system("a100-80g-pcie4-nvme").model_dump(mode="json") | document.data
    drive = type(load_system("a100-80g-pcie4-nvme")).model_validate(tiers).all_tiers[1].drive
    assert (drive.cached_bytes, drive.sustained_rate) == (80 * 10**9, 10**9)


def test_a_faster_drive_is_faster_behind_its_cache_as_well():
    system = load_system("rtx4090-24g-pcie4-nvme")
    assert find("ssd").changed(system, 14_900_000_000).ssd.sustained_rate == 2_800_000_000
    ((key, (slower,)),) = find("ssd").sweep(system, [3_725_000_000]).items()
    assert (key, slower["write_cache"]["sustained"]) == ("system.ssd", "700 MB/s")
    twice = scaled(system, {"links": 1.0, "drives": 2.0, "faults": 1.0})
    assert (twice.ssd.write_bandwidth, twice.ssd.sustained_rate) == (3_450_000_000, 700_000_000)
