"""What the README claims of its policy."""

import re
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks

import g10sim

README = Path(__file__).parents[2] / "README.md"
TRACE = "traces/bert-base-b512-s128.g10t"


@pytest.fixture
def policy(tmp_path, monkeypatch):
    (block,) = [block for block in blocks(README) if block.values("file") == ["farthest.py"]]
    assert len(block.text.splitlines()) <= 20
    (tmp_path / "farthest.py").write_text(block.text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "farthest:Farthest"
    sys.modules.pop("farthest", None)


def test_the_policy_does_what_the_readme_says(policy):
    claims = re.search(
        r"it reaches (\d+)% of ideal; Base UVM reaches (\d+)%, DeepUM\+ (\d+)% and G10 (\d+)%",
        README.read_text(encoding="utf-8"),
    )
    trace = g10sim.load_trace(README.parent / TRACE)
    reached = [
        g10sim.simulate(trace, "a100-40g-pcie3-znand", name).performance
        for name in (policy, "base_uvm", "deepum", "g10")
    ]
    assert [round(performance * 100) for performance in reached] == [int(claim) for claim in claims.groups()]
    assert reached[0] > 1.5 * reached[1]
