"""The five models of the published traces, captured: with their A100's times they take as long."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture import capture_step
from g10sim.capture.source import make_torchvision_importable
from g10sim.importers.gpg import import_gpg

pytestmark = pytest.mark.slow

SMALLEST = {"BERT_Base": 128, "Inceptionv3": 512, "ResNet152": 256, "SENet154": 256, "VIT": 256}
QUICK = ("BERT_Base", "ResNet152", "VIT")


def seconds(trace):
    return sum(kernel.duration for kernel in trace.kernels) / trace.ticks_per_second


@pytest.mark.parametrize(
    ("model", "batch_size"),
    [pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.nightly) for case in SMALLEST.items()],
)
def test_an_iteration_takes_the_published_time_within_15_percent(model, batch_size, published):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")
    make_torchvision_importable()
    for library in ("timm", "torchvision", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from tools.published_models import MODELS

    captured = capture_step(
        lambda: MODELS[model](batch_size), gpu="a100-40g-g10", optimizer="sgd", attention="eager"
    )
    measured = import_gpg(published / "traces" / model / str(batch_size))
    assert seconds(captured) == pytest.approx(seconds(measured), rel=0.15)
