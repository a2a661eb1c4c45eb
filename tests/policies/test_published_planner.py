"""Peculiarities of the published simulator's planner, in numbers that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from machines import trace_of

from g10sim.config.presets import load_system
from g10sim.policies.designs.g10.published_links import Direction
from g10sim.policies.designs.g10.tuned import copies_factor, unified_memory_factor
from g10sim.reproduce.validation import PUBLISHED_SYSTEM


def direction(*microseconds):
    """A link of 10 bytes/us, of which the SSD can have 4."""
    return Direction(np.array(microseconds, dtype=np.float64), 10.0, 4.0)


def finish(channel, start, size):
    return int(channel.finish(np.array([start]), np.array([size]))[0])


def latest_start(channel, end, size):
    return int(channel.latest_start(np.array([end]), np.array([size]))[0])


def test_transfers_end_and_begin_with_the_kernels_whose_bytes_suffice():
    ssd = direction(1, 1, 2).ssd
    assert [finish(ssd, 0, size) for size in (1, 4, 5, 8, 9, 16, 99)] == [0, 0, 1, 1, 2, 2, 2]
    assert [latest_start(ssd, 3, size) for size in (1, 8, 9, 12, 13, 99)] == [2, 2, 1, 1, 0, 0]


def test_a_fraction_of_a_byte_counts_as_a_byte():
    # 2.5 us x 4 bytes/us and twice 0.3 us x 4 bytes/us: 10, and twice 1.2 bytes, which count as 2.
    ssd = direction(2.5, 0.3, 0.3).ssd
    assert [finish(ssd, 0, size) for size in (10, 12, 13)] == [0, 1, 2]


def test_ssd_traffic_takes_link_budget():
    way = direction(1, 1)
    way.take_for_ssd(0, 6)
    assert [finish(way.ssd, 0, size) for size in (1, 2, 3)] == [1, 1, 1]
    assert [finish(way.link, 0, size) for size in (6, 7, 14)] == [0, 1, 1]


def test_what_the_link_leaves_the_ssd_is_charged_again_with_every_transfer():
    way = direction(1, 1)
    way.take_for_host(0, 7)  # One byte beyond the 6 that the SSD leaves.
    assert [finish(way.ssd, 0, size) for size in (3, 4)] == [0, 1]
    way.take_for_host(0, 1)  # Two beyond, so three in all, though two bytes of the link are free.
    assert [finish(way.ssd, 0, size) for size in (1, 2)] == [0, 1]
    assert [finish(way.link, 0, size) for size in (2, 3)] == [0, 1]


@pytest.mark.parametrize(("to_ssd", "to_host", "is_full"), [(2, 6, True), (2, 5, False), (3, 5, True)])
def test_the_ssd_is_full_when_its_own_traffic_and_what_exceeds_the_rest_of_the_link_fill_it(
    to_ssd, to_host, is_full
):
    # Of 10 bytes of the link the SSD leaves 6; what both move beyond these is the SSD's.
    way = direction(1, 1)
    way.take_for_ssd(0, to_ssd)
    way.take_for_host(0, to_host)
    assert way.ssd.is_full.tolist() == [is_full, False]


def test_a_full_link_leaves_the_ssd_nothing():
    way = direction(1, 1)
    way.take_for_host(0, 11)
    assert finish(way.ssd, 0, 1) == 1
    assert finish(way.link, 0, 9) == 1


def workload(model):
    return trace_of({"w*": 1}, [(1000, "w", "")], name=model)


@pytest.mark.parametrize(
    ("model", "batch", "ssd", "factor"),
    [
        ("BERT_Base", 512, "3.2 GB/s", 1.394),
        ("BERT_Base", 512, "6.4 GB/s", 1.0),
        ("BERT_Base", 256, "3.2 GB/s", 1.0),
        ("VIT", 1280, "3.2 GB/s", 1.0),
        ("VIT", 1280, "6.4 GB/s", 1.1),
        ("VIT", 1280, "12.8 GB/s", 1.0),
        ("SENet154", 512, "3.2 GB/s", 1.0),
    ],
)
def test_targets_set_by_hand_depend_on_the_ssd(model, batch, ssd, factor):
    trace = replace(workload(model), batch_size=batch)
    rates = {"read_bandwidth": ssd, "write_bandwidth": ssd}
    assert unified_memory_factor(trace, load_system({**PUBLISHED_SYSTEM, "ssd": rates})) == factor


def test_without_an_ssd_no_target_is_set_by_hand():
    trace = replace(workload("BERT_Base"), batch_size=512)
    cxl = {"name": "cxl", "capacity": "64 GiB", "read": "8 GB/s", "write": "4 GB/s", "latency": "400 ns"}
    system = load_system({"preset": "a100-40g-g10-paper", "tiers": ["host", cxl]})
    assert unified_memory_factor(trace, system) == 1.0


def test_targets_of_the_designs_that_copy_whole_tensors():
    assert copies_factor(workload("VIT"), uses_host=True) == 1.269366
    assert copies_factor(workload("VIT"), uses_host=False) == 1.060606
    assert copies_factor(workload("BERT_Base"), uses_host=True) == 1.060606
