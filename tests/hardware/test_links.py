"""Max-min fair sharing by hand, and its defining property on random flows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import machine
from memories import FLASH, HOST, NONE

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.host import HostSpec
from g10sim.config.system import SystemSpec
from g10sim.hardware.links import Link, Share, Topology, bandwidth_of, share_max_min
from g10sim.hardware.transfers.staging import Staging
from g10sim.results.bounds import bound_machine


def rates(*flows):
    shares = [Share(links, limit) for links, limit in flows]
    share_max_min(shares)
    return [share.rate for share in shares]


def test_one_flow_gets_its_narrowest_link():
    wide, narrow = Link("wide", 100), Link("narrow", 30)
    share = Share([wide, narrow], 0)
    share_max_min([share])
    assert share.rate == 30
    assert share.bottleneck is narrow
    assert (wide.left, narrow.left) == (70, 0)


def test_flows_on_one_link_share_it_evenly():
    link = Link("link", 90)
    assert rates(*[([link], 0)] * 3) == [30, 30, 30]


def test_what_a_limited_flow_leaves_goes_to_the_others():
    link = Link("link", 90)
    assert rates(([link], 10), ([link], 0), ([link], 0)) == [10, 40, 40]


def test_limit_above_the_fair_share_does_not_matter():
    link = Link("link", 90)
    assert rates(([link], 60), ([link], 0)) == [45, 45]


def test_what_a_flow_blocked_elsewhere_leaves_goes_to_the_others():
    # Bertsekas and Gallager's example: the flow through both links is held at the narrow one.
    first, second = Link("first", 100), Link("second", 30)
    assert rates(([first], 0), ([first, second], 0), ([second], 0)) == [85, 15, 15]


def test_three_links_in_a_row():
    a, b, c = Link("a", 10), Link("b", 4), Link("c", 9)
    assert rates(([a, b, c], 0), ([a], 0), ([b], 0), ([c], 0)) == [2, 8, 2, 7]


def test_flow_without_links_runs_at_its_limit():
    share = Share([], 5)
    share_max_min([share])
    assert (share.rate, share.bottleneck) == (5, None)


def test_later_ranks_get_what_is_left():
    link = Link("link", 100)
    assert rates(([link], 70)) == [70]
    assert rates(([link], 0), ([link], 0)) == [15, 15]
    assert rates(([link], 0)) == [0]


@pytest.mark.parametrize(
    ("left", "limit", "rate"),
    [((40, 90), 0, 60), ((40, 90), 50, 50), ((90, 40), 0, 60), ((90, -1), 0, 20), ((0, 90), 0, 20)],
)
def test_a_flow_may_take_what_its_links_have_left_over(left, limit, rate):
    links = [Link("link", 100), Link("other link", 100)]
    flow = Share(links, limit)
    flow.rate = 20
    for link, rest in zip(links, left, strict=True):
        link.left = rest
    flow.take_more()
    assert flow.rate == rate
    assert [link.left for link in links] == [rest - (rate - 20) for rest in left]


def test_a_flow_that_crosses_a_link_twice_takes_half_of_it():
    link = Link("link", 100)
    flow = Share([link, link], 0)
    flow.take_more()
    assert (flow.rate, link.left) == (50, 0)


def test_gpus_of_different_sockets_reach_each_other_over_the_link_between_them():
    plain = machine(gpus=3).model_dump(mode="json")
    plain["host"]["sockets"] = [{"name": "near", "gpus": [0, 1]}, {"name": "far", "gpus": [2]}]
    for bandwidth, crossed in ((None, 0), ("10 GB/s", 1)):
        plain["host"]["inter_socket_bandwidth"] = bandwidth
        topology = Topology(SystemSpec(**plain))
        assert [len(topology.between(0, gpu)) for gpu in (1, 2)] == [2, 2 + crossed]


def test_what_moves_between_a_tier_and_host_memory_crosses_what_lies_between_them():
    """The tier hangs on the far socket, at its GPU, or at the switch of the near socket's GPUs."""
    plain = machine(gpus=3, shared=[("switch", (0, 1), "20 GB/s")]).model_dump(mode="json")
    plain["host"] |= {
        "sockets": [{"name": "near", "gpus": [0, 1]}, {"name": "far", "gpus": [2]}],
        "memory_bandwidth": "40 GB/s",
        "inter_socket_bandwidth": "10 GB/s",
    }

    rates = {"kind": "memory", "capacity": "1 GB", "read": "8 GB/s", "write": "4 GB/s", "latency": "0 s"}

    def crossed(at, gpu):
        plain["tiers"] = ["host", {"name": "cxl", "at": at, **rates}]
        system = SystemSpec(**plain)
        topology, tier = Topology(system), system.all_tiers[1]
        return [[link.name for link in topology.to_host(gpu, tier, back=back)] for back in (False, True)]

    assert crossed("far", 0) == [
        ["cxl read", "from far", "near memory"],
        ["cxl write", "from near", "near memory"],
    ]
    assert crossed("far", 2) == [["cxl read", "far memory"], ["cxl write", "far memory"]]
    assert crossed("gpu2", 0) == [
        ["cxl read", "GPU 2 out", "from far", "near memory"],
        ["cxl write", "GPU 2 in", "from near", "near memory"],
    ]
    assert crossed("switch", 0) == [
        ["cxl read", "switch out", "near memory"],
        ["cxl write", "switch in", "near memory"],
    ]


def test_shared_uplink_is_on_the_paths_of_its_gpus_only():
    system = machine(gpus=3, pcie="16 GB/s", shared=[("switch", (0, 1), "20 GB/s")])
    topology = Topology(system)
    flows = [Share(topology.inward(gpu, HOST), 0) for gpu in range(3)]
    share_max_min(flows)
    assert [flow.rate for flow in flows] == [10**10, 10**10, 16 * 10**9]
    assert flows[0].bottleneck.name == "switch in"


def test_directions_are_independent():
    topology = Topology(machine(pcie="2 GB/s", write="1 GB/s"))
    flows = [Share(topology.inward(0, HOST), 0), Share(topology.outward(0, FLASH), 0)]
    share_max_min(flows)
    assert [flow.rate for flow in flows] == [2 * 10**9, 10**9]


def test_flash_is_shared_by_all_gpus():
    topology = Topology(machine(gpus=4, pcie="16 GB/s", read="2 GB/s"))
    flows = [Share(topology.inward(gpu, FLASH), 0) for gpu in range(4)]
    share_max_min(flows)
    assert [flow.rate for flow in flows] == [5 * 10**8] * 4


def test_new_pages_only_need_mapping_and_dropped_ones_nothing():
    topology = Topology(machine(mapping="7 GB/s"))
    assert [link.name for link in topology.inward(0, NONE)] == ["GPU 0 page mapping"]
    assert topology.outward(0, NONE) == []
    assert bandwidth_of(topology.inward(0, NONE)) == 7 * 10**9


def test_path_bandwidth_is_that_of_the_narrowest_link():
    topology = Topology(machine(gpus=2, pcie="8 GB/s", read="5 GB/s", shared=[("uplink", (1,), "3 GB/s")]))
    assert [bandwidth_of(topology.inward(gpu, FLASH)) for gpu in range(2)] == [5 * 10**9, 3 * 10**9]


def test_reset_gives_capacity_back():
    topology = Topology(machine())
    share_max_min([Share(topology.inward(0, FLASH), 0)])
    topology.reset()
    assert all(link.left == link.capacity for link in topology.links)


FLOWS = st.lists(
    st.tuples(st.sets(st.integers(0, 4), min_size=1), st.integers(0, 500)), min_size=1, max_size=8
)


@given(st.lists(st.integers(1, 1000), min_size=5, max_size=5), FLOWS)
def test_no_flow_can_gain_without_a_poorer_one_losing(capacities, flows):
    links = [Link(str(i), capacity) for i, capacity in enumerate(capacities)]
    shares = [Share([links[i] for i in sorted(crossed)], limit) for crossed, limit in flows]
    share_max_min(shares)
    for link in links:
        used = sum(share.rate for share in shares if link in share.links)
        assert used <= link.capacity
        assert link.left == link.capacity - used
    rounding = len(shares)
    for share in shares:
        assert not share.limit or share.rate <= share.limit
        if share.bottleneck is None:
            assert share.rate == share.limit
        else:
            assert share.bottleneck.left <= rounding
            richest = max(other.rate for other in shares if share.bottleneck in other.links)
            assert share.rate >= richest - rounding


def test_copies_may_take_gigabytes_for_binary_ones():
    staging = Staging(machine(), BehaviourSpec(copy_gigabyte="binary"))
    assert bandwidth_of(staging.topology.inward(0, HOST)) == 2**30
    assert bandwidth_of(staging.topology.inward(0, FLASH)) == 2**29


def test_copies_that_are_diverted_from_host_memory_are_as_slow_as_pageable_ones():
    pinned = {"limit": "1 MB", "pageable_bandwidth": "0.5 GB/s"}
    system = machine().model_copy(update={"host": HostSpec(memory="1 GB", pinned=pinned)})
    staging = Staging(system, BehaviourSpec())
    assert [staging.diverted_rate(rate, HOST) for rate in (0, 10**8, 10**9)] == [5 * 10**8, 10**8, 5 * 10**8]
    assert staging.diverted_rate(10**9, FLASH) == 10**9


def test_bounds_know_the_paths_of_a_gpu_that_is_alone():
    found = bound_machine(machine(gpus=2, shared=[("uplink", (0, 1), "1.5 GB/s")]), gpu=1)
    assert [(limit.name, limit.rate) for limit in found.limits] == [
        ("GPU 1 in", 10**9),
        ("uplink in", 1_500_000_000),
        ("GPU 1 out", 10**9),
        ("uplink out", 1_500_000_000),
        ("SSD read", 500_000_000),
        ("SSD write", 250_000_000),
    ]
    host, ssd = found.stores
    assert (host.inward, host.outward) == ((0, 1), (2, 3))
    assert (ssd.inward, ssd.outward) == ((0, 1, 4), (2, 3, 5))


def test_bounds_have_the_memory_that_is_left_for_tensors():
    system = machine(gpu_pages=10)
    gpu = system.gpu.model_dump() | {"context_memory": "2 kB", "workspace_memory": "1 kB"}
    found = bound_machine(type(system).model_validate(system.model_dump() | {"gpu": gpu}))
    assert (found.gpu_bytes, found.page_bytes) == (7_000, 1_000)
