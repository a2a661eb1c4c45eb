"""``g10sim trace import kineto`` and ``chakra``: refusals leave nothing behind."""

import pytest


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
