"""``g10sim trace pools`` and ``g10sim plan swaps`` as a user meets them."""

import pandas as pd
import pytest

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


def test_swaps_as_planned_and_as_simulated(g10sim, here):
    save_trace(chain(12, activation_bytes=8 << 20, weight_bytes=1 << 20), here / "chain.g10t")
    ended = g10sim("plan", "swaps", "chain.g10t", "--limit", "90 MiB", "--score", "doa", "-o", "swaps.csv")
    assert ended.code == 0
    assert "90.0 MiB" in ended.out
    (row,) = pd.read_csv(here / "swaps.csv").to_dict("records")
    assert (row["score"], row["mode"], row["limit_bytes"]) == ("doa", "stick_to_limit", 90 << 20)
    assert row["load_bytes"] <= row["pool_bytes"] <= 90 << 20
    assert row["peak_gpu_bytes"] <= 90 << 20
    assert row["simulated_cycles"] == row["expected_cycles"]


def test_swaps_without_overhead_that_do_not_fit(g10sim, here):
    save_trace(chain(12, activation_bytes=8 << 20, weight_bytes=1 << 20), here / "chain.g10t")
    ended = g10sim("plan", "swaps", "chain.g10t", "--limit", "32 MiB", "--mode", "no_overhead")
    assert ended.code == 0
    assert "without overhead; the GPU has 32 MiB" in ended.out


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--score", "best", "--score: found 'best'; allowed: "),
        ("--mode", "fast", "--mode: found 'fast'; allowed: "),
        ("--limit", "20", "--limit: found '20' without a unit"),
        ("--limit", "0 GiB", "--limit: found '0 GiB'; allowed: more than zero"),
    ],
)
def test_impossible_options_are_refused(g10sim, here, option, value, message):
    save_trace(chain(4), here / "chain.g10t")
    ended = g10sim("plan", "swaps", "chain.g10t", option, value)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {message}")
