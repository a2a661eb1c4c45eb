"""The guide to the format says what the format does."""

import re
from pathlib import Path

from g10sim.trace.format import load_trace
from g10sim.trace.model import Phase, TensorKind, TimeSource

GUIDE = Path(__file__).parents[2] / "docs" / "trace-format.md"


def test_example_is_a_valid_trace(tmp_path):
    example = GUIDE.read_text().split("## Example")[1].split("## Rules")[0]
    lines = [line.strip() for line in example.splitlines() if line.startswith("    {")]
    path = tmp_path / "example.g10t"
    path.write_text("\n".join(lines))
    trace = load_trace(path)
    assert (len(trace.tensors), len(trace.kernels)) == (3, 2)


def test_every_word_of_the_format_is_in_the_guide():
    words = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    assert words >= {word.value for kind in (TensorKind, Phase, TimeSource) for word in kind}
