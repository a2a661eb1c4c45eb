"""Pooling as cuDNN has it, beside PyTorch's own."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from torch import nn

from g10sim.capture.step import capture_step

pytestmark = pytest.mark.slow


def network():
    """A convolution of 4 x 8 x 14 x 14 numbers, pooled to a quarter, in 32 bits."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2)), torch.zeros(4, 3, 16, 16)


MAP, POOLED = 4 * 8 * 14 * 14 * 4, 4 * 8 * 7 * 7 * 4
SCALAR = 4
"""The gradient of the sum of the outputs."""


def pooling(trace):
    return [
        {
            "reads": sorted(trace.tensors[tensor].size_bytes for tensor in kernel.inputs),
            "writes": sorted(trace.tensors[tensor].size_bytes for tensor in kernel.outputs),
            "moved": kernel.moved_bytes,
        }
        for kernel in trace.kernels
        if kernel.name.startswith("max_pool2d_with_indices")
    ]


def test_pytorch_keeps_the_position_of_every_maximum():
    forward, backward = pooling(capture_step(network, optimizer="sgd"))
    assert forward == {"reads": [MAP], "writes": [POOLED, 2 * POOLED], "moved": MAP + 3 * POOLED}
    assert backward["reads"] == [SCALAR, 2 * POOLED, MAP]


def test_the_gradient_of_cudnn_reads_the_output_instead():
    trace = capture_step(network, optimizer="sgd", cudnn_pooling=True)
    forward, backward = pooling(trace)
    assert forward == {"reads": [MAP], "writes": [POOLED], "moved": MAP + POOLED}
    assert backward["reads"] == [SCALAR, POOLED, MAP]
    made, used = (
        next(kernel for kernel in trace.kernels if kernel.name == f"max_pool2d_with_indices{end}")
        for end in ("", "_backward")
    )
    assert made.outputs[0] in used.inputs
    assert trace.origin["cudnn_pooling"] == "True"
