"""The guide to the format says what the format does."""

import re
from pathlib import Path

from g10sim.trace.format import load_trace
from g10sim.trace.model import Phase, TensorKind, TimeSource

GUIDE = Path(__file__).parents[2] / "docs" / "trace-format.md"


def example(directory, start, end):
    """The trace of a section."""
    section = GUIDE.read_text().split(start)[1].split(end)[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    {")]
    path = directory / "example.g10t"
    path.write_text("\n".join(lines))
    return load_trace(path)


def test_example_is_a_valid_trace(tmp_path):
    trace = example(tmp_path, "## Example", "## Rules")
    assert (len(trace.tensors), len(trace.kernels)) == (3, 2)


def test_example_of_repetition_is_a_valid_trace(tmp_path):
    trace = example(tmp_path, "### Repetition", "## Example")
    assert (len(trace.tensors), len(trace.kernels)) == (2002, 2000)
    # Step 999, the last one, reads what step 998 wrote.
    assert trace.kernels[1998].inputs == (*trace.kernels[1997].outputs, 0)


def test_every_word_of_the_format_is_in_the_guide():
    words = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    assert words >= {word.value for kind in (TensorKind, Phase, TimeSource) for word in kind}
