"""GPU memory, host memory, CXL memory and an SSD: the machines with CXL that come with g10sim."""

from functools import cache

import pytest
from layerwise import LayerSpec, layerwise_trace

import g10sim
from g10sim.config.data import data_path
from g10sim.config.presets import load_system
from g10sim.policies.interface.registry import available
from g10sim.trace.synthetic import chain

MB = 10**6
PRESETS = ("h100-80g-cxl-agilex", "h100-80g-cxl-genoa")
NETWORKS = {"vdnn": "100 MiB", "vdnnpp": "100 MiB", "flashneuron": "60 MiB"}
"""GPU memory by policy for those that need layers of a convolutional network."""

WITH_CPU = {"zero_offload", "zero_infinity", "lohan", "tencache", "torch_offload"}
"""Policies that need a CPU for the optimizer."""

IN_PLACE = {"in_place"}
"""Policies that need a tier that kernels can access, which neither machine has."""

CHAINED = sorted(set(available()) - set(NETWORKS) - WITH_CPU - IN_PLACE - {"ideal", "replay"})
SSD_ALONE = {"flashneuron", "g10_gds"}
"""Policies of designs without host memory."""

HOST_ALONE = {"flexgen", "g10_host", "teraio"}
"""Policies of designs that know of host memory and SSD alone."""

SHARES = {"flexgen": {"percent": [0, 0, 0, 0, 0, 0], "births": 0}}
"""Parameters of policies that keep all on the GPU unless they are told otherwise."""


@cache
def network():
    """A convolutional network of 10 layers, two of three with a weight, and about 100 MB at their peak."""
    return layerwise_trace(
        "convolutions",
        16,
        8 * MB,
        [
            LayerSpec(f"pool{i}", "MaxPool2d", (12 - i) * MB, 30_000, 50_000, reads_output=True)
            if i % 3 == 2
            else LayerSpec(f"conv{i}", "Conv2d", (14 - i) * MB, 70_000, 140_000, MB, 2 * MB, 3 * MB, True)
            for i in range(10)
        ],
    )


AMPLE, SMALL, NONE = "64 GiB", "4 MiB", ""


def tiers_of(preset, cxl):
    """The tiers of a machine with so much CXL memory."""
    host, memory, ssd = load_system(preset).model_dump(mode="json")["tiers"]
    return [host, {**memory, "capacity": cxl}, ssd] if cxl else [host, ssd]


@cache
def simulated(preset, policy, *, cxl=AMPLE, ticks=50_000, host="1 MiB"):
    """A small trace that fits neither into GPU nor into host memory, with every check on."""
    memory = NETWORKS.get(policy, "8 MiB")
    trace = network() if policy in NETWORKS else chain(12, forward_ticks=ticks, backward_ticks=2 * ticks)
    small = {"gpu": {"memory": memory}, "host": {"memory": host}}
    system = g10sim.system(preset, **small, tiers=tiers_of(preset, cxl))
    return g10sim.simulate(trace, system, {"name": policy, **SHARES.get(policy, {})}, check=True)


def summary(preset, policy, **case):
    return simulated(preset, policy, **case).summary


def cycles(preset, policy, **case):
    """Cycles of the last two iterations: some policies alternate between two ways."""
    iterations = simulated(preset, policy, **case).records.iterations
    return iterations[-1].end - iterations[-2].start


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("policy", [*CHAINED, *NETWORKS])
def test_every_policy_that_spills_runs_on_them(policy, preset):
    found = summary(preset, policy)
    spilled = {tier: found[f"gpu_to_{tier}_bytes"] for tier in ("host", "cxl", "ssd")}
    if policy in SSD_ALONE | HOST_ALONE:
        assert spilled["ssd"] > spilled["cxl"] == 0
    else:
        assert spilled["cxl"] > 0
        assert found["peak_cxl_bytes"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("policy", [*CHAINED, *NETWORKS])
def test_a_machine_without_its_cxl_memory_is_never_faster(policy, preset):
    for host in ("1 MiB", "4 MiB"):
        ample, none = (cycles(preset, policy, cxl=cxl, host=host) for cxl in (AMPLE, NONE))
        assert ample <= none


@pytest.mark.slow
@pytest.mark.parametrize("policy", CHAINED)
def test_nor_is_one_without_cxl_memory_that_is_too_small(policy):
    # DeepUM+ prefetches as soon as the link is free. Of tensors partly in CXL memory and partly on the SSD,
    # those from CXL memory push out what short kernels need first; for longer kernels all are there in time.
    ticks = 200_000 if policy == "deepum" else 50_000
    small, none = (cycles(PRESETS[0], policy, cxl=cxl, ticks=ticks) for cxl in (SMALL, NONE))
    assert small <= none


@pytest.mark.parametrize("policy", ["base_uvm", "g10", "g10_paced", "pressure"])
def test_cxl_memory_takes_what_the_ssd_would_be_too_slow_for(policy):
    with_cxl, without = (summary(PRESETS[0], policy, cxl=cxl, host="4 MiB") for cxl in (AMPLE, NONE))
    assert with_cxl["exec_cycles"] < 0.9 * without["exec_cycles"]
    assert with_cxl["gpu_to_ssd_bytes"] < without["gpu_to_ssd_bytes"]


def test_faster_cxl_memory_helps_demand_paging():
    agilex, genoa = (summary(preset, "base_uvm") for preset in PRESETS)
    assert genoa["exec_cycles"] < agilex["exec_cycles"]
    assert genoa["stall_fault_cxl_cycles"] < agilex["stall_fault_cxl_cycles"]


@cache
def performance(trace, policy, preset, *, cxl):
    """Share of Ideal of a real model in 40 GiB of GPU memory and 8 GiB of host memory."""
    small = {"gpu": {"name": "", "memory": "40 GiB"}, "host": {"memory": "8 GiB"}}
    system = g10sim.system(preset, **small, tiers=tiers_of(preset, cxl))
    return g10sim.simulate(data_path("traces", f"{trace}.g10t"), system, policy).performance


PLAIN, PLANNED = ("base_uvm", "deepum", "g10"), ("g10_paced", "pressure")
MODELS = {"bert-base-b512-s128": PLAIN + PLANNED, "vit-base-b512": PLAIN + PLANNED, "resnet152-b512": PLAIN}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("trace", "policy"), [(trace, policy) for trace, policies in MODELS.items() for policy in policies]
)
def test_real_models_are_no_faster_without_cxl_memory(trace, policy):
    without = performance(trace, policy, PRESETS[0], cxl=NONE)
    assert min(performance(trace, policy, preset, cxl=AMPLE) for preset in PRESETS) >= without
