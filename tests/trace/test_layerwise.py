"""Traces of chains of layers."""

import pytest
from layerwise import LayerSpec, layerwise_trace
from vdnn_networks import alexnet, vgg

from g10sim.trace.check import problems
from g10sim.trace.model import Phase, TensorKind


def test_a_chain_of_two_layers():
    layers = [
        LayerSpec("conv", "Conv2d", 200, 10, 20, weight_bytes=30, workspace_bytes=7, activated=True),
        LayerSpec("pool", "MaxPool2d", 50, 5, 6, reads_output=True),
    ]
    trace = layerwise_trace("two", 4, 100, layers)
    names = {tensor.id: tensor.name for tensor in trace.tensors}

    def described(kernel):
        inputs, outputs = ([names[t] for t in tensors] for tensors in (kernel.inputs, kernel.outputs))
        return kernel.name, kernel.layer, kernel.duration, inputs, outputs

    assert [described(kernel) for kernel in trace.kernels] == [
        ("Forward", "conv", 10, ["input", "conv.weight"], ["conv.output", "conv.workspace"]),
        ("Forward", "pool", 5, ["conv.output"], ["pool.output"]),
        ("Loss", "", 0, ["pool.output"], ["pool.output.gradient"]),
        (
            "Backward", "pool", 6,
            ["conv.output", "pool.output.gradient", "pool.output"], ["conv.output.gradient"],
        ),
        (
            "ReLU_Backward", "conv", 0,
            ["conv.output", "conv.output.gradient"], ["conv.output.gradient"],
        ),
        (
            "Backward", "conv", 20,
            ["input", "conv.output.gradient", "conv.weight"], ["conv.weight.gradient"],
        ),
        ("Update", "conv", 0, ["conv.weight", "conv.weight.gradient"], ["conv.weight"]),
    ]  # fmt: skip
    assert trace.batch_size == 4
    assert [kernel.phase for kernel in trace.kernels[-2:]] == [Phase.BACKWARD, Phase.OPTIMIZER]
    assert trace.kernels[1].layer_type == "MaxPool2d"


def test_chains_keep_the_rules_of_traces():
    for trace in (alexnet(2), vgg(1)):
        assert list(problems(trace)) == []
        weights = sum(t.size_bytes for t in trace.tensors if t.kind is TensorKind.WEIGHT)
        # In millions, without biases, which have few.
        assert weights / 4e6 == pytest.approx({"AlexNet": 61.1, "VGG": 143.6}[trace.model], abs=0.1)
