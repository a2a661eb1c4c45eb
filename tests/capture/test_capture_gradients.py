"""The gradients of a convolution are kernels of their own, as cuDNN runs them."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture import capture_step
from g10sim.trace.model import TensorKind

pytestmark = pytest.mark.slow

FLOPS = 2 * (8 * 16 * 10 * 10) * (4 * 3 * 3)
"""Of one gradient, as of the convolution: two for each product of an output's element and a filter's."""


def two_convolutions():
    first = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False)
    second = torch.nn.Conv2d(4, 16, 3)
    return torch.nn.Sequential(first, second), torch.randn(8, 3, 12, 12)


@pytest.fixture(scope="module")
def gradients():
    trace = capture_step(two_convolutions, optimizer="sgd")
    found = {}
    for kernel in trace.kernels:
        if kernel.name.startswith("convolution_backward"):
            names = {trace.tensors[tensor].name for tensor in kernel.inputs}
            found[kernel.layer, kernel.name.rpartition("_")[2]] = kernel, names
    return trace, found


def test_there_is_one_for_each_tensor_that_has_a_gradient(gradients):
    _, found = gradients
    assert list(found) == [("1", "input"), ("1", "weight"), ("1", "bias"), ("0", "weight")]


def test_each_reads_what_it_needs(gradients):
    trace, found = gradients
    (_, for_input), (weight, for_weight), (bias, for_bias), (_, first) = found.values()
    assert "1.weight" in for_input
    assert "1.weight" not in for_weight | for_bias
    assert len(for_bias) == 1
    assert "input.0" in first
    assert [trace.tensors[tensor].kind for tensor in weight.outputs] == [TensorKind.GRADIENT]
    assert [trace.tensors[tensor].size_bytes for tensor in bias.outputs] == [16 * 4]


def test_flops_are_of_one_gradient(gradients):
    _, found = gradients
    assert found["1", "input"][0].flops == found["1", "weight"][0].flops == FLOPS
    assert found["1", "bias"][0].flops == 0
