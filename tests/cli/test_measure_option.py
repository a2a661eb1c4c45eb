"""``g10sim trace capture --measure`` on a computer without a CUDA device."""

import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

MODEL = """
import torch


def build(batch_size=4):
    return torch.nn.Linear(8, 8), torch.randn(batch_size, 8)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_it_is_refused_before_anything_is_captured(g10sim, here):
    (here / "tiny.py").write_text(MODEL)
    ended = g10sim("trace", "capture", "tiny:build", "--gpu", "a100-40g", "--measure", "-o", "tiny.g10t")
    assert ended.code == 2
    assert "--measure: found no CUDA device; allowed: a computer with one, or no --measure" in ended.err
    assert not (here / "tiny.g10t").exists()
