"""FLOPs of captured operators against counts by hand, and what is said of operators without a formula."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from typer.testing import CliRunner

from g10sim.analysis.gpus import load_gpu
from g10sim.capture import capture_step
from g10sim.capture.operators import FORMULAS
from g10sim.cli.commands import app
from g10sim.trace.model import TimeSource

pytestmark = pytest.mark.slow

SAMPLES, LENGTH, WIDTH, HIDDEN = 8, 10, 64, 128


def flops(build, **options):
    """FLOPs of a step, of which every product has a formula and none beats the hardware."""
    trace = capture_step(build, gpu="h100", **options)
    assert {kernel.time_source for kernel in trace.kernels} == {TimeSource.ROOFLINE}
    gpu = load_gpu("h100")
    for kernel in trace.kernels:
        seconds = kernel.duration / trace.ticks_per_second
        assert seconds >= kernel.flops / max(gpu.peak.values())
        assert seconds >= kernel.moved_bytes / gpu.memory_bandwidth
    return sum(kernel.flops for kernel in trace.kernels)


def recurrent(kind, **options):
    layers = getattr(torch.nn, kind)

    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers(WIDTH, HIDDEN, batch_first=True, **options)

        def forward(self, sequence):
            return self.layers(sequence)[0]

    return lambda: (Recurrent(), torch.randn(SAMPLES, LENGTH, WIDTH))


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers(kind, gates):
    step = gates * HIDDEN * (WIDTH + HIDDEN) + gates * HIDDEN * (HIDDEN + HIDDEN)
    forward = 2 * SAMPLES * LENGTH * step
    build = recurrent(kind, num_layers=2)
    assert flops(build, inference=True) == forward
    assert flops(build) == pytest.approx(3 * forward, rel=0.07)  # some need no gradient of the input


def test_both_directions_of_an_lstm():
    forward = 2 * 2 * SAMPLES * LENGTH * 4 * HIDDEN * (WIDTH + HIDDEN)
    assert flops(recurrent("LSTM", bidirectional=True), inference=True) == forward


class Experts(torch.nn.Module):
    """Four experts, each with 32 of 128 tokens."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 64, 128))
        self.ends = torch.nn.Buffer(torch.tensor([32, 64, 96, 128], dtype=torch.int32))

    def forward(self, tokens):
        return torch._grouped_mm(tokens, self.weight, offs=self.ends) * 2


def test_a_grouped_product_is_no_more_than_what_each_token_meets():
    forward = 2 * 128 * 64 * 128
    build = lambda: (Experts(), torch.randn(128, 64, requires_grad=True))  # noqa: E731
    assert flops(build, dtype="bfloat16", inference=True) == forward
    assert flops(build, dtype="bfloat16") == 3 * forward


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((128, 64), (4, 64, 32), 2 * 128 * 64 * 32),
        ((4, 16, 64), (4, 64, 32), 2 * 4 * 16 * 64 * 32),
        ((16, 128), (128, 32), 2 * 16 * 128 * 32),
        ((4, 16, 64), (64, 128), 2 * 16 * 64 * 128),
    ],
)
def test_each_form_of_a_grouped_product(left, right, expected):
    assert FORMULAS["_grouped_mm"](torch.empty(left), torch.empty(right)) == expected


POINTWISE = ["ReLU6", "LeakyReLU", "ELU", "Mish", "PReLU", "RReLU", "Softshrink", "Hardshrink"]
BORDERS = ["ReflectionPad2d", "ReplicationPad2d", "PixelShuffle", "ChannelShuffle"]


@pytest.mark.parametrize("layer", [*POINTWISE, *BORDERS])
def test_layers_that_only_move_bytes_are_of_known_cost(layer):
    def build():
        made = getattr(torch.nn, layer)(*([2] if layer in BORDERS else []))
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), made), torch.ones(2, 3, 8, 8)

    assert "operators_priced_by_bytes" not in capture_step(build).origin


@pytest.mark.parametrize("loss", ["binary_cross_entropy_with_logits", "soft_margin_loss"])
def test_losses_are_of_known_cost(loss):
    class Judged(torch.nn.Linear):
        def forward(self, x):
            return getattr(torch.nn.functional, loss)(super().forward(x), torch.ones(SAMPLES, WIDTH))

    trace = capture_step(lambda: (Judged(WIDTH, WIDTH), torch.ones(SAMPLES, WIDTH)))
    assert loss in [kernel.name for kernel in trace.kernels]
    assert "operators_priced_by_bytes" not in trace.origin


@pytest.mark.parametrize("product", [lambda x: x @ x, lambda x: x[0].dot(x[0]), lambda x: x[None] @ x[None]])
def test_a_product_of_complex_numbers_is_four_of_real_ones(product):
    class Product(torch.nn.Module):
        def forward(self, x):
            return product(x)

    def counted(dtype):
        trace = capture_step(lambda: (Product(), torch.ones(WIDTH, WIDTH, dtype=dtype)), inference=True)
        (kernel,) = trace.kernels
        return kernel.flops, kernel.number_format

    (whole, number_format), (real, _) = counted(torch.complex128), counted(torch.float64)
    assert (whole, number_format) == (4 * real, "float64")


def test_attention_of_one_operator():
    build = lambda: (  # noqa: E731
        torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True),
        (torch.randn(SAMPLES, LENGTH, WIDTH),) * 3,
    )
    projections = 4 * 2 * SAMPLES * LENGTH * WIDTH * WIDTH
    products = 2 * 2 * SAMPLES * LENGTH * LENGTH * WIDTH
    assert flops(build, inference=True) == projections + products


MODULE = """
import torch


class Distances(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.points = torch.nn.Parameter(torch.randn(4, 8))
        self.layer = torch.nn.Linear(8, {width})

    def forward(self, x):
        return torch.cdist(x[:16], self.points).sum() + self.layer(x).sum()


def build():
    return Distances(), torch.randn({rows}, 8)
"""


@pytest.fixture
def capture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(name, rows, width, *options):
        (tmp_path / f"{name}.py").write_text(MODULE.format(rows=rows, width=width))
        arguments = [f"{name}:build", "--inference", "--gpu", "h100", "-o", "out.g10t", *options]
        return CliRunner().invoke(app, ["trace", "capture", *arguments])

    return run


def test_operators_of_unknown_cost_are_told_with_their_shares(capture, tmp_path):
    result = capture("much", 16, 8)
    assert result.exit_code == 0, result.output
    told = next(line for line in result.output.splitlines() if "no cost known" in line)
    assert "_cdist_forward x1" in " ".join(result.output.split())
    assert told.startswith("warning: ")
    assert (tmp_path / "out.g10t").exists()


def test_strict_refuses_them_and_writes_nothing(capture, tmp_path):
    result = capture("strict", 16, 8, "--strict")
    assert result.exit_code != 0
    assert "found operators of unknown cost: _cdist_forward x1" in str(result.exception)
    assert not (tmp_path / "out.g10t").exists()


def test_a_share_below_one_percent_is_no_reason_to_warn(capture, tmp_path):
    result = capture("little", 2**24, 64, "--strict")
    assert result.exit_code == 0, result.output
    told = next(line for line in result.output.splitlines() if "no cost known" in line)
    assert not told.startswith("warning: ")
    assert "0.00% of the bytes" in " ".join(result.output.split())
