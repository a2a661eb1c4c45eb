"""``g10sim trace import kineto`` and ``chakra``: refusals leave nothing behind."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "importers"))

from profiles import MB, two_products


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kineto", "broken.json"), "broken.json: found no JSON"),
        (("kineto", "nowhere.json"), "nowhere.json: cannot be read"),
        (("chakra", "broken.json", "--gpu", "h100"), "broken.json: found no JSON"),
        (("chakra", "broken.json"), "--profile, --gpu: found neither; allowed: one of them"),
        (("chakra", "broken.json", "--gpu", "h100", "--profile", "x"), "--profile, --gpu: found both"),
        (("chakra", "broken.json", "--gpu", "h1000"), "unknown GPU 'h1000' (did you mean 'h100'?)"),
    ],
)
def test_bad_input_is_refused_in_one_message(g10sim, here, arguments, message):
    (here / "broken.json").write_text("{")
    ended = g10sim("trace", "import", *arguments, "-o", "out.g10t")
    assert ended.code == 2
    assert message in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert [path.name for path in here.iterdir()] == ["broken.json"]


def _profile(here):
    two_products(total=100 * MB).save(here / "profile.json")


def test_the_account_of_an_import_is_printed_and_kept(g10sim, here):
    _profile(here)
    ended = g10sim("trace", "import", "kineto", "profile.json", "-o", "out.g10t", "--gaps", "keep")
    assert ended.code == 0
    shown = g10sim("trace", "info", "out.g10t", "--gpu-memory", "1 GiB")
    for text in (ended.out, shown.out):
        assert "device time of the step" in text
        assert "gaps, kept as idle time of the host" in text
        assert "most allocated in the step" in text
    assert "step: 1 of 1" in ended.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--weights", "2"), "--weights: found 2; allowed: numbers of tensors from before the step, 0-1, 3"),
        (("--inputs", "x-3"), "--inputs: found 'x-3'; allowed: numbers of tensors, such as 3,7-9"),
        (("--weights", "1-0"), "--weights: found '1-0'; allowed: numbers of tensors, such as 3,7-9"),
        (
            ("--weights", "0", "--inputs", "0-1"),
            "--weights, --inputs: found 0 in both; allowed: in one of them",
        ),
        (("--step", "9"), "found --step 9; allowed: 1"),
        (("--device", "4"), "found --device 4; allowed: --device with one of 0"),
        (("--process", "4"), "found --process 4; allowed: --process with one of 1"),
    ],
)
def test_a_choice_that_is_not_there_is_refused(g10sim, here, options, message):
    _profile(here)
    ended = g10sim("trace", "import", "kineto", "profile.json", "-o", "out.g10t", *options)
    assert ended.code == 2
    assert message in ended.err
    assert not (here / "out.g10t").exists()
