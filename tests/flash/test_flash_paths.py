"""Between GPU and SSD: peer to peer, below a switch, and through host memory."""

import pytest
from machines import FollowPlan, machine, simulate, trace_of
from memories import FLASH

from g10sim.config.presets import load_system
from g10sim.config.ssd import BounceSpec
from g10sim.errors import ConfigError
from g10sim.hardware.links import Topology

SWITCHES = (("left", (0, 1), "2 GB/s"), ("root", (0, 1, 2), "2 GB/s"))
BOUNCE = BounceSpec(bandwidth="0.4 GB/s", latency="3 us")


def topology(*, memory=None, **attached):
    system = machine(gpus=4, shared=SWITCHES)
    host = system.host.model_copy(update={"memory_bandwidth": memory})
    ssd = system.ssd.model_copy(update=attached)
    return Topology(system.model_copy(update={"ssd": ssd, "host": host}))


def names(links):
    return [link.name for link in links]


def paths(links, gpu):
    return names(links.inward(gpu, FLASH)), names(links.outward(gpu, FLASH))


def test_on_the_root_complex_all_links_above_a_gpu_are_crossed():
    assert paths(topology(), 0) == (
        ["GPU 0 in", "left in", "root in", "SSD read"],
        ["GPU 0 out", "left out", "root out", "SSD write"],
    )


def test_below_a_switch_links_above_both_are_not_crossed():
    links = topology(behind="left")
    assert paths(links, 0) == (["GPU 0 in", "SSD read"], ["GPU 0 out", "SSD write"])
    assert names(links.inward(2, FLASH)) == ["GPU 2 in", "left out", "SSD read"]
    assert names(links.outward(2, FLASH)) == ["GPU 2 out", "left in", "SSD write"]
    assert names(links.outward(3, FLASH)) == ["GPU 3 out", "left in", "root in", "SSD write"]


def test_through_host_memory_all_links_are_crossed_and_memory_twice():
    links = topology(behind="left", path="host", bounce=BOUNCE, memory=10**9)
    up, down = ["GPU 0 out", "left out", "root out"], ["left in", "root in", "SSD write"]
    assert names(links.outward(0, FLASH)) == [*up, "host memory", "host memory", "bounce buffer", *down]
    assert set(links.inward(0, FLASH)) <= set(links.links)


def test_a_bounce_costs_bandwidth_and_latency():
    trace = trace_of({"a*": 100, "b": 100}, [(1000, "a", ""), (1000, "", "b"), (1000, "a", "")])
    system = machine(100, 0, read="0.5 GB/s", write="0.5 GB/s", group_pages=100)
    bounced = system.ssd.model_copy(update={"path": "host", "bounce": BOUNCE})
    direct, host = (
        simulate(trace, system.model_copy(update={"ssd": ssd}), FollowPlan(), iterations=1)
        for ssd in (system.ssd, bounced)
    )
    times = [records.kernels[0].end - records.kernels[0].start - 1000 for records in (direct, host)]
    assert times == [pytest.approx(3000 + 200_000, abs=2), pytest.approx(3000 + 3000 + 250_000, abs=2)]


def test_bad_paths_are_refused():
    preset = {"preset": "4xa100-40g-pcie4-shared"}
    with pytest.raises(ConfigError, match=r"^system.ssd.path: found 'host' without 'bounce'; allowed: "):
        load_system({**preset, "ssd": {"path": "host"}})
    with pytest.raises(
        ConfigError, match=r"system.ssd.behind: found 'switch' \(did you .*allowed: switch uplink"
    ):
        load_system({**preset, "ssd": {"behind": "switch"}})
    assert load_system({**preset, "ssd": {"behind": "switch uplink"}}).ssd.behind == "switch uplink"
