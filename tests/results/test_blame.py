"""Who is to blame for stalls, worked out by hand."""

import pandas as pd
import pytest

import g10sim
from g10sim.records import StallReason
from g10sim.results.blame import by_main_reason, link_use, tensor_waits, within

SYSTEM = g10sim.system(
    "a100-40g-pcie3-znand",
    gpu={"clock": "1 GHz"},
    pcie={"bandwidth": "10 GB/s"},
    ssd={"read_bandwidth": "5 GB/s"},
)


def kernels(*rows):
    names = ["kernel", "start", "end", "stall_cycles", "stall_fault_host_cycles", "stall_eviction_cycles"]
    return pd.DataFrame(rows, columns=names)


def moves(*rows):
    names = ["tensor", "source", "target", "start", "end", "size_bytes"]
    return pd.DataFrame(rows, columns=names).assign(gpu=0, cause="PREFETCH")


TWO = kernels((0, 0, 200, 100, 100, 0), (1, 200, 400, 100, 20, 80))


def test_a_stall_is_divided_among_what_arrived():
    arriving = moves(
        (7, "HOST", "GPU", 0, 75, 750),
        (8, "FLASH", "GPU", 75, 120, 100),
        (9, "HOST", "GPU", 0, 400, 10),
        (7, "GPU", "HOST", 0, 100, 50),
        (8, "HOST", "GPU", 200, 250, 500),
    )
    waits = tensor_waits(TWO, arriving, [[7, 8], [8]])
    assert list(waits.index) == [8, 7]
    assert list(waits["waited_cycles"]) == [25 + 100, 75]
    assert list(waits["kernels"]) == [2, 1]
    assert list(waits["source"]) == ["HOST", "HOST"]
    everything = tensor_waits(TWO, arriving, None)
    assert everything["waited_cycles"].sum() == pytest.approx(200)
    assert 9 in everything.index


def test_a_kernel_that_waited_for_a_tensor_twice_counts_once():
    parts = moves((7, "HOST", "GPU", 0, 50, 500), (7, "FLASH", "GPU", 50, 100, 500))
    waits = tensor_waits(TWO, parts, None)
    assert (list(waits["waited_cycles"]), list(waits["kernels"])) == ([100], [1])


def test_nothing_arrived():
    assert tensor_waits(TWO, moves((7, "GPU", "HOST", 0, 100, 50)), None).empty


def test_moves_are_cut_in_proportion():
    cut = within(moves((1, "HOST", "GPU", 100, 200, 1000), (2, "HOST", "GPU", 500, 600, 1)), 150, 400)
    assert within(moves((1, "HOST", "GPU", 100, 150, 5), (2, "GPU", "HOST", 400, 450, 5)), 150, 400).empty
    assert cut[["tensor", "start", "end", "size_bytes"]].to_numpy().tolist() == [[1, 150, 200, 500]]


def test_use_of_links():
    crossing = moves((1, "FLASH", "GPU", 0, 100, 500), (2, "HOST", "GPU", 150, 250, 400))
    uses = {use.name: use for use in link_use(TWO, crossing, SYSTEM, TWO)}
    assert set(uses) == {"SSD read", "GPU 0 in"}
    read, inward = uses["SSD read"], uses["GPU 0 in"]
    assert (read.share, read.stalled_share) == pytest.approx((500 / (5 * 400), 500 / (5 * 200)))
    assert inward.size_bytes == 900
    assert inward.stalled_bytes == pytest.approx(500 + 200)
    assert (inward.share, inward.stalled_share) == pytest.approx((900 / (10 * 400), 700 / (10 * 200)))
    first = {use.name: use for use in link_use(TWO, crossing, SYSTEM, TWO[:1])}
    assert first["GPU 0 in"].stalled_share == pytest.approx(500 / (10 * 100))


def test_kernels_by_their_main_reason():
    groups = by_main_reason(TWO)
    assert {reason: list(group["kernel"]) for reason, group in groups.items()} == {
        StallReason.FAULT_HOST: [0],
        StallReason.EVICTION: [1],
    }
    assert by_main_reason(kernels((0, 0, 10, 0, 0, 0))) == {}
