"""``g10sim trace pools`` and ``g10sim plan swaps`` as a user meets them."""

import pandas as pd

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain


def test_pools_of_a_trace(g10sim, here):
    trace = chain(8, activation_bytes=100 << 20)
    save_trace(trace, here / "chain.g10t")
    ended = g10sim("trace", "pools", "chain.g10t", "-o", "pools.csv")
    assert ended.code == 0
    for name in ("default pool", "caching pool", "SmartPool, best fit", "SmartPool, first fit"):
        assert name in ended.out
    table = pd.read_csv(here / "pools.csv")
    assert set(table.load_bytes) == {peak_live_bytes(trace)}
    assert table.reduction[0] == 0
    assert (table.ratio == table.footprint_bytes / table.load_bytes).all()


def test_pools_that_cannot_be_written(g10sim, here):
    save_trace(chain(4), here / "chain.g10t")
    ended = g10sim("trace", "pools", "chain.g10t", "-o", "missing/pools.csv")
    assert ended.code == 2
    assert ended.err.startswith("error: missing/pools.csv: cannot be written")
    assert ended.out == ""
