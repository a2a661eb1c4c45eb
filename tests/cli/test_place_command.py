"""``g10sim trace place`` and ``stages``: parts of a trace on other processors."""

from dataclasses import replace

import pytest

from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder, chain


def test_layers_run_on_the_cpu(g10sim, here):
    trace = chain(3)
    numbered = tuple(replace(one, layer=one.layer.replace("layer", "layers.")) for one in trace.kernels)
    save_trace(replace(trace, kernels=numbered), here / "chain.g10t")
    ended = g10sim("trace", "place", "chain.g10t", "-o", "placed.g10t", "--layers", "0-1", "--device", "cpu")
    assert ended.code == 0
    assert "placed.g10t: 6 of 9 kernels on the CPU" in ended.out
    assert {one.block for one in load_trace(here / "placed.g10t").cpu_kernels} == {"layers.0", "layers.1"}


@pytest.mark.parametrize("layers", ["a", "3-1", "-2", "1-", "²", "9" * 5000])
def test_other_layers_are_refused(g10sim, here, layers):
    save_trace(chain(3), here / "chain.g10t")
    ended = g10sim("trace", "place", "chain.g10t", "-o", "placed.g10t", f"--layers={layers}")
    assert ended.code == 2
    assert f"--layers: found '{layers[:500]}" in ended.err
    assert "; allowed: a number, or two such as 0-23" in ended.err


def test_stages_are_written_all_or_not_at_all(g10sim, here):
    builder, x = TraceBuilder("step"), []
    for layer, duration in enumerate([5, 0]):
        y = builder.tensor(f"y{layer}", 1, TensorKind.ACTIVATION)
        builder.kernel("gemm", duration, x, [y], layer=f"layers.{layer}", micro_batch=1)
        x = [y]
    save_trace(builder.build(), here / "step.g10t")
    ended = g10sim("trace", "stages", "step.g10t", "-o", "stages", "--begin", "layers.1")
    assert ended.code == 2
    assert "step.g10t: stage 1: found only kernels of duration 0; allowed: at least one" in ended.err
    assert not (here / "stages").exists()
