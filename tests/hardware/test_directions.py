"""Links with a rate for each direction, a limit for both together, and a cost of starting copies."""

import pytest
from machines import OWN, PAGE, kernel_times, machine, simulate, trace_of
from memories import FLASH, GPU, HOST, NO_VICTIMS, NONE, memory_of

import g10sim
from g10sim.analysis.bound.bound import iteration_bound
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError
from g10sim.hardware.links import Topology, bandwidth_of
from g10sim.hardware.pools import Door, Pool
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.interface.machine import link_bandwidth, planned_machine
from g10sim.results.bounds import bound_machine

# Measured on an H100 in a slot of PCIe 5.0 (vLLM blog on its KV offloading connector, January 2026).
H100 = {"to_device": "53.1 GB/s", "from_device": "50.2 GB/s", "duplex": "83.4 GB/s"}


def linked(pcie, page=PAGE, clock="1 GHz", **more):
    plain = machine(page=page, **more).model_dump(mode="json")
    plain["pcie"] = {**{key: value for key, value in plain["pcie"].items() if key != "bandwidth"}, **pcie}
    plain["gpu"]["clock"] = clock
    plain["gpu"]["allocation_rate"] = "1000 GB/s"
    return SystemSpec(**plain)


def seconds(pcie, out=(), into=(), page=2**10):
    """Time in which tensors of so many bytes leave for host memory, and come from it."""
    sizes = [-(-size // page) for size in (*out, *into)]
    system = linked(pcie, page, host_pages=sum(sizes) + 1)
    door = Door()
    pools = [Pool(tier, page) for tier in system.all_tiers]
    transfers = FluidTransfers(system, pools, door=door)
    memory = memory_of(sizes, 2 * sum(sizes), pools, page, door)
    for tensor in range(len(sizes)):
        memory.place(tensor, GPU if tensor < len(out) else HOST)
    transfers.attach(0, 0, memory, NO_VICTIMS)
    for tensor in range(len(sizes)):
        if tensor < len(out):
            memory.request_eviction(tensor, HOST)
        else:
            memory.request_prefetch(tensor)
    transfers.changed()
    now = 0
    while memory.queues.busy:
        now = transfers.next_change()
        transfers.advance(now)
    return now / system.gpu.clock


def test_each_direction_has_its_rate():
    assert seconds(H100, into=[10**9]) == pytest.approx(18.8e-3, rel=2e-3)
    assert seconds(H100, out=[10**9]) == pytest.approx(19.9e-3, rel=2e-3)


def test_both_directions_share_what_limits_them_together():
    assert seconds(H100, out=[10**9], into=[10**9]) == pytest.approx(24.0e-3, rel=2e-3)
    apart = {key: rate for key, rate in H100.items() if key != "duplex"}
    assert seconds(apart, out=[10**9], into=[10**9]) == pytest.approx(19.9e-3, rel=2e-3)


def test_every_copy_waits_before_it_moves():
    link = {**H100, "per_copy": "3.25 us"}
    assert seconds(link, out=[32 * 1024] * 32) == pytest.approx(125e-6, rel=0.01)
    assert seconds(link, out=[2**20]) == pytest.approx(24.1e-6, rel=0.01)
    assert seconds(link, into=[32 * 1024] * 32) == pytest.approx(123.7e-6, rel=0.01)
    assert seconds(H100, out=[32 * 1024] * 32) == pytest.approx(2**20 / 50.2e9, rel=0.01)


def test_what_is_neutral_changes_nothing():
    plain = seconds({"bandwidth": "50 GB/s"}, out=[10**7] * 3, into=[10**7] * 4)
    spelled = {"to_device": "50 GB/s", "from_device": "50 GB/s", "duplex": "100 GB/s", "per_copy": "0 s"}
    assert seconds(spelled, out=[10**7] * 3, into=[10**7] * 4) == plain


def test_what_one_direction_cannot_use_is_the_others():
    # Out at 0.5 bytes a cycle; 0.7 of 1.2 are left for what comes in.
    link = {"to_device": "1 GB/s", "from_device": "0.5 GB/s", "duplex": "1.2 GB/s"}
    assert seconds(link, out=[10**5], into=[7 * 10**4], page=1000) == 200_000e-9
    assert seconds(link, out=[10**5], into=[14 * 10**4], page=1000) == 200_000e-9
    assert seconds(link, out=[10**5], into=[15 * 10**4], page=1000) == 210_000e-9


def test_links_above_have_directions_and_costs_too():
    plain = machine(gpus=2, shared=[("switch", (0, 1), "3 GB/s")]).model_dump(mode="json")
    plain["pcie"] |= {"bandwidth": "2 GB/s", "per_copy": "1 us"}
    switch = plain["pcie"]["shared"][0]
    switch |= {"bandwidth": None, "to_device": "3 GB/s", "from_device": "1 GB/s", "duplex": "3 GB/s"}
    switch["per_copy"] = "2 us"
    system = SystemSpec(**plain)
    topology = Topology(system)
    assert [link.name for link in topology.outward(0, HOST)] == [
        "GPU 0 out",
        "switch out",
        "switch both ways",
    ]
    assert topology.per_copy(0, HOST) == 3_000_000
    assert topology.per_copy(0, NONE) == 0
    assert [link.name for link in topology.between(0, 1)] == ["GPU 0 out", "GPU 1 in"]
    # Two GPUs that are busy both ways have 2.25 and 0.75 GB/s of the switch between them.
    assert [link_bandwidth(system, 0, (0, 1), inward=inward) for inward in (True, False)] == [
        1_125_000_000,
        375_000_000,
    ]
    tier = planned_machine(system, BehaviourSpec(), (0, 1)).tiers[0]
    assert (tier.read_rate, tier.write_rate) == (1.125, 0.375)


def test_a_tier_below_a_switch_is_reached_without_what_lies_above():
    plain = machine(gpus=2, shared=[("switch", (0, 1), "3 GB/s")]).model_dump(mode="json")
    plain["ssd"]["behind"] = "switch"
    plain["pcie"]["shared"][0]["duplex"] = "4 GB/s"
    names = [link.name for link in Topology(SystemSpec(**plain)).inward(0, FLASH)]
    assert names == ["GPU 0 in", "SSD read"]


def test_a_stripe_has_a_share_of_its_drives_rates():
    # Four Samsung 990 PRO of 6.7 GB/s reach about 16 GB/s on the way of one GPU (TERAIO).
    plain = machine(flash_pages=10, pcie="50 GB/s", read="6.7 GB/s", write="6.5 GB/s").model_dump(mode="json")
    plain["ssd"] |= {"drives": 4, "stripe_efficiency": 0.6}
    system = SystemSpec(**plain)
    topology, flash = Topology(system), system.all_tiers[1]
    assert bandwidth_of(topology.inward(0, FLASH)) == 16_080_000_000
    assert flash.capacity == 4 * 10 * PAGE
    assert planned_machine(system, BehaviourSpec()).ssd.write_rate == pytest.approx(15.6)
    plain["ssd"] |= {"stripe_efficiency": 1e-320}
    assert SystemSpec(**plain).all_tiers[1].read_bandwidth == 1
    plain["ssd"] |= {"drives": 1}
    with pytest.raises(ValueError, match="stripe_efficiency: found with one drive"):
        SystemSpec(**plain)


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({}, "bandwidth: found nothing .*; allowed: bandwidth, or to_device and from_device"),
        ({"to_device": "1 GB/s"}, "bandwidth: found no from_device; allowed"),
        (
            {"bandwidth": "1 GB/s", "to_device": "1 GB/s", "from_device": "1 GB/s"},
            "with to_device and from_device",
        ),
        (
            {"bandwidth": "2 GB/s", "duplex": "1.9 GB/s"},
            r"duplex: found 1.9 GB/s; allowed: 2 GB/s \(one direction\) to 4 GB/s",
        ),
        ({"bandwidth": "2 GB/s", "duplex": "4.1 GB/s"}, "duplex: found 4.1 GB/s"),
    ],
)
def test_links_that_cannot_be_are_refused_in_one_line(link, message):
    with pytest.raises(ConfigError, match=message) as error:
        load_system({"preset": "a100-40g-pcie3-znand", "pcie": {"bandwidth": None, **link}})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["duplex", "per_copy"])
def test_the_published_simulator_knows_one_bandwidth_alone(key):
    value = "20 GB/s" if key == "duplex" else "1 us"
    system = {"preset": "a100-40g-g10-paper", "pcie": {key: value}}
    with pytest.raises(ConfigError, match=f"compat: found {key} of a link"):
        g10sim.simulate("traces/bert-base-b256-s128.g10t", system, "base_uvm", compat="gpg")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["base_uvm", "deepum", "g10", "g10_gds", "vdnn", "pressure", "tensile"])
def test_no_design_beats_the_bound_of_such_links(policy):
    system = load_system(
        {
            "preset": "a100-40g-pcie3-znand",
            "gpu": {"memory": "28 GiB"},
            "pcie": {"bandwidth": None, "to_device": "12 GB/s", "from_device": "8 GB/s", "duplex": "14 GB/s"},
        }
    )
    trace = g10sim.load_trace("traces/bert-base-b256-s128.g10t")
    result = g10sim.simulate(trace, system, policy, iterations=2, check=True).summary
    assert result["exec_cycles"] >= iteration_bound(trace, bound_machine(system)).cycles


def test_what_makes_room_for_demanded_pages_is_copied_too():
    """Ten tensors of a page leave for one of ten: a microsecond each beside one of crossing, 20,000 cycles.

    With one tensor of ten pages instead, the page fault of what comes in is longer: 1,000 of the fault, 1,000
    of the copy and 10,000 of crossing.
    """
    plain = machine(10, group_pages=100).model_dump(mode="json")
    plain["pcie"]["per_copy"] = "1 us"
    plain |= {"tiers": ["host"], "ssd": None}
    system, names = SystemSpec(**plain), "abcdefghij"
    pages = {f"{name}*": 1 for name in names} | {"w*": 10}
    many = trace_of(pages, [(1000, " ".join(names), ""), (1000, "w", "")])
    few = trace_of({"a*": 10, "w*": 10}, [(1000, "a", ""), (1000, "w", "")])
    for trace, waits in ((many, 20_000), (few, 12_000)):
        records = simulate(trace, system, BaseUvm(), OWN, iterations=1)
        assert kernel_times(records)[1] == pytest.approx(waits + 1000, abs=1)
