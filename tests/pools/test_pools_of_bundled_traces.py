"""Pools on the traces that come with g10sim."""

from pathlib import Path

import pytest

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.analysis.pools.operations import stays_of
from g10sim.analysis.pools.placement import FITS, Block, peak_bytes, place_blocks
from g10sim.results.pools import compare_pools
from g10sim.results.tables import pools_table
from g10sim.trace.format import load_trace
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job

TRACES = sorted((Path(__file__).parents[2] / "traces").glob("*.g10t"))
LARGE = ("gpt2", "llama", "senet154")
QUICK = ("bert-base-b256-s128", "resnet152-b512")


def marks(stem):
    if stem.startswith(LARGE):
        return pytest.mark.nightly
    return () if stem in QUICK else pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[pytest.param(path, id=path.stem, marks=marks(path.stem)) for path in TRACES],
)
def trace(request):
    return load_trace(request.param)


@pytest.mark.parametrize("fit", FITS)
def test_offline_placement_takes_little_more_than_the_load(trace, fit):
    stays = [(0, len(trace.kernels)) if t.persistent else s for t in trace.tensors for s in _stays(trace, t)]
    sizes = [t.size_bytes for t in trace.tensors for _ in _stays(trace, t)]
    blocks = [Block(*stay, size) for stay, size in zip(stays, sizes, strict=True)]
    placement = place_blocks(blocks, fit=fit)
    assert peak_bytes(blocks) == peak_live_bytes(trace)
    assert peak_bytes(blocks) <= placement.footprint_bytes <= 1.02 * peak_bytes(blocks)


def _stays(trace, tensor):
    return [None] if tensor.persistent else stays_of(trace, tensor.id)


def test_smart_pool_takes_less_than_the_default_pool(trace):
    default, caching, *smart = compare_pools(trace)
    assert default.pool == "default pool"
    for use in smart:
        assert use.load_bytes == default.load_bytes == peak_live_bytes(trace)
        assert use.load_bytes <= use.footprint_bytes < default.footprint_bytes
        assert use.footprint_bytes < caching.footprint_bytes
        assert use.ratio <= 1.02


def test_table_of_pools():
    trace = chain(8, activation_bytes=100 << 20)
    table = pools_table([Job(trace), Job(trace)], 10**9)
    assert list(table.columns) == ["job", "pool", "load_bytes", "footprint_bytes"]
    assert table.job.tolist() == [0] * 4 + [1] * 4
    assert set(table.load_bytes) == {peak_live_bytes(trace)}
    assert pools_table([], 10**9).empty
