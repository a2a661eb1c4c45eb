"""A tier of memory beside host memory and SSD, described in text alone."""

import pytest
import yaml
from machines import kernel_times, machine, simulate, trace_of
from memories import FLASH, GPU, HOST, host_pool, memory_of

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.config.tiers import Tier
from g10sim.errors import ConfigError, PolicyError, UnsupportedError
from g10sim.hardware.links import Topology, bandwidth_of
from g10sim.hardware.pools import Pool
from g10sim.policies.interface.moves import Evict, Fetch
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.registry import create
from g10sim.records import Location
from g10sim.sim.accounts.owners import reason_for_waiting
from g10sim.trace.synthetic import chain

CXL, SSD = Location(3, "CXL"), Location(4, "FLASH")
POLICIES = ["base_uvm", "deepum", "g10"]

# The machine of the other tests with a tier between host memory and SSD: a page comes from it in 2000
# cycles and goes there in 2500, and a group of page faults waits 1000 cycles more.
TINY = """
name: tiny
gpu: {memory: 12 kB, clock: 1 GHz, page_size: 1000 B, allocation_rate: 1 GB/s}
host: {memory: 2 kB}
ssd: {capacity: 100 MB, read_bandwidth: 0.5 GB/s, write_bandwidth: 0.25 GB/s, latency: 2 us}
pcie: {bandwidth: 1 GB/s}
page_fault: {latency: 1 us, group: 1000 B}
tiers:
  - host
  - {name: cxl, kind: memory, capacity: 3 kB, read: 0.5 GB/s, write: 0.4 GB/s, latency: 1 us, at: socket0}
  - ssd
"""


def load(text, tmp_path, **changes):
    """Read a system from a file that holds this text, with keys of its tier ``cxl`` changed."""
    data = yaml.safe_load(text)
    for key, value in changes.items():
        data["tiers"][1][key] = value
        if value is None:
            del data["tiers"][1][key]
    path = tmp_path / "system.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return load_system(str(path))


class Moves(Policy):
    """Carries out moves given by the kernel before which they begin."""

    name = "moves"

    def __init__(self, *moves):
        self.moves = moves

    def plan_job(self, job, system, behaviour):
        return MigrationPlan.ordered(Planned(kernel, move) for kernel, move in self.moves)


def out_and_in(pages):
    """a is made, not used for a long time, and read."""
    return trace_of({"a": pages}, [(1000, "", "a"), (100_000, "", ""), (1000, "a", "")])


def moved(records):
    """(from, to, start, end, pages) of every migration, mapping left out."""
    return [
        (move.source, move.target, move.start, move.end, move.size_bytes // 1000)
        for move in records.migrations
        if move.source
    ]


def test_tiers_follow_host_memory_in_their_order(tmp_path):
    tiers = load(TINY, tmp_path).all_tiers
    assert [(tier.place, tier.name, tier.capacity) for tier in tiers] == [
        (HOST, "host", 2000),
        (CXL, "cxl", 3000),
        (SSD, "ssd", 100_000_000),
    ]
    assert [tier.latency for tier in tiers] == [0, 1_000_000, 2_000_000]


@pytest.mark.parametrize(("group", "cycles"), [(1, 4 * 2000 + 4 * 2000), (4, 2000 + 4 * 2000)])
def test_a_page_fault_waits_for_the_tier_once_per_group(tmp_path, group, cycles):
    system = load(TINY.replace("group: 1000 B", f"group: {group}000 B"), tmp_path, capacity="4 kB")
    records = simulate(out_and_in(4), system, Moves((1, Evict(0, "cxl"))), iterations=1)
    assert kernel_times(records)[2] == cycles + 1000
    assert records.kernels[2].fault_pages == {
        "host_fault_pages": 0,
        "cxl_fault_pages": 4,
        "flash_fault_pages": 0,
    }
    assert {str(reason): count for reason, count in records.kernels[2].stalls} == {"fault_cxl": cycles}


def test_reasons_follow_the_names_of_tiers_and_not_their_indices():
    for name, reason in (("FLASH", "fault_flash"), ("CXL", "fault_cxl"), ("FLASH", "fault_flash")):
        tier = Tier(Location(3, name), name.lower(), "ssd", 4096)
        memory = memory_of([1], 1, [host_pool(1), Pool(tier, 4096)])
        memory.place(0, tier.place)
        memory.demand(0)
        assert reason_for_waiting(memory) == reason


def test_without_latency_and_rates_a_tier_is_as_fast_as_its_path(tmp_path):
    system = load(TINY, tmp_path, capacity="4 kB", read=None, write=None, latency=None)
    records = simulate(out_and_in(4), system, Moves((1, Evict(0, "cxl"))), iterations=1, record=("timeline",))
    start = records.kernels[1].start
    assert moved(records)[0] == (GPU, CXL, start, start + 4000, 4)
    assert kernel_times(records)[2] == 4 * 2000 + 1000


def test_an_eviction_and_a_prefetch_take_the_rates_of_the_port(tmp_path):
    policy = Moves((1, Evict(0, "cxl")), (2, Fetch(0)))
    trace = trace_of({"a": 3}, [(1000, "", "a"), (100_000, "", ""), (100_000, "", ""), (1000, "a", "")])
    records = simulate(trace, load(TINY, tmp_path), policy, iterations=1, record=("timeline",))
    starts = [kernel.start for kernel in records.kernels]
    assert moved(records) == [
        (GPU, CXL, starts[1], starts[1] + 7500, 3),
        (CXL, GPU, starts[2], starts[2] + 6000, 3),
    ]
    assert records.kernels[3].stalls == ()


def test_what_finds_host_memory_full_spills_to_slower_tiers_in_order(tmp_path):
    records = simulate(
        out_and_in(9), load(TINY, tmp_path), Moves((1, Evict(0, "host"))), iterations=1, record=("timeline",)
    )
    start = records.kernels[1].start
    assert moved(records)[:3] == [
        (GPU, HOST, start, start + 2 * 1000, 2),
        (GPU, CXL, start + 2000, start + 2000 + 3 * 2500, 3),
        (GPU, SSD, start + 9500, start + 9500 + 4 * 4000, 4),
    ]
    assert records.iterations[0].traffic == {
        "ssd_to_gpu_bytes": 4000,
        "gpu_to_ssd_bytes": 4000,
        "cxl_to_gpu_bytes": 3000,
        "gpu_to_cxl_bytes": 3000,
        "host_to_gpu_bytes": 2000,
        "gpu_to_host_bytes": 2000,
    }
    assert records.iterations[0].peaks == {"peak_host_bytes": 2000, "peak_cxl_bytes": 3000}


def test_what_finds_slower_tiers_full_goes_to_faster_ones(tmp_path):
    system = load(TINY.replace("capacity: 100 MB", "capacity: 1 kB"), tmp_path)
    records = simulate(out_and_in(6), system, Moves((1, Evict(0, "cxl"))), iterations=1, record=("timeline",))
    assert [(target, pages) for source, target, *_, pages in moved(records) if source == GPU] == [
        (CXL, 3),
        (SSD, 1),
        (HOST, 2),
    ]


def test_records_have_columns_for_every_tier(tmp_path):
    records = simulate(out_and_in(9), load(TINY, tmp_path), Moves(), iterations=1, record=("timeline",))
    assert list(records.memory[0].tier_bytes) == ["host_bytes", "cxl_bytes", "flash_bytes"]
    assert list(records.kernels[0].tier_pages) == ["host_pages", "cxl_pages"]
    columns = records.iterations[0].columns()
    assert columns["cxl_to_gpu_bytes"] == columns["gpu_to_cxl_bytes"] == columns["peak_cxl_bytes"] == 0
    assert records.kernels[0].columns()["cxl_fault_pages"] == 0


ROOMLESS = """
preset: a100-40g-pcie3-znand
gpu: {memory: 8 MiB}
host: {memory: 1 MiB}
"""


def roomless(tiers=None):
    """A GPU too small for a chain of layers, with little host memory."""
    system = yaml.safe_load(ROOMLESS)
    return load_system(system if tiers is None else {**system, "tiers": tiers})


def cxl(**changes):
    return {"name": "cxl", "kind": "memory", "capacity": "4 MiB", "read": "8 GB/s", "write": "8 GB/s",
            "latency": "500 ns", "at": "socket0", **changes}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_use_a_tier_that_they_have_never_heard_of(policy):
    system = roomless(["host", cxl(), "ssd"])
    records = simulate(
        chain(12, forward_ticks=100_000, backward_ticks=200_000),
        system,
        create({"name": policy}),
        record=("timeline",),
    )
    last = records.iterations[-1]
    assert set(last.traffic) == {f"{name}_to_gpu_bytes" for name in ("host", "cxl", "ssd")} | {
        f"gpu_to_{name}_bytes" for name in ("host", "cxl", "ssd")
    }
    assert last.traffic["gpu_to_cxl_bytes"] > 0
    assert last.traffic["cxl_to_gpu_bytes"] > 0
    assert 0 < last.peaks["peak_cxl_bytes"] <= 4 << 20
    assert max(level.tier_bytes["cxl_bytes"] for level in records.memory) > 0
    into = sum(m.size_bytes for m in records.migrations if m.source == CXL)
    assert into == sum(iteration.traffic["cxl_to_gpu_bytes"] for iteration in records.iterations)


@pytest.mark.parametrize("policy", POLICIES)
def test_naming_the_usual_tiers_changes_nothing(policy):
    trace = chain(12, forward_ticks=100_000, backward_ticks=200_000)
    plain, named = (
        simulate(trace, roomless(tiers), create({"name": policy}), record=("timeline",))
        for tiers in (None, ["host", "ssd"])
    )
    assert plain == named
    assert plain.iterations[-1].traffic["gpu_to_ssd_bytes"] > 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ticks", [50_000, 200_000, 1_000_000])
def test_a_tier_that_goes_away_makes_nobody_faster(policy, ticks):
    trace = chain(12, forward_ticks=ticks, backward_ticks=2 * ticks)
    times = [
        simulate(trace, roomless(tiers), create({"name": policy})).iterations[-1]
        for tiers in (["host", cxl(), "ssd"], ["host", "ssd"])
    ]
    with_tier, without = (iteration.end - iteration.start for iteration in times)
    # DeepUM+ prefetches by what it saw, not by what helps: another tier makes it up to 0.7 % slower.
    assert with_tier <= without * (1.007 if policy == "deepum" else 1)


def test_a_tier_may_replace_the_ssd():
    system = roomless(["host", cxl(capacity="64 MiB")])
    records = simulate(chain(12), system, create({"name": "base_uvm"}))
    assert set(records.iterations[0].traffic) == {
        "host_to_gpu_bytes", "gpu_to_host_bytes", "cxl_to_gpu_bytes", "gpu_to_cxl_bytes"
    }  # fmt: skip
    assert records.iterations[-1].traffic["gpu_to_cxl_bytes"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at": "nowhere"}, r"tiers\.1\.at: found 'nowhere'.*; allowed: gpu0, socket0, or nothing"),
        ({"at": "socket9"}, r"tiers\.1\.at: found 'socket9'.*socket0"),
        ({"at": "gpu1"}, r"tiers\.1\.at: found 'gpu1'.*gpu0"),
        ({"name": "ssd"}, r"tiers\.\d\.name: found 'ssd'"),
        ({"name": "gpu"}, r"tiers\.1.*name: found 'gpu'.*allowed: a name that stands for nothing else"),
        ({"name": "Big Memory"}, r"tiers\.1.*name: "),
        ({"capacity": None}, r"tiers\.1.*capacity: "),
        ({"capacity": "many"}, r"tiers\.1.*capacity: found 'many'"),
        ({"read": "0 GB/s"}, r"tiers\.1.*read: "),
        ({"latency": "-1 us"}, r"tiers\.1.*latency: "),
        ({"kind": "tape"}, r"tiers\.1"),
        ({"colour": "blue"}, r"tiers\.1.*colour"),
    ],
)
def test_bad_tiers_are_refused_in_one_line(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        load(TINY, tmp_path, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("again", "name"),
    [
        ({"name": "cxl", "capacity": "1 kB"}, "cxl"),
        ("host", "host"),
        ({"name": "host", "capacity": "1 kB"}, "host"),
        ("ssd", "ssd"),
    ],
)
def test_two_tiers_of_one_name_are_refused_in_one_line(tmp_path, again, name):
    data = yaml.safe_load(TINY)
    data["tiers"].append(again)
    with pytest.raises(ConfigError, match=rf"tiers\.3\.name: found '{name}' again; allowed: ") as error:
        load(yaml.safe_dump(data), tmp_path)
    assert "\n" not in str(error.value)


GPUS = """
name: several
gpu: {count: 4, memory: 12 kB, clock: 1 GHz, page_size: 1000 B, allocation_rate: 1 GB/s}
host: {memory: 2 kB}
ssd: {capacity: 100 MB, read_bandwidth: 0.5 GB/s, write_bandwidth: 0.25 GB/s, latency: 2 us}
pcie: {bandwidth: 10 GB/s}
page_fault: {latency: 1 us, group: 1000 B}
tiers: [host, {name: cxl, kind: memory, capacity: 3 kB}, ssd]
"""
GB = 10**9
SWITCH = {"shared": [{"name": "switch", "gpus": [0, 1], "bandwidth": "6 GB/s"}]}
SOCKETS = {
    "sockets": [{"name": "left", "gpus": [0, 1]}, {"name": "right", "gpus": [2, 3]}],
    "inter_socket_bandwidth": "4 GB/s",
}


def bandwidths(tmp_path, *, pcie=None, host=None, nvlink=None, **tier):
    """Rates in GB/s of an idle path to every GPU, and from it."""
    data = yaml.safe_load(GPUS)
    data["pcie"].update(pcie or {})
    data["host"].update(host or {})
    if nvlink:
        data["nvlink"] = {"bandwidth": nvlink}
    topology = Topology(load(yaml.safe_dump(data), tmp_path, **tier))
    into = [bandwidth_of(topology.inward(gpu, CXL)) / GB for gpu in range(4)]
    out = [min(link.capacity for link in topology.outward(gpu, CXL)) / GB for gpu in range(4)]
    return into, out


@pytest.mark.parametrize(("read", "write"), [(3, 2), (20, 5), (20, 20)])
def test_on_the_socket_of_all_gpus_link_and_port_count(tmp_path, read, write):
    rates = {"read": f"{read} GB/s", "write": f"{write} GB/s"}
    for at in (None, "socket0"):
        into, out = bandwidths(tmp_path, **rates, **({"at": at} if at else {}))
        assert into == [min(10, read)] * 4
        assert out == [min(10, write)] * 4


@pytest.mark.parametrize(("read", "write"), [(3, 2), (20, 5), (20, 20)])
def test_the_other_socket_is_reached_through_the_link_between_them(tmp_path, read, write):
    rates = {"read": f"{read} GB/s", "write": f"{write} GB/s"}
    for at in ("right", "socket1"):
        into, out = bandwidths(tmp_path, host=SOCKETS, at=at, **rates)
        assert into == [min(10, 4, read)] * 2 + [min(10, read)] * 2
        assert out == [min(10, 4, write)] * 2 + [min(10, write)] * 2


def test_what_hangs_on_a_gpu_is_reached_from_others_through_both(tmp_path):
    topology = Topology(load(GPUS, tmp_path, at="gpu1", read="3 GB/s", write="2 GB/s"))
    assert [link.name for link in topology.inward(0, CXL)] == ["GPU 1 out", "GPU 0 in", "cxl read"]
    assert [link.name for link in topology.outward(0, CXL)] == ["GPU 0 out", "GPU 1 in", "cxl write"]
    assert [link.name for link in topology.inward(1, CXL)] == ["cxl read"]


@pytest.mark.parametrize(("read", "write"), [(3, 2), (20, 8), (20, 20)])
def test_below_a_switch_only_the_other_gpus_cross_its_link(tmp_path, read, write):
    rates = {"read": f"{read} GB/s", "write": f"{write} GB/s"}
    into, out = bandwidths(tmp_path, pcie=SWITCH, at="switch", **rates)
    assert into == [min(10, read)] * 2 + [min(10, 6, read)] * 2
    assert out == [min(10, write)] * 2 + [min(10, 6, write)] * 2
    on_root, _ = bandwidths(tmp_path, pcie=SWITCH, **rates)
    assert on_root == [min(10, 6, read)] * 2 + [min(10, read)] * 2


@pytest.mark.parametrize(("read", "write"), [(3, 2), (40, 30)])
@pytest.mark.parametrize(("nvlink", "between"), [(None, 10), ("25 GB/s", 25)])
def test_at_a_gpu_the_others_cross_the_links_between_gpus(tmp_path, read, write, nvlink, between):
    rates = {"read": f"{read} GB/s", "write": f"{write} GB/s"}
    into, out = bandwidths(tmp_path, nvlink=nvlink, at="gpu2", **rates)
    assert into == [read if gpu == 2 else min(between, read) for gpu in range(4)]
    assert out == [write if gpu == 2 else min(between, write) for gpu in range(4)]


def test_a_tier_at_a_gpu_needs_rates_of_its_own(tmp_path):
    # There is no link between a GPU and what hangs on it: without rates nothing would limit transfers.
    with pytest.raises(ConfigError, match=r"tiers\.1\.read: ") as error:
        load(TINY, tmp_path, at="gpu0", read=None, write=None)
    assert "\n" not in str(error.value)


def test_jobs_on_several_gpus_share_the_port(tmp_path):
    topology = Topology(load(GPUS, tmp_path, read="3 GB/s", at="socket0"))
    ports = {topology.inward(gpu, CXL)[-1] for gpu in range(4)}
    assert [(port.name, port.shared) for port in ports] == [("cxl read", True)]
    assert topology.ports[CXL][1] is None
    assert topology.ports[Location(2, "HOST")] == (None, None)


def test_the_machine_of_the_other_tests_has_two_tiers():
    assert [tier.place for tier in machine().all_tiers] == [HOST, FLASH]


@pytest.mark.parametrize(
    ("behaviour", "homes"),
    [
        (BehaviourSpec(), {"host": [0, 3], "cxl": [1], "ssd": [2, 4]}),
        (BehaviourSpec(initial_tier="last"), {"ssd": [0, 1, 2, 3, 4]}),
    ],
)
def test_weights_start_in_the_first_tier_with_room_for_them(behaviour, homes, tmp_path):
    """Host memory has room for two pages, CXL memory for three, and b, of two, would leave one."""
    trace = trace_of(
        {"a*": 1, "b*": 2, "c*": 5, "d*": 1, "e*": 2},
        [(1000, name, "") for name in ("a", "b", "c", "d", "e")],
    )
    policy = Looks()
    simulate(trace, load(TINY, tmp_path), policy, behaviour, iterations=1)
    assert policy.homes == homes


class Settled(Policy):
    """Says where a tensor lies before time starts."""

    name = "settled"
    requirements = Requirements(addresses="own")

    def __init__(self, tensor):
        self.tensor = tensor

    def homes(self, job):
        return {self.tensor: "ssd"}


def test_only_persistent_tensors_have_homes():
    trace = trace_of({"w*": 1, "x": 1}, [(1000, "w", "x"), (1000, "w x", "")])
    simulate(trace, machine(), Settled(0), iterations=1)
    with pytest.raises(
        PolicyError, match=r"^policy 'settled': homes names tensor 1, .*; allowed: persistent"
    ):
        simulate(trace, machine(), Settled(1), iterations=1)


class Reserving(Policy):
    """Keeps host memory reserved."""

    name = "reserving"

    def __init__(self, reserved):
        self.reserved = reserved

    def host_reserved(self, job):
        return self.reserved


def test_no_more_host_memory_is_reserved_than_there_is(tmp_path):
    system, trace = load(TINY, tmp_path), trace_of({"w*": 1}, [(1000, "w", "")])
    assert (
        simulate(trace, system, Reserving(2000), iterations=1).iterations[0].peaks["peak_host_bytes"] == 2000
    )
    message = r"^policy 'reserving': host_reserved: found 3 kB of all jobs .*; allowed: .*, 2 kB$"
    with pytest.raises(UnsupportedError, match=message):
        simulate(trace, system, Reserving(2001), iterations=1)


class Looks(Policy):
    """Notes in which tiers tensors lie before the first kernel."""

    name = "looks"

    def on_iteration_start(self, view):
        self.homes = {
            tier: tensors
            for tier in view.tiers
            if (tensors := [t.id for t in view.trace.tensors if view.bytes_in(t.id, tier)])
        }
