"""Model FLOPs utilisation of captured steps, worked out by hand."""

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.analysis.throughput import throughput, utilisation
from g10sim.capture import capture_step

pytestmark = pytest.mark.slow


def test_a_perceptron_spends_its_products_on_the_peak_of_its_format(models):
    products = 2 * 16 * (64 * 128 + 128 * 32) * 2 + 2 * 16 * 128 * 32  # no gradient of the inputs
    for options, tflops in (({}, 19.5), ({"dtype": "bfloat16"}, 312), ({"autocast": "float16"}, 312)):
        trace = capture_step(models.perceptron, gpu="a100-40g", **options)
        work = throughput(trace)
        assert work.model_flops == products
        assert work.parameters == 64 * 128 + 128 + 128 * 32 + 32
        expected = products / (tflops * 1e12) / work.seconds
        assert utilisation(trace) == pytest.approx(expected)


def test_float32_convolutions_count_at_the_peak_of_tf32(models):
    trace = capture_step(models.conv_net, gpu="a100-40g", inference=True)
    found = {"convolution": 0, "matmul": 0}
    for kernel in trace.kernels:
        if kernel.flops:
            found[kernel.operator_class] += kernel.flops
    best = found["convolution"] / 156e12 + found["matmul"] / 19.5e12
    assert utilisation(trace) == pytest.approx(best / throughput(trace).seconds)


def test_what_checkpointing_computes_again_is_no_work_of_the_model(models):
    plain = throughput(capture_step(models.language))
    again = throughput(capture_step(models.language, activation_checkpointing=True))
    assert again.model_flops == plain.model_flops
    assert again.recomputed_flops > plain.recomputed_flops == 0


def test_products_in_another_format_than_the_step_s_are_told(torch, models):
    trace = capture_step(models.eight_bits(torch.float8_e4m3fn), gpu="h100", inference=True)
    assert trace.origin["flops_by_format"] == f"float8 {2 * 32 * 128 * 64}"
    expected = 2 * 32 * 128 * 64 / 1978.9e12 / throughput(trace).seconds
    assert utilisation(trace) == pytest.approx(expected)
    assert "flops_by_format" not in capture_step(models.perceptron).origin


def test_parameters_of_several_formats_are_counted(torch):
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(8, 8)
            self.second = torch.nn.Linear(8, 8, dtype=torch.bfloat16)

        def forward(self, x):
            return self.second(self.first(x).bfloat16())

    trace = capture_step(lambda: (Mixed(), torch.randn(4, 8)))
    assert throughput(trace).parameters == 2 * (8 * 8 + 8)


def test_without_a_known_gpu_or_flops_there_is_no_utilisation(models):
    trace = capture_step(models.perceptron)
    assert utilisation(replace(trace, origin=dict(trace.origin) | {"gpu": "mine"})) is None
    assert utilisation(replace(trace, origin=dict(trace.origin) | {"dtype": "text"})) is None
    kernels = tuple(replace(kernel, flops=0) for kernel in trace.kernels)
    assert utilisation(replace(trace, kernels=kernels)) is None
