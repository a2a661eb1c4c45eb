"""Claims from the command line, with a small experiment."""

from pathlib import Path

import pytest

from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

LIST = """
experiments: {small: {}}
claims:
  - name: slower
    system: Made up
    source: this file
    says: "much {slower}"
    means: as it says
    published: 2
    unit: factor
    reproduced: [50, 100]
    in_range: [40, 200]
    experiment: small
    measure: {of: comparison, column: exec_cycles, policy: ideal, against: base_uvm, value: speedup}
    lacks: a slow link
"""
RUN = """
workload: {trace: chain.g10t}
system: {preset: a100-40g-pcie3-znand, gpu: {memory: 6500 KiB}}
policies: [ideal, base_uvm]
"""


@pytest.fixture
def small(here, monkeypatch):
    monkeypatch.delenv("G10SIM_REFERENCE", raising=False)
    Path("experiments/claims").mkdir(parents=True)
    Path("experiments/claims/small.yaml").write_text(RUN)
    Path("list.yaml").write_text(LIST)
    save_trace(chain(8), here / "chain.g10t")
    return here


@pytest.mark.slow
def test_claims_beside_what_is_simulated(g10sim, small):
    ended = g10sim("claims", "--list", "list.yaml", "-o", "out")
    assert (ended.code, ended.err) == (0, "")
    for text in ("much {slower}", "2.00x", "not reproduced", "slower (bundled): a slow link"):
        assert text in ended.out
    assert "1 not reproduced" in ended.out
    assert Path("out/claims.csv").is_file()
    assert Path("out/small/results.csv").is_file()


def test_bad_input(g10sim, small):
    ended = g10sim("claims", "--list", "list.yaml", "--system", "Made", "-o", "out")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--system: found 'Made' (did you mean 'Made up'" in ended.err
    ended = g10sim("claims", "--list", "list.yaml", "--reference", "nowhere", "-o", "out")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--reference: found nowhere, without 'traces'" in ended.err
    assert not Path("out").exists()


@pytest.mark.slow
def test_failed_cells_are_listed(g10sim, small):
    Path("broken.py").write_text(
        "from g10sim.policies.interface import Policy\n\n\n"
        "class Broken(Policy):\n    name = 'broken'\n\n"
        "    def plan_job(self, job, system, behaviour):\n        raise RuntimeError('no plan today')\n"
    )
    path = Path("experiments/claims/small.yaml")
    path.write_text(path.read_text().replace("[ideal, base_uvm]", "[ideal, base_uvm, 'broken:Broken']"))
    ended = g10sim("claims", "--list", "list.yaml", "-o", "out")
    assert ended.code == 1
    assert "small, cell 2 (chain.g10t, broken:Broken) failed: " in ended.err
