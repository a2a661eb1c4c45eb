"""Synthetic traces keep the rules and have the answers they promise."""

import pytest

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.trace.check import problems
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import chain, long_chain, random_trace


@pytest.mark.parametrize("layers", [1, 2, 7])
def test_chain(layers):
    trace = chain(layers, forward_ticks=10, backward_ticks=20, optimizer_ticks=1, workspace_bytes=5)
    assert list(problems(trace)) == []
    assert len(trace.kernels) == 3 * layers
    assert sum(kernel.duration for kernel in trace.kernels) == 31 * layers
    assert [kernel.phase for kernel in trace.kernels[:layers]] == [Phase.FORWARD] * layers
    names = {tensor.name: tensor.id for tensor in trace.tensors}
    for layer in range(layers):
        output = names[f"layer{layer}.output"]
        assert trace.births[output] == layer
        # Last read by the backward kernel of its own layer or, saved as input, of the next lower one.
        assert trace.deaths[output] == layers + 2 * (layers - 1 - layer) + 1
    assert all(
        trace.workspace_bytes(kernel) == 5 for kernel in trace.kernels if kernel.phase is not Phase.OPTIMIZER
    )


def test_chain_footprint():
    trace = chain(4, activation_bytes=100, weight_bytes=7)
    # First backward kernel: the input, four outputs, the gradients of loss and of its input, five of 7 bytes.
    assert peak_live_bytes(trace) == 7 * 100 + 4 * 7 + 7


def test_long_chain():
    trace = long_chain(300, tensor_bytes=8, live_tensors=10)
    assert list(problems(trace)) == []
    assert len(trace.kernels) == 300
    assert peak_live_bytes(trace) == 12 * 8


def test_random_traces_keep_the_rules_and_depend_on_the_seed_only():
    for seed in range(100):
        assert list(problems(random_trace(seed))) == []
    assert random_trace(5) == random_trace(5)
    assert random_trace(5) != random_trace(6)


def test_random_traces_vary():
    traces = [random_trace(seed) for seed in range(20)]
    kinds = {tensor.kind for trace in traces for tensor in trace.tensors}
    assert kinds >= {TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.ACTIVATION, TensorKind.WORKSPACE}
    assert any(set(kernel.inputs) & set(kernel.outputs) for trace in traces for kernel in trace.kernels)
