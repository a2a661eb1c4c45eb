import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from g10sim.results.reading import read_results
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

HOSTILE = '<script>alert("1")</script>$x^$&amp;\'{{ 7 * 7 }}'

PLUGIN = """\
from g10sim.errors import UnsupportedError
from g10sim.policies.interface import Policy
class Cannot(Policy):
    name = "cannot"
    def plan_job(self, job, system, behaviour):
        raise UnsupportedError("<img src=x onerror=alert(2)> is too big")
"""


class Page(HTMLParser):
    """Reading of a file as a browser does: elements with their attributes, and text."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.text, self._table = [], "", None
        self.tables = []
        self.feed(Path(path).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag != "wbr":
            self._in_cell = tag in ("td", "th")

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data):
        self.text += data
        if getattr(self, "_in_cell", False):
            self.tables[-1][-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def check_self_contained(page):
    assert {tag for tag, _ in page.elements} <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "li", "div", "pre"),
        *(
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "details",
            "summary",
            "script",
            "span",
            "code",
            "a",
            "wbr",
        ),
    }
    for _, attributes in page.elements:
        assert not {"src", "srcset", "style"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert all(re.fullmatch(r"timeline/\d+\.json\.gz", link["href"]) for link in page.all("a"))
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policy.startswith(
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-"
    )
    scripts = policy.partition("script-src ")[2].split()
    assert len(scripts) == 2  # of these texts and no others
    assert all(re.fullmatch(r"'sha256-[\w+/]{43}='", script) for script in scripts)


@pytest.mark.slow
def test_a_report(g10sim, config):
    name = config(
        record=["kernels", "migrations", "timeline"], sweep={"system.host.memory": ["0 B", "4 MiB"]}
    )
    assert g10sim("run", name).code == 0
    ended = g10sim("report", "out")
    assert (ended.code, ended.err, ended.out) == (0, "", "out/report.html\n")
    page = Page("out/report.html")
    check_self_contained(page)
    assert "6 of 6 cells ran; simulating took" in page.text
    results, (head, *rows) = read_results("out"), page.tables[0]
    assert head[:6] == ["cell", "trace", "policy", "system.host.memory (MiB)", "steady", "time (ms)"]
    assert [row[0] for row in rows] == [str(cell) for cell in range(6)]
    for row, (_, result) in zip(rows, results.iterrows(), strict=True):
        assert row[head.index("of ideal")] == f"{result['performance']:.1%}"
        assert row[head.index("time (ms)")] == f"{result['exec_ms']:,.1f}"
    shares = page.tables[1]
    for row in shares[1:]:
        parts = [float(value.rstrip("%")) for value in row if value.endswith("%")]
        assert sum(parts) == pytest.approx(100, abs=0.05 * len(parts))
    assert re.search(
        r"cell 4: chain\.g10t, Base UVM, system\.host\.memory = 4 MiB: [\d.]+% of ideal", page.text
    )
    assert "Tensors that kernels waited for" in page.text
    assert "Nothing can bring more than" in page.text
    assert [link["href"] for link in page.all("a")] == [f"timeline/{cell}.json.gz" for cell in range(6)]
    assert len(page.all("details")) == 6 + 3  # cells; configuration, provenance and traces are folded
    assert "record:\n- kernels\n- migrations\n- timeline" in page.text
    assert Path("out/report.html").stat().st_size < 3_000_000
    assert any("chain.g10t" in row[1] and len(row[2]) == 64 for row in page.tables[-1][1:])


@pytest.mark.slow
def test_the_same_results_give_the_same_report(g10sim, config):
    g10sim("run", config())
    g10sim("report", "out", "-o", "one.html")
    g10sim("report", "out", "-o", "two.html")
    assert Path("one.html").read_bytes() == Path("two.html").read_bytes()


@pytest.mark.slow
def test_hostile_names_are_text(g10sim, config, here):
    trace = replace(chain(8), model=HOSTILE)
    path = here / '<b onclick="x">.g10t'
    save_trace(trace, path)
    (here / "plugin.py").write_text(PLUGIN)
    name = config(
        name=HOSTILE, workload={"trace": path.name}, policies=["base_uvm", "plugin:Cannot"], record=["memory"]
    )
    assert g10sim("run", name).code == 0
    assert g10sim("report", "out").code == 0
    page = Page("out/report.html")
    check_self_contained(page)
    assert page.text.count(HOSTILE) >= 2  # title and heading
    assert '<b onclick="x">.g10t' in page.text
    assert "unsupported: <img src=x onerror=alert(2)> is too big" in page.text
    assert "1 of 2 cells ran; 1 unsupported" in page.text
    assert "<script>alert" not in Path("out/report.html").read_text()


def test_without_the_trace_there_are_no_words(g10sim, config):
    assert g10sim("run", config()).code == 0
    save_trace(chain(9), "chain.g10t")
    assert g10sim("report", "out").code == 0
    page = Page("out/report.html")
    assert "No words on further cells: " in page.text
    assert "chain.g10t: has changed since the run" in page.text
    assert len(page.tables[0]) == 4


def test_traces_of_one_name_are_told_apart_by_their_directories(g10sim, config, here):
    names = ["one/chain.g10t", "two/chain.g10t"]
    for name, size in zip(names, (8, 9), strict=True):
        (here / name).parent.mkdir()
        save_trace(chain(size), here / name)
    assert g10sim("run", config(workload={"trace": names}, policies=["base_uvm"])).code == 0
    assert g10sim("report", "out").code == 0
    results, shares = Page("out/report.html").tables[:2]
    assert [row[1] for row in results[1:]] == [row[1] for row in shares[1:]] == names


def test_jobs_have_words_of_their_own(g10sim, config):
    jobs = [{"trace": "chain.g10t", "iterations": 2}] * 2
    assert g10sim("run", config(workload={"jobs": jobs}, policies=["base_uvm"])).code == 0
    assert g10sim("report", "out").code == 0
    text = Page("out/report.html").text
    assert "Cell 0, job 0: chain8" in text
    assert "Cell 0, job 1: chain8" in text


def test_failed_cells_only(g10sim, config, here):
    (here / "plugin.py").write_text(PLUGIN.replace("UnsupportedError(", "KeyError("))
    assert g10sim("run", config(policies=["plugin:Cannot"])).code == 1
    assert g10sim("report", "out").code == 0
    page = Page("out/report.html")
    assert "0 of 1 cells ran; 1 failed" in page.text
    assert "cell 0 (chain.g10t, Cannot): failed: " in page.text


@pytest.mark.parametrize("output", ["out/missing/report.html", "out"])
def test_files_that_cannot_be_written(g10sim, config, output):
    g10sim("run", config())
    ended = g10sim("report", "out", "-o", output)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert f"{output}: cannot be written" in ended.err


def test_no_results(g10sim):
    ended = g10sim("report", "nowhere")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "allowed: a directory written by 'run'" in ended.err


@pytest.mark.slow
def test_a_report_says_what_is_not_steady(g10sim, config):
    for iterations, memory, verdicts in (
        (2, "6500 KiB", ["yes", "no", "no"]),
        (4, "64 MiB", None),
        (1, "6500 KiB", None),
    ):
        system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": memory}, "host": {"memory": "4 MiB"}}
        g10sim("run", config(workload={"trace": "chain.g10t", "iterations": iterations}, system=system))
        g10sim("report", "out")
        head, *rows = Page("out/report.html").tables[0]
        assert ("steady" in head) == (verdicts is not None)
        assert verdicts is None or [row[head.index("steady")] for row in rows] == verdicts
