"""Peaks of fifteen models, five of them newer than 2024, against PyTorch's own tracker."""

import pytest
from tiny_models import TINY

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'g10sim[capture]'")

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture import capture_step
from g10sim.capture.fused import one_sequence_a_sample
from g10sim.capture.hugging_face import build_hugging_face
from g10sim.capture.options import Sizes, StepOptions
from g10sim.capture.source import make_torchvision_importable

pytestmark = pytest.mark.slow

NEW = ("qwen3", "qwen3-moe", "gemma3_text", "gpt-oss", "qwen2_5_vl")
QUICK = ("t5",)
REAL = ("Qwen3-0.6B", "Llama-3.2-1B", "t5-base", "gemma-3-1b-pt")
MODELS = (*NEW, "llama", "mixtral", "t5", "clip", "deepseek-v3", "mamba2", *REAL)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in MODELS]
)
def test_the_peak_of_a_model_agrees_with_pytorchs_memory_tracker(tracked_peak, name):
    make_torchvision_importable()
    build = build_hugging_face(name, Sizes(4, 64), StepOptions(), TINY.get(name, ()))
    peak = peak_live_bytes(capture_step(build))
    with one_sequence_a_sample():  # on a device, too, samples are known to be one sequence each
        assert peak == pytest.approx(tracked_peak(build, {}), rel=0.01)
