"""What the README claims of its policy."""

import re
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks
from typer.testing import CliRunner

import g10sim
from g10sim.cli.commands import app
from g10sim.policies.checks import check_policy

pytestmark = pytest.mark.slow

README = Path(__file__).parents[2] / "README.md"
SYSTEM = "a100-40g-pcie3-znand"
ROUGHLY = 0.05


@pytest.fixture
def policy(tmp_path, monkeypatch):
    (block,) = [block for block in blocks(README) if block.values("file") == ["farthest.py"]]
    assert len(block.text.splitlines()) <= 20
    (tmp_path / "farthest.py").write_text(block.text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "farthest:Farthest"
    sys.modules.pop("farthest", None)


def reached(batch, *policies):
    trace = g10sim.load_trace(README.parent / "traces" / f"bert-base-b{batch}-s128.g10t")
    return [g10sim.simulate(trace, SYSTEM, policy).performance for policy in policies]


def claims(pattern):
    found = re.search(pattern, " ".join(README.read_text(encoding="utf-8").split()))
    return [int(claim) / 100 for claim in found.groups()]


def test_nothing_is_lost_where_everything_fits(policy):
    (said,) = claims(r"At batch size 256 all reach (\d+)% of ideal")
    assert reached(256, policy, "base_uvm", "deepum", "g10") == pytest.approx([said] * 4, abs=1e-3)


def test_twenty_lines_beat_page_faults_and_a_prefetcher_where_it_does_not_fit(policy):
    found = reached(512, policy, "base_uvm", "deepum", "g10")
    assert found[0] > 1.5 * found[1]
    assert found[0] > found[2]
    said = claims(r"512 it reaches about (\d+)%, Base UVM (\d+)%, DeepUM\+ (\d+)% and G10 (\d+)%")
    assert found == pytest.approx(said, abs=ROUGHLY)


def test_the_first_command_prints_the_table_that_is_shown(tmp_path):
    shown = README.read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    command = ["run", str(README.parent / "configs" / "quickstart.yaml"), "-o", str(tmp_path / "results")]
    printed = CliRunner(env={"COLUMNS": "80"}).invoke(app, command).output
    assert [line.rstrip() for line in printed.splitlines()[1:-1]] == shown.splitlines()


def test_the_policy_keeps_the_rules(policy):
    assert check_policy(policy) == {}
