"""Pages that are made from data say what the data say."""

import re
import shutil
from dataclasses import fields
from inspect import getmembers, isfunction
from pathlib import Path

import pandas as pd
import pytest

import g10sim
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.document import Document, load_document
from g10sim.config.load import run_config
from g10sim.experiment.run import run_experiment
from g10sim.policies.checks import CHECKS
from g10sim.policies.interface.contract import registered_moves
from g10sim.policies.interface.moves import Fetch
from g10sim.policies.interface.policy import Policy, PolicyView, Requirements
from g10sim.policies.interface.registry import available
from g10sim.records import StallReason
from g10sim.reproduce.claims import load_claims
from g10sim.results.columns import FURTHER, JOBS, metric_columns
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

ROOT = Path(__file__).parents[2]
FAMILIES = tuple(sorted(path.name for path in (ROOT / "docs").glob("policies*.md")))
POLICY_PAGES = (*FAMILIES, "vdnn.md", "tensile.md", "pools.md", "multi-gpu.md")
COLUMNS = (
    "figure", "metric", "model", "batch", "policy", "host_gb", "ssd_gbps", "pcie_gbps", "variation", "value",
    "plan", "simulated", "relative_error", "status",
)  # fmt: skip


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_keys_of_the_configuration_are_documented_as_they_are(generate, tmp_path):
    generate("configuration", "-o", tmp_path / "page.md")
    current = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert current == page("configuration.md"), "outdated: python docs/generate configuration"


def test_the_commands_are_documented_as_they_are(generate, tmp_path):
    generate("commands", "-o", tmp_path / "page.md")
    current = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert current == page("commands.md"), "outdated: python docs/generate commands"


def test_every_claim_of_the_list_is_on_its_page():
    text = page("claims.md")
    for claim in load_claims().claims:
        assert f"## {claim.system}: {claim.says}" in text, (
            "outdated: g10sim claims, python docs/generate claims"
        )
        assert claim.source in text


def test_the_page_of_claims_says_what_was_measured(generate, tmp_path):
    claim = {"claim": "one", "system": "Made up", "data": "bundled", "published": 0.5, "unit": "percent"}
    words = {"source": "A paper", "says": "half", "means": "of all", "experiment": "small", "lacks": "a link"}
    measured = {"value": 0.25, "verdict": "not reproduced", "low": 0.4, "high": 0.6, "breakdown": "one: all"}
    pd.DataFrame([claim | words | measured]).to_csv(tmp_path / "claims.csv", index=False)
    cases = [{"case": f"c{number}", "tested": "", "value": number / 100} for number in range(20)]
    cases[0]["note"] = "waits"
    cases.append({"case": "", "tested": "with a link", "value": 0.5})
    pd.DataFrame([claim | case for case in cases]).to_csv(tmp_path / "cases.csv", index=False)
    generate("claims", tmp_path, "-o", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    for line in (
        "Of 1 measurements: 1 not reproduced.",
        "| Made up | half | bundled | 50.0% | 25.0% | not reproduced |",
        "here **25.0%** with bundled traces: **not reproduced** (40.0% to 60.0% count as reproduced).",
        "Missing: a link.",
        "lowest and highest): `c0` 0.0%, `c1` 1.0%, `c2` 2.0%, `c17` 17.0%, `c18` 18.0%, `c19` 19.0%.",
        "| with a link | 50.0% |",
        "- c0: waits.",
    ):
        assert line in text


def test_the_front_page_says_what_the_page_of_claims_says(generate, tmp_path):
    generate("claims-lines", "-o", tmp_path / "README.md")
    current = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert current == page("../README.md"), "outdated: python docs/generate claims-lines"
    lines = current.partition("<!-- claims -->")[2].partition("<!-- end of claims -->")[0].strip()
    assert len(lines.splitlines()) == 5


def test_the_page_of_measured_machines_says_what_was_simulated(generate, tmp_path):
    row = {"class": "paging", "measured": 100, "unit": "ms", "source": "A book", "machine": "GPU"}
    near = {"row": "one", "used": "predicted", "says": "near", "predicted": 110.0, "ratio": 1.1}
    far = {"row": "two", "used": "fitted", "says": "far", "predicted": 50.0, "ratio": 0.5, "cause": "a | b"}
    lost = {"row": "three", "used": "predicted", "says": "lost", "message": "too big"}
    pd.DataFrame([row | one for one in (near, far, lost)]).to_csv(tmp_path / "measured.csv", index=False)
    names = ("median", "low", "high", "off", "factor", "worst")
    figures = dict.fromkeys(names, 1.1) | {"rows": 1, "near": 1}
    summary = [{"class": "all", "used": "predicted"} | figures]
    pd.DataFrame(summary).to_csv(tmp_path / "summary.csv", index=False)
    widths = "faults: [0.5, 1.5]\nsources:\n  faults: 3 rows\n"
    (tmp_path / "uncertainty.yaml").write_text(widths)
    uncertain(tmp_path / "order")
    long = tmp_path / "long"
    long.mkdir()
    pd.DataFrame([row | near | {"class": "training", "says": "slow"}]).to_csv(
        long / "measured.csv", index=False
    )
    more = [one | {"class": name, "rows": 7} for one in summary for name in ("training", "all")]
    pd.DataFrame(more).to_csv(long / "summary.csv", index=False)
    generate("measured", tmp_path, "-o", tmp_path / "page.md", "--long", long, "--order", tmp_path / "order")
    generate("widths", tmp_path, "-o", tmp_path / "widths.yaml")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    for line in (
        "| all | predicted | 1 | 1.10 | 1.10 | 1.10 | 1.10 | 1.10 | 100% | 1.10x |",
        "| faults | 3 rows | 0.50 | 1.50 |",
        "- chain, 5 cases: Ideal before Base UVM in all.",
        "## Paging",
        "| near | GPU |  | 100 ms | 110 ms | 1.10 |",
        "| far | GPU | fitted | 100 ms | 50 ms | 0.50 |",
        "| lost | GPU |  | 100 ms | too big |  |",
        "- far, GPU: a. B.",
        "| training | predicted | 7 | 1.10 | 1.10 | 1.10 | 1.10 | 1.10 | 100% | 1.10x |",
        "| slow | GPU |  | 100 ms | 110 ms | 1.10 |",
        "- A book",
    ):
        assert line in text
    assert "| all | predicted | 7 |" not in text
    assert (tmp_path / "widths.yaml").read_text() == widths


def uncertain(directory):
    """Simulate a small trace with an uncertainty."""
    directory.mkdir()
    save_trace(chain(8), directory / "chain.g10t")
    system = {"preset": "a100-80g-pcie4-nvme", "gpu": {"memory": "7 MiB", "context_memory": "0 B"}}
    run = {"name": "run", "workload": {"trace": str(directory / "chain.g10t"), "iterations": 1}}
    run |= {"system": system, "policies": ["ideal", "base_uvm"], "uncertainty": {"draws": 0}}
    run_experiment(Document(run, "test"), output=directory)


def test_the_page_of_measured_machines_has_the_widths_and_orders_of_its_results():
    rows = page("measured.md").splitlines()
    spec = run_config(load_document(ROOT / "configs" / "uncertain_order.yaml")).uncertainty
    for part, source in spec.sources.items():
        low, high = getattr(spec, part)
        assert f"| {part} | {source} | {low:.2f} | {high:.2f} |" in rows, (
            "outdated: python docs/generate measured"
        )
    (order,) = [row for row in rows if row.startswith("- resnet50-a100-80g-tf32-b256, 9 cases: ")]
    assert "G10 before DeepUM+ in all" in order
    assert re.search(r"before Capuchin in \d of 9", order)


def test_the_front_page_says_what_the_page_of_measured_machines_says(generate, tmp_path):
    generate("measured-line", "-o", tmp_path / "README.md")
    current = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert current == page("../README.md"), "outdated: python docs/generate measured-line"


def test_the_front_page_lists_every_design(generate, tmp_path):
    generate("front-page", "-o", tmp_path / "README.md")
    current = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert current == page("../README.md"), "outdated: python docs/generate front-page"
    for name, policy in available().items():
        assert f"| {policy.label} | [`{name}`](g10sim/policies/" in current


def test_doubts_are_those_of_the_page_of_measured_machines():
    text = " ".join(page("when-not-to-trust.md").split())
    lines = [line.strip("| ").split(" | ") for line in page("measured.md").splitlines()]
    rows = {line[0]: line for line in lines if line[1:2] == ["predicted"]}
    *_, off, _, near, _ = rows["paging"]
    assert f"Paging.** The median prediction is off by a factor of {off}, and {near} are within 1.25" in text
    for place in ("Weights in host memory", "Weights on drives"):
        *_, off, _, _, worst = rows[place.lower()]
        found = (
            f"The median prediction is off by a factor of {off}, and the worst one by {worst.rstrip('x')}."
        )
        assert f"{place}.** {found}" in text


def test_the_table_of_executed_steps_is_current(generate, tmp_path):
    (tmp_path / "page.md").write_text(page("executing-plans.md"), encoding="utf-8")
    generate("executed", "-o", tmp_path / "page.md")
    current = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert current == page("executing-plans.md"), "outdated: python docs/generate executed"


def test_the_table_of_moves_is_current(generate, tmp_path):
    (tmp_path / "page.md").write_text(page("policy-interface.md"), encoding="utf-8")
    generate("moves", "-o", tmp_path / "page.md")
    current = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert current == page("policy-interface.md"), "outdated: python docs/generate moves"
    assert current.count("| refused |") >= 4


@pytest.mark.slow
def test_the_parameters_of_policies_are_documented_as_they_are(generate, tmp_path):
    for name in FAMILIES:
        shutil.copy(ROOT / "docs" / name, tmp_path)
    generate("parameters", tmp_path)
    current = {name: (tmp_path / name).read_text(encoding="utf-8") for name in FAMILIES}
    assert current == {name: page(name) for name in FAMILIES}, "outdated: python docs/generate parameters"
    declared = [name for name, policy in available().items() if policy.parameter_names()]
    text = "".join(current.values())
    assert [name for name in declared if f"<!-- parameters of {name} -->" not in text] == []


def row(policy, error, plan="", status="ok", batch=8):
    row = ["fig15", "exec_cycles", "Net", batch, policy, 128, 3.2, 15.754, 0.0, 987654, plan, 987655, error]
    return dict(zip(COLUMNS, [*row, status], strict=True))


def test_the_page_of_the_validation_sums_up(generate, tmp_path):
    rows = [
        row("ideal", 0.0),
        row("ideal", 0.0, batch=16),
        row("one", -0.0125, "own"),
        row("one", 0.0, "own", batch=16),
        row("one", "", "own", "unsupported: too big", batch=32),
        row("two", "inf", batch=32),
        row("two", "", "", "skipped: there is no policy 'two'", batch=64),
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "validation.csv", index=False)
    generate("validation", tmp_path, "-o", tmp_path / "page.md")
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    assert "| figure 15 | ideal |  | 2 of 2 | 0 | 0 | 0 | 0 |  |  |" in lines
    assert "| figure 15 | one | own | 2 of 3 | 0 | 1.12% | -1.25% | 0 |  |  |" in lines
    assert "| figure 15 | two |  | 0 of 1 |  |  |  |  | 1 | 1 |" in lines
    assert "- 1 rows skipped: there is no policy 'two'" in lines
    assert "| Net | 8 | 0 | -1.25% |  |" in lines
    assert "| Net | 32 |  | both unsupported | support differs |" in lines
    assert not [line for line in lines if "98765" in line], "published values are not to be repeated"


def test_the_tables_of_columns_are_current(generate, tmp_path):
    (tmp_path / "page.md").write_text(page("results.md"), encoding="utf-8")
    generate("columns", "-o", tmp_path / "page.md")
    current = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert current == page("results.md"), "outdated: python docs/generate columns"
    names = [*metric_columns(), *(name for group in (*FURTHER.values(), JOBS) for name in group.names)]
    assert [name for name in names if current.count(f"| `{name}` |") != 1] == []


def test_every_reason_of_stalls_is_explained():
    reasons = [*StallReason.of_tiers([]), StallReason.CPU]
    assert [reason for reason in reasons if f"| `{reason}` |" not in page("reading-stalls.md")] == []


def test_every_policy_is_described_where_the_index_says():
    rows = re.findall(r"^\| \[`(\w+)`\]\(([\w.-]*)#(\w+)\) \|", page("policies.md"), re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == list(available())
    for name, where, anchor in rows:
        assert name == anchor
        assert re.search(rf"^###? `{name}`$", page(where or "policies.md"), re.MULTILINE), name


@pytest.mark.parametrize("name", available())
def test_every_parameter_of_a_policy_is_described(name):
    text = "\n".join(page(part) for part in POLICY_PAGES)
    parameters = available()[name].parameter_names()
    assert [one for one in parameters if not re.search(rf"\b{one}\b", text)] == []


def test_every_deviation_has_a_number_and_a_parameter():
    lines = [line.split(" | ") for line in page("deviations.md").splitlines() if re.match(r"\| \d", line)]
    assert [int(line[0].strip("| ")) for line in lines] == list(range(1, len(lines) + 1))
    parameters = {line[-1].strip("` |") for line in lines}
    assert set(BehaviourSpec.model_fields) <= parameters


def ordering_row(policy, performance, host, stalls=0):
    names = ("model", "batch_size", "system.host.memory", "policy", "performance", "oversubscription")
    cycles = {"ideal_cycles": 600, "exec_cycles": 600 / performance, "of_bound": 1.25 * performance}
    numbers = cycles | {"stall_cycles": stalls, "stall_eviction_cycles": stalls}
    row = dict(zip(names, ("Net", 8, host, policy, performance, 2.0), strict=True))
    always = {"cell": 0, "trace": "net.g10t", "status": "ok"}
    return always | row | numbers | {"ssd_to_gpu_bytes": 12_300_000_000}


def test_the_page_of_the_order_lists_its_exceptions_with_their_stalls(generate, tmp_path):
    good = {"ideal": 1.0, "base_uvm": 0.4, "deepum": 0.6, "g10": 0.9, "g10_paced": 0.9}
    bad = {"ideal": 1.0, "base_uvm": 0.3, "deepum": 0.9, "g10": 0.6, "g10_paced": 0.95}
    rows = [ordering_row(policy, value, "64 GiB") for policy, value in good.items()]
    rows += [ordering_row(policy, value, "0 GiB", 250) for policy, value in bad.items()]
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    generate("ordering", tmp_path, "-o", tmp_path / "page.md")
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    assert "The order holds in 1 of 2 cells, and with G10 paced in place of G10 in 2." in lines
    assert "| Net | 8 | 64 GiB | 40.00% | 60.00% | 90.00% | 90.00% |  |" in lines
    assert "| Net | 8 | 0 GiB | 30.00% | 90.00% | 60.00% | 95.00% | no |" in lines
    assert "| 0 GiB | 3.00 | 2.00 | 3.17 | 2.67 | 3.33 | 1 of 1 | 3.00 |" in lines
    assert "| 64 GiB | 1.50 | 2.25 | 2.25 | 2.00 | 2.50 | 0 of 1 |  |" in lines
    assert "| Net | 8 | 0 GiB | g10 | 60.0000% | 25.0% | 12.3 |" in lines
    assert not any(line.startswith("| Net | 8 | 64 GiB | g10") for line in lines)


def test_the_page_of_rates_compares_with_the_specification_on_the_left(generate, tmp_path):
    found = {"h100-80g-pcie5-spec": 0.8, "h100-80g-pcie5-nvme": 0.6, "gh200-96g-nvlink-c2c-spec": 0.9}
    names = {"cell": 0, "trace": "net.g10t", "status": "ok", "model": "Net", "batch_size": 8, "policy": "g10"}
    rows = [{**names, "system.preset": preset, "performance": share} for preset, share in found.items()]
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    generate("rates", tmp_path, "-o", tmp_path / "page.md")
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    assert "| `h100-80g-pcie5-spec` | specification | 63.015 | 63.015 |  |  |" in lines
    assert "| `h100-80g-pcie5-nvme` | measured | 53.1 | 50.2 | 83.4 | 3.4 us |" in lines
    assert "| Net | 8 | g10 | 80.0% | 60.0% (-25.0%) | 90.0% |" in lines


def test_every_check_of_policies_and_everything_they_may_do_is_described():
    text = page("policy-interface.md")
    assert [check.name for check in CHECKS if f"| `{check.name}` | {check.rule} |" not in text] == []
    methods = [name for name, _ in getmembers(Policy, isfunction) if not name.startswith("_")]
    assert [name for name in methods if name != "parameters" and f"| `{name}(" not in text] == []
    built_in = [move.__name__ for move in registered_moves().values() if move.__module__ == Fetch.__module__]
    assert [name for name in built_in if f"| `{name}(" not in text] == []
    assert [field.name for field in fields(Requirements) if f"`{field.name}`" not in text] == []
    questions = [name for name in vars(PolicyView) if not name.startswith("_")]
    assert [name for name in questions if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_the_tables_of_distances_to_the_bound_are_those_of_results(generate, tmp_path):
    chosen = {
        "workload.trace": "traces/bert-base-b256-s128.g10t",
        "workload.iterations": "2",
        "system.gpu.memory": "20 GiB",
        "policies": "[g10, pressure]",
        "sweep.system.host.memory": "[32 GiB]",
    }
    settings = [f"{key}={value}" for key, value in chosen.items()]
    g10sim.run(ROOT / "experiments" / "bound.yaml", output=tmp_path / "bound", settings=settings)
    (tmp_path / "page.md").write_text(
        "<!-- distances -->\nold\n<!-- end of distances -->\n", encoding="utf-8"
    )
    generate("distances", tmp_path / "bound", "-o", tmp_path / "page.md")
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    table = pd.read_csv(tmp_path / "bound" / "results.csv").set_index("policy")
    ratio = table.performance["pressure"] / table.performance["g10"]
    assert "| `g10` | 1.000 | 1.000 (bert-base-b256-s128) |" in lines
    assert f"| `pressure` | {ratio:.3f} | {ratio:.3f} (bert-base-b256-s128) |" in lines
    assert "old" not in lines
    assert (tmp_path / "images" / "bound.png").is_file()
