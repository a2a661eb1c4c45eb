"""Captures of the models of the G10 paper need as much memory as its published traces say."""

import pytest

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture.source import make_torchvision_importable
from g10sim.importers.gpg import import_gpg

BATCH_SIZES = {"BERT_Base": 256, "Inceptionv3": 512, "ResNet152": 256, "SENet154": 256, "VIT": 512}
QUICK = ("BERT_Base",)


@pytest.fixture
def graphs(torch):
    """Builders of the models, with the operators of the published graphs where no library has these."""
    for library in ("timm", "torchvision", "transformers"):
        make_torchvision_importable()
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'g10sim[capture]'")
    from g10sim.capture.published_graphs import GRAPHS
    from tools.published_models import MODELS

    return MODELS | GRAPHS


@pytest.mark.parametrize(
    ("model", "batch_size"),
    [
        pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.nightly)
        for case in BATCH_SIZES.items()
    ],
)
def test_a_capture_with_the_operators_of_a_published_graph_has_its_footprint(
    published, graphs, model, batch_size
):
    from g10sim.capture import capture_step

    wanted = import_gpg(published / "traces" / model / str(batch_size), model, batch_size)
    found = capture_step(lambda: graphs[model](batch_size), optimizer="sgd", attention="eager")
    assert peak_live_bytes(found) == pytest.approx(peak_live_bytes(wanted), rel=0.1)
