"""``g10sim trace calibrate``: refusals (what it writes is tested where it is made)."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "-o", "mine.yaml"), "nowhere: found no traces/MODEL/BATCH/kernels.config"),
        (("nowhere", "-o", "mine.txt"), "-o: found 'mine.txt'; allowed: a file NAME.yaml"),
    ],
)
def test_bad_input_is_refused(g10sim, here, arguments, message):
    ended = g10sim("trace", "calibrate", *arguments)
    assert ended.code == 2
    assert message in ended.err
    assert list(here.iterdir()) == []


def test_a_fit_is_written_and_can_be_used(g10sim, here, published):
    ended = g10sim("trace", "calibrate", published, "-o", "mine.yaml", "--fit", "VIT,BERT_Base,ResNet152")
    assert ended.code == 0
    assert "held out" in ended.out
    from g10sim.capture.gpu import load_gpu

    assert load_gpu(here / "mine.yaml").name == "mine"
