"""Migrations to and from a drive of flash: against the link model, when it is full, and in how many steps."""

import pytest
from drives import PAGE, drive, with_drive
from machines import FollowPlan, machine, simulate, trace_of
from memories import FLASH, GPU, NO_VICTIMS, memory_of, moved

import g10sim
from g10sim.config.presets import load_system
from g10sim.errors import CapacityError, ConfigError, InvariantError
from g10sim.hardware.flash.pool import FlashPool, SsdPort
from g10sim.hardware.links import Link
from g10sim.hardware.pools import Door, Pool
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.importers.gpg import import_gpg
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

ZNAND = "samsung-sz985-800gb"
SETTING = {"preset": "a100-40g-pcie3-znand"}
# Twice the channels, so that the interface is what limits, with reads and writes at the same time, too.
LARGE = {"preset": ZNAND, "channels": 16}


def pools_of(system, spec):
    """No host memory, and the drive."""
    page = system.gpu.page_size
    host, flash = system.all_tiers
    return Pool(host, page, 0), FlashPool(flash, spec, system.gpu.clock, page)


class Bench:
    """One GPU's memory and a drive; ``places`` gives each tensor (pages, place)."""

    def __init__(self, spec, *places, **changes):
        system = with_drive(spec, **changes)
        pools, door = pools_of(system, spec), Door()
        self.flash = pools[1]
        self.transfers = FluidTransfers(system, pools, door=door)
        pages = [count for count, _ in places]
        self.memory = memory_of(pages, sum(pages), pools, system.gpu.page_size, door)
        for tensor, (_, place) in enumerate(places):
            self.memory.place(tensor, place)
        self.transfers.attach(0, 0, self.memory, NO_VICTIMS)

    def finish(self):
        """Cycle at which everything has moved."""
        self.transfers.changed()
        now = 0
        while self.memory.queues.busy:
            now = self.transfers.next_change()
            self.transfers.advance(now)
        return now


def test_reads_and_writes_alone_go_at_their_rates():
    bench = Bench(drive(), (100, GPU), (100, FLASH), pcie="10 GB/s")
    bench.memory.request_eviction(0, FLASH)
    assert bench.finish() == 200_000
    bench = Bench(drive(), (100, GPU), (100, FLASH), pcie="10 GB/s")
    bench.memory.request_prefetch(1)
    assert bench.finish() == pytest.approx(100_000, rel=1e-3)


def test_reads_and_writes_at_the_same_time_share_the_array():
    bench = Bench(drive(), (100, GPU), (200, FLASH), pcie="10 GB/s")
    bench.memory.frames.free += 200  # room for both
    bench.memory.request_eviction(0, FLASH)
    bench.memory.request_prefetch(1)
    # Reads take half of the array for 200 us, in which 50 pages are written; the others take 100 us.
    assert bench.finish() == pytest.approx(300_000, rel=1e-2)
    assert moved(bench.memory) == (200, 100, 0, 0)
    assert bench.memory.traffic.faults == 0


def test_the_buffer_fills_beside_reads_and_empties_while_they_go_on_alone():
    bench = Bench(drive(write_buffer="1 MB"), (500, GPU), (3000, FLASH), pcie="10 GB/s")
    bench.memory.frames.free += 3000
    bench.memory.request_eviction(0, FLASH)
    bench.memory.request_prefetch(1)
    bench.transfers.changed()
    # Reads at 1 GB/s leave half of 500 MB/s: of what comes in 1 ms, half needs another one.
    for change in (1_000_000, 2_000_000, 3_000_000):
        assert bench.transfers.next_change() == change
        bench.transfers.advance(change)


def test_a_drive_needs_ports_for_both_directions():
    pool, port = Pages().pool, Link("port", 10**9)
    for ports in ((None, port), (port, None)):
        with pytest.raises(InvariantError, match="a modelled SSD has no ports"):
            SsdPort(pool, *ports)


@pytest.mark.parametrize("condition", ["fresh", "sequential", "random"])
def test_a_hundred_gigabytes_take_at_most_five_thousand_steps(condition):
    spec = load_system({**SETTING, "ssd": {"preset": ZNAND, "occupied": 0.8, "condition": condition}}).ssd
    page = 2**20
    pages = [1000] * 96
    system = load_system({**SETTING, "ssd": {"preset": ZNAND, "occupied": 0.8, "condition": condition}})
    system = system.model_copy(update={"gpu": system.gpu.model_copy(update={"page_size": page})})
    host, flash = pools_of(system, spec)
    transfers = FluidTransfers(system, [host, flash])
    memory = memory_of(pages, sum(pages), [host, flash], page)
    for tensor in range(len(pages)):
        memory.place(tensor, GPU)
    transfers.attach(0, 0, memory, NO_VICTIMS)
    for tensor in range(len(pages)):
        memory.request_eviction(tensor, FLASH)
    transfers.changed()
    while memory.queues.busy:
        transfers.advance(transfers.next_change())
    flash.layer.check()
    assert flash.layer.host_bytes == 96_000 * page > 100e9
    assert 96 <= transfers.events <= 5000


def exec_cycles(trace, policy, ssd, host="0 GiB"):
    system = load_system({**SETTING, "host": {"memory": host}, "ssd": ssd})
    return g10sim.simulate(trace, system, policy, iterations=2).summary["exec_cycles"]


def as_link(ssd):
    """The link model of the same rates, latency and capacity."""
    spec = load_system({**SETTING, "ssd": ssd}).ssd
    return {
        "capacity": f"{spec.capacity} B",
        "read_bandwidth": f"{spec.read_bandwidth} B/s",
        "write_bandwidth": f"{spec.write_bandwidth} B/s",
        "latency": f"{spec.latency} ps",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [pytest.param("g10", marks=pytest.mark.nightly), "base_uvm", "deepum", "flashneuron", "g10_gds"],
)
def test_an_idle_and_large_drive_is_a_link(policy):
    trace = "traces/bert-base-b512-s128.g10t"
    link, flash = (exec_cycles(trace, policy, ssd) for ssd in (as_link(LARGE), LARGE))
    assert flash == pytest.approx(link, rel=0.02)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["g10", "base_uvm", "deepum"])
@pytest.mark.parametrize(("model", "batch"), [("BERT_Base", 512), ("Inceptionv3", 1536), ("SENet154", 1024)])
def test_an_idle_and_large_drive_is_a_link_on_published_traces(published, model, batch, policy):
    trace = import_gpg(published / "traces" / model / str(batch))
    link, flash = (exec_cycles(trace, policy, ssd, "128 GiB") for ssd in (as_link(LARGE), LARGE))
    assert flash == pytest.approx(link, rel=0.02)


def two_tensors(pages=200):
    """Tensors written and read in turn; only one fits the GPU."""
    return trace_of(
        {"a": pages, "b": pages},
        [(1000, "", "a"), (1000, "", "b"), (1000, "a", ""), (1000, "b", "")],
    )


def test_what_the_drive_did_is_in_the_records():
    system = with_drive(drive(), gpu_pages=200, host_pages=0)
    records = simulate(two_tensors(), system, FollowPlan())
    flash = records.iterations[-1].flash
    assert flash.written_bytes == records.iterations[-1].traffic["gpu_to_ssd_bytes"] == 400_000
    assert flash.read_bytes == records.iterations[-1].traffic["ssd_to_gpu_bytes"] == 400_000
    assert flash.copied_bytes == 0
    assert simulate(two_tensors(), machine(200, 0), FollowPlan()).iterations[-1].flash is None


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("streams", [1, 3])
def test_a_full_drive_in_use_loses_nothing(trim, streams):
    spec = drive(blocks=40, occupied=0.6, condition="random", trim=trim, streams=streams)
    system = with_drive(spec, gpu_pages=200, host_pages=0)
    records = simulate(two_tensors(), system, FollowPlan(), iterations=12)
    first, last = records.iterations[0], records.iterations[-1]
    written, copied = (
        sum(getattr(record.flash, name) for record in records.iterations)
        for name in ("written_bytes", "copied_bytes")
    )
    assert copied > 0
    assert (last.flash.run_written_bytes, last.flash.run_programmed_bytes) == (written, written + copied)
    assert last.flash.written_bytes == last.traffic["gpu_to_ssd_bytes"]
    assert last.flash.copied_bytes <= first.flash.written_bytes


def test_a_drive_that_is_told_of_dead_tensors_copies_less():
    copied = []
    for trim in (True, False):
        spec = drive(blocks=40, occupied=0.6, condition="random", trim=trim)
        system = with_drive(spec, gpu_pages=200, host_pages=0)
        records = simulate(two_tensors(), system, FollowPlan(), iterations=12)
        copied.append(sum(record.flash.copied_bytes for record in records.iterations))
    assert copied[0] < copied[1]


class Pages:
    """Pages of tensors on the drive alone, which holds so many."""

    def __init__(self, **changes):
        self.spec = drive(blocks=20, overprovisioning=0.5, **changes)
        self.pool = pools_of(with_drive(self.spec), self.spec)[1]

    def write(self, tensor, count):
        self.pool.store(self, tensor, count)
        self.pool.flush()

    def held(self, *tensors):
        """Pages that the drive believes tensors to hold."""
        return [self.pool.layer.extent_bytes((id(self), tensor)) // PAGE for tensor in tensors]


def test_a_drive_that_is_not_told_keeps_the_dead_until_nothing_else_is_unused():
    pages = Pages(trim=False)
    assert pages.spec.capacity == 640 * PAGE
    for tensor in (0, 1, 2):
        pages.write(tensor, 200)
    for tensor in (0, 1):
        pages.pool.drop(pages, tensor, 200)
    pages.write(3, 100)
    # 40 pages were never used, and 60 are those of the tensor that died first.
    assert pages.held(0, 1, 2, 3) == [140, 200, 200, 100]
    pages.pool.check()


@pytest.mark.parametrize(("condition", "erased"), [("fresh", 11), ("sequential", 2), ("random", 2)])
def test_a_drive_is_aged_once(condition, erased):
    # Of 20 superblocks 9 hold data of others, and collection starts at 2; at random 18 hold half each.
    pages = Pages(occupied=0.9, condition=condition)
    for _ in range(2):
        pages.pool.age()
        assert pages.pool.layer.free_superblocks == erased
        assert pages.pool.layer.valid_bytes == 9 * 64_000
    pages.pool.check()


def test_what_dies_as_it_is_written_is_dead():
    pages = Pages()
    pages.pool.store(pages, 0, 3)
    pages.pool.drop(pages, 0, 2)
    assert pages.held(0) == [1]
    pages.pool.check()


def test_a_drive_whose_books_are_wrong_is_found_out():
    pages = Pages()
    pages.write(0, 3)
    pages.pool.layer.valid[0] += PAGE
    with pytest.raises(InvariantError, match="superblock 0 counts 4000 valid bytes"):
        pages.pool.check()


def test_a_medium_overwritten_in_place_copies_and_erases_nothing():
    spec = drive(blocks=40, in_place=True, trim=False, occupied=0.1, condition="random")
    records = simulate(two_tensors(), with_drive(spec, gpu_pages=200, host_pages=0), FollowPlan())
    flash = records.iterations[-1].flash
    assert (flash.copied_bytes, flash.erased_bytes) == (0, 0)
    assert flash.written_bytes == 400_000


def test_a_machine_that_cannot_hold_what_is_alive_is_refused():
    system = with_drive(drive(blocks=8, overprovisioning=0.7), gpu_pages=200, host_pages=0)
    with pytest.raises(
        CapacityError, match=r"has 400 kB alive at a time; GPU \(200 kB\).*hold 353.6 kB together"
    ):
        simulate(two_tensors(), system, FollowPlan())


def test_a_drive_that_fills_up_ends_the_cell_with_the_reason():
    # Each job alone would find room for its 200 pages; two GPUs spill 400.
    spec = drive(blocks=8, overprovisioning=0.5)
    system = with_drive(spec, gpu_pages=200, host_pages=0, gpus=2)
    jobs = tuple(Job(two_tensors(), gpu=gpu) for gpu in (0, 1))
    with pytest.raises(CapacityError, match=r"kernel \d \(Kernel\d\) waits .* the SSD 0 B"):
        run(Workload(jobs), system, FollowPlan())


@pytest.mark.parametrize("key", ["transfers", "flash_capacity", "copy_gigabyte", "copy_host_path"])
def test_behaviours_of_the_published_simulator_take_the_ssd_for_a_rate(key):
    system = load_system({**SETTING, "ssd": {"preset": ZNAND}})
    trace = g10sim.load_trace("traces/bert-base-b512-s128.g10t")
    value = {"transfers": "batched", "flash_capacity": "unlimited", "copy_gigabyte": "binary"}.get(
        key, "split"
    )
    with pytest.raises(ConfigError, match=rf"system.ssd.model: found 'flash' with compat.{key} '{value}'"):
        g10sim.simulate(trace, system, "base_uvm", compat={key: value})
