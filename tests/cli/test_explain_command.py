import json
import re
from pathlib import Path

import pytest
from machines import trace_of

from g10sim.results.reading import read_results
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

pytestmark = pytest.mark.slow

RECORD = ["kernels", "migrations"]
BRIEF = "--no-what-if"


@pytest.fixture
def explained(g10sim, config):
    def explain(*arguments, **changes):
        assert g10sim("run", config(record=RECORD, **changes)).code == 0
        return g10sim("explain", "out", *arguments)

    return explain


def test_a_cell_is_explained(explained):
    ended = explained("--cell", "1")
    assert (ended.code, ended.err) == (0, "")
    row = read_results("out").iloc[1]
    assert (
        f"Cell 1: chain8, batch size 1, policy Base UVM on a100-40g-pcie3-znand: {row['performance']:.1%}"
        in ended.out
    )
    share = row["stall_fault_flash_cycles"] / row["exec_cycles"]
    assert re.search(rf"page faults served from the SSD .*{share:.1%}", ended.out)
    for word in (
        "kernels stalled; the 5 longest stalls are",
        "Tensors that kernels waited for",
        "Links over the iteration, and while kernels stalled",
        "SSD read: ",
        "Nothing can bring more than",
        f"({1 - row['performance']:.1%} of the time)",
        "Host memory: ",
        "GPU memory: up to ",
        "Policy: ",
        "Bound: ",
    ):
        assert word in ended.out


@pytest.mark.parametrize(("batch", "words"), [(None, "a batch of 1.00 ms"), (256, "2 batches of 1.00 ms")])
def test_the_handling_of_page_faults_is_told_in_batches(explained, batch, words):
    sizes = {"gpu": {"memory": "6500 KiB"}, "page_fault": {"batch": batch, "latency": "1 ms"}}
    ended = explained("--cell", "1", BRIEF, system={"preset": "a100-40g-pcie3-znand", **sizes})
    assert f"the faults of 2.00 MiB are handled in {words}" in ended.out


def test_a_cell_is_explained_as_json(explained, g10sim):
    found = json.loads(explained("--cell", "1", "--json").out)
    row = read_results("out").iloc[1]
    assert found["row"]["exec_cycles"] == row["exec_cycles"]
    assert found["row"]["performance"] == row["performance"]
    assert f"{row['performance']:.1%} of ideal" in found["heading"]
    found_of_kernel = json.loads(g10sim("explain", "out", "--cell", "1", "--kernel", "3", "--json").out)
    told_of_kernel = g10sim("explain", "out", "--cell", "1", "--kernel", "3").out
    assert "\n".join([*found_of_kernel["sentences"], ""]) == told_of_kernel
    said = g10sim("explain", "out", "--cell", "1", "--no-what-if").out
    assert all(line in said for lines in found["sections"].values() for line in lines)


def test_a_better_policy_is_named(explained, g10sim):
    explained("--cell", "1", BRIEF)
    results = read_results("out").set_index("policy")["performance"]
    worse, better = (
        ("base_uvm", "deepum") if results["base_uvm"] < results["deepum"] else ("deepum", "base_uvm")
    )
    cells = {"base_uvm": 1, "deepum": 2}
    labels = {"base_uvm": "Base UVM", "deepum": "DeepUM+"}
    out = g10sim("explain", "out", "--cell", cells[worse], BRIEF).out
    assert f"Policy: {labels[better]} reaches {results[better]:.1%} of ideal" in out
    assert f"(cell {cells[better]})" in out
    assert (
        "none of the others in these results does better"
        in g10sim("explain", "out", "--cell", cells[better], BRIEF).out
    )


def test_shares_add_up(explained):
    out = explained("--cell", "1", BRIEF).out
    table = out.split("kernels stalled;")[0]
    shares = [float(share) for share in re.findall(r"([\d.]+)% *\n", table.split("\n", 1)[1])]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))


def test_the_ideal_cell_lost_nothing(explained):
    out = explained("--cell", "0").out
    assert "100.0% of ideal" in out
    assert "Nothing was lost" in out


def test_host_memory_that_is_full_and_none_at_all(explained):
    assert "Host memory: it was full, and" in explained("--cell", "1", BRIEF).out
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}, "host": {"memory": "0 B"}}
    assert "Host memory: there is none; " in explained("--cell", "1", BRIEF, system=system).out
    plenty = {**system, "host": {"memory": "1 GiB"}}
    assert "in use; more of it would stay empty" in explained("--cell", "1", BRIEF, system=plenty).out


def test_without_records_it_says_what_is_missing(g10sim, config):
    g10sim("run", config())
    ended = g10sim("explain", "out", "--cell", "1")
    assert ended.code == 0
    assert "where the time went" in ended.out
    assert "Run it with 'record: [kernels, migrations]' to see." in ended.out
    refused = g10sim("explain", "out", "--cell", "1", "--kernel", "0")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "found no kernels.parquet" in refused.err


def test_one_kernel(explained, g10sim):
    ended = explained("--cell", "1", "--kernel", "5")
    assert ended.code == 0
    trace = chain(8)
    assert f"Kernel 5 ({trace.kernels[5].name}" in ended.out
    for number in trace.kernels[5].tensors:
        assert trace.tensors[number].name in ended.out
    assert "demanded from " in ended.out
    assert "pages (" in ended.out
    refused = g10sim("explain", "out", "--cell", "1", "--kernel", "999")
    assert refused.code == 2
    assert "kernel 999: found no such kernel; allowed: 0 to" in refused.err


def test_what_if_says_that_it_simulates_again(explained):
    ended = explained("--cell", "1", "--what-if")
    assert ended.code == 0
    assert "what if (simulated again, one change at a time)" in ended.out
    row = read_results("out").iloc[1]
    assert re.search(rf"nothing changed +{row['exec_ms']:,.1f} +{row['performance']:.1%} +\+0.0%", ended.out)
    for change in (
        "twice the GPU memory",
        "twice the host memory",
        "twice the SSD bandwidth",
        "twice the PCIe bandwidth",
        "policy DeepUM+",
    ):
        assert change in ended.out
    deepum = read_results("out").iloc[2]
    assert re.search(rf"policy DeepUM\+ +{deepum['exec_ms']:,.1f}", ended.out)
    table, _, ending = ended.out.rpartition("What helps most, simulated: ")
    saved = sorted(float(text) for text in re.findall(r" (-[\d.]+)% *$", table, re.MULTILINE))[:3]
    assert [float(text) for text in re.findall(r"\(([\d.]+)% less time\)", ending)] == [-one for one in saved]


def test_what_if_says_that_nothing_helps(explained):
    ended = explained("--cell", "0", "--what-if")
    assert ended.out.endswith("None of these changes helps.\n")


def test_the_three_best_changes_end_every_explanation(explained, g10sim, monkeypatch):
    whole = explained("--cell", "1", "--what-if").out
    ending = whole[whole.index("What helps most, simulated: ") :]
    assert ending.count("less time)") == 3
    brief = g10sim("explain", "out", "--cell", "1").out
    assert brief.endswith(ending)
    assert "what if" not in brief
    assert g10sim("explain", "out", "--cell", "0").out.endswith("Nothing was lost: no change can help.\n")
    assert "What helps most" not in g10sim("explain", "out", "--cell", "1", "--no-what-if").out
    monkeypatch.setattr("g10sim.cli.explain.seconds_of", lambda *_: 20 / 4)  # time for the machine alone
    machine = g10sim("explain", "out", "--cell", "1").out
    assert "twice the GPU memory (" in machine[machine.index("What helps most, simulated: ") :]
    assert re.search(r"--what-if simulates \d+ changes \(about \d+ s\), other policies too\.\n$", machine)
    monkeypatch.setattr("g10sim.cli.explain._PATIENCE", 0)
    assert re.search(r"--what-if simulates \d+ changes \(about ", g10sim("explain", "out", "--cell", "1").out)


def test_a_plan_that_was_given_up_is_told(explained, g10sim, here):
    # Weights are read in a circle, and a copy takes far longer than all kernels.
    kernels = [(1000, f"w{number}", "") for number in range(6)]
    save_trace(trace_of({f"w{number}*": 2000 for number in range(6)}, kernels), here / "circle.g10t")
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}}
    changes = {"workload": {"trace": "circle.g10t"}, "policies": ["g10", "base_uvm", "pressure"]}
    said = "Policy: it moved nothing ahead of its use in this iteration"
    shown = explained("--cell", "0", BRIEF, system=system, **changes).out
    assert said in shown
    note = read_results("out").iloc[0]["message"]
    assert note.startswith("the plan leaves")
    assert f"Policy, in its own words: {note}" in shown
    assert said not in g10sim("explain", "out", "--cell", "1", BRIEF).out
    assert said not in g10sim("explain", "out", "--cell", "2", BRIEF).out


def test_results_are_explained_from_anywhere(explained, g10sim, here, monkeypatch):
    explained("--cell", "1", BRIEF)
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert g10sim("explain", here / "out", "--cell", "1").code == 0


def test_several_jobs(g10sim, config):
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB", "count": 2}}
    jobs = [{"trace": "chain.g10t", "gpu": 1}, {"trace": "chain.g10t"}]
    assert (
        g10sim(
            "run", config(record=RECORD, system=system, workload={"jobs": jobs}, policies=["base_uvm"])
        ).code
        == 0
    )
    assert "Cell 0, job 0: chain8" in g10sim("explain", "out").out
    assert "Cell 0, job 1: chain8" in g10sim("explain", "out", "--job", "1", BRIEF).out
    assert "Kernel 3 (" in g10sim("explain", "out", "--job", "1", "--kernel", "3").out
    refused = g10sim("explain", "out", "--job", "2")
    assert (refused.code, refused.err) == (
        2,
        "error: job 2: found no such job in cell 0; allowed: 0 to 1\n",
    )


class TestBadInput:
    def refused(self, ended, *words):
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert ended.err.startswith("error: ")
        for word in words:
            assert word in ended.err

    def test_no_results(self, g10sim):
        self.refused(
            g10sim("explain", "nowhere"), "nowhere/results.csv", "allowed: a directory written by 'run'"
        )

    def test_no_cell(self, explained, g10sim):
        self.refused(explained(), "cell: found none; allowed: one of those that ran, 0, 1, 2")
        self.refused(g10sim("explain", "out", "--cell", "9"), "cell 9: found no such cell")

    def test_a_trace_that_has_changed(self, explained, g10sim):
        explained("--cell", "1", BRIEF)
        save_trace(chain(9), Path("chain.g10t"))
        self.refused(g10sim("explain", "out", "--cell", "1"), "chain.g10t: has changed since the run")

    def test_provenance_that_is_damaged(self, explained, g10sim):
        explained("--cell", "1", BRIEF)
        Path("out/provenance.json").write_text(json.dumps([]))
        self.refused(g10sim("explain", "out", "--cell", "1"), "provenance.json", "allowed: ")


def test_a_cell_that_is_not_steady_says_so(explained):
    words = "Not steady: the last of 2 iterations, the next may differ"
    assert words not in explained("--cell", "1", BRIEF).out
    assert words in explained("--cell", "1", BRIEF, workload={"trace": "chain.g10t", "iterations": 2}).out
    assert (
        "Not steady"
        not in explained("--cell", "1", BRIEF, workload={"trace": "chain.g10t", "iterations": 1}).out
    )


def test_cells_on_machines_with_different_tiers_are_explained(g10sim, config):
    cxl = {"name": "cxl", "kind": "memory", "capacity": "20 MiB"}
    tiers = [["ssd"], [cxl], ["host", "ssd"]]
    g10sim("run", config(policies=["base_uvm"], sweep={"system.tiers": tiers}))
    for cell, (there, away) in enumerate([("the SSD", "cxl"), ("cxl", "the SSD")]):
        ended = g10sim("explain", "out", "--cell", cell, "--no-what-if")
        assert ended.code == 0
        assert there in ended.out
        assert away not in ended.out
    assert g10sim("report", "out").code == 0
