"""Figures of memory pools and of overhead against GPU memory, from small runs."""

import pytest
from readable import legend_words

import g10sim
from g10sim import plots
from g10sim.errors import ConfigError
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain


@pytest.fixture
def trace(tmp_path):
    save_trace(chain(12, activation_bytes=8 << 20, weight_bytes=1 << 20), tmp_path / "chain.g10t")
    return str(tmp_path / "chain.g10t")


def labels(figure):
    return legend_words(figure)


def test_pools(trace, tmp_path):
    config = {"workload": {"trace": trace}, "system": "a100-40g-pcie3-znand", "policies": ["ideal"]}
    g10sim.run({"name": "pools", **config, "record": ["pools"]}, output=tmp_path / "out")
    figure = plots.draw("pools", tmp_path / "out")
    assert labels(figure) == ["default pool", "caching pool", "SmartPool, best fit", "SmartPool, first fit"]
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert len(heights) == 4
    assert all(height >= 1 for height in heights)


@pytest.mark.slow
def test_swaps(trace, tmp_path):
    config = {
        "workload": {"trace": trace, "iterations": 3},
        "system": "a100-40g-pcie3-znand",
        "policies": ["ideal", "autoswap", {"name": "autoswap", "score": "doa"}],
        "sweep": {"system.gpu.memory": ["48 MiB", "1 GiB"]},
    }
    g10sim.run({"name": "swaps", **config}, output=tmp_path / "out")
    figure = plots.draw("swaps", tmp_path / "out")
    assert labels(figure) == ["AutoSwap", "AutoSwap, DOA"]
    for line in figure.axes[0].get_lines():
        less, more = line.get_ydata()
        assert line.get_xdata().tolist() == pytest.approx([48 / 1024, 1])
        assert less > more == 0


def test_swaps_without_a_sweep(trace, tmp_path):
    config = {"workload": {"trace": trace}, "system": "a100-40g-pcie3-znand", "policies": ["autoswap"]}
    g10sim.run({"name": "one", **config}, output=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"found no column 'system.gpu.memory'"):
        plots.draw("swaps", tmp_path / "out")
