"""``g10sim size`` on two kernels that take turns with two weights of 4 MiB, on a GPU with pages of 1 MiB.

With room for g MiB on the GPU, each kernel evicts 8 - g MiB and then fetches as many, one after the other.
"""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from g10sim import plots
from g10sim.config.load import load_run
from g10sim.config.presets import load_system
from g10sim.experiment.run import run_experiment
from g10sim.sizing.resources import DEFAULT_PRICES, RESOURCES, load_prices
from g10sim.trace.format import save_trace
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder, chain

MIB, GB = 2**20, 10**9
KERNEL = 10_000_000
SYSTEM = {
    "preset": "a100-40g-pcie3-znand",
    "gpu": {"memory": "4 MiB", "page_size": "1 MiB", "clock": "1 GHz", "allocation_rate": "1000 TB/s"},
    "host": {"memory": "64 MiB"},
    "pcie": {"bandwidth": "3 GB/s"},
    "ssd": {"read_bandwidth": "2 MB/s", "write_bandwidth": "1 MB/s", "latency": "0 s"},
    "page_fault": {"latency": "0 s"},
}
NO_HOST = {"host": {"memory": "0 B"}, "pcie": {"bandwidth": "1 TB/s"}}
TARGETS = {"gpu-memory": 0.9, "host-memory": 0.7, "link": 0.8, "ssd": 0.8}
EXACT = {
    # 4 (8 - g) MiB of traffic at 3 GB/s may take 2.2 of 20 ms: g = 7.
    "gpu-memory": (7 * MIB, 7 * MIB),
    # The 4 MiB that the GPU has no room for; any page on the SSD takes a second.
    "host-memory": (4 * MIB, 4 * MIB),
    # 16 MiB of traffic may take 5 ms.
    "link": (16 * MIB * 200, 16 * MIB * 200 * 1.02),
    # 8 MiB in, and 8 MiB out at half the rate, may take 5 ms together.
    "ssd": (24 * MIB * 200, 24 * MIB * 200 * 1.02),
}
"""Least amounts that reach the targets, and the most that a precision of 2 % allows."""


@pytest.fixture
def config(here):
    """Writes ``run.yaml`` with changes."""
    builder = TraceBuilder("turns")
    for number in range(2):
        weight = builder.tensor(f"weight{number}", 4 * MIB, TensorKind.WEIGHT, persistent=True)
        builder.kernel(f"kernel{number}", KERNEL, [weight], [])
    save_trace(builder.build(), here / "turns.g10t")

    def write(system=None, workload=None, **changes):
        data = {
            "name": "turns",
            "workload": {"trace": "turns.g10t", "iterations": 2, **(workload or {})},
            "system": {**SYSTEM, **(system or {})},
            "policies": ["base_uvm"],
        }
        (here / "run.yaml").write_text(yaml.safe_dump({**data, **changes}, sort_keys=False))
        return "run.yaml"

    return write


def rows(directory):
    return pd.read_csv(directory / "sizing.csv").to_dict("records")


def described(directory):
    return json.loads((directory / "sizing.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("resource", RESOURCES)
def test_the_least_amount_is_the_one_worked_out_by_hand(g10sim, here, config, resource):
    file = config(NO_HOST if resource == "ssd" else None)
    target = TARGETS[resource]
    ended = g10sim("size", file, "--target", target, "--resource", resource, "-o", "out")
    assert ended.code == 0, ended.err
    (row,) = rows(here / "out")
    least, most = EXACT[resource]
    assert least <= row["answer_amount"] <= most
    assert row["answer"] in ended.out
    assert row["performance"] >= target
    # Both were simulated, and so says a run of just these cells.
    assert row["holds"]
    assert row["below_performance"] < target <= row["above_performance"]
    found = RESOURCES[resource]
    system = load_system(yaml.safe_load(Path(file).read_text())["system"])
    amounts = [row["answer_amount"], *(found.quantity.parse(row[side]) for side in ("below", "above"))]
    ((key, values),) = found.sweep(system, amounts).items()
    document = load_run(Path(file))
    document.data["sweep"] = {key: values}
    again = run_experiment(document, output=here / "again")
    simulated = [one["performance"] for one in again.rows]
    assert simulated == [row[f"{side}performance"] for side in ("", "below_", "above_")]
    # What was searched is a configuration; all of its cells are stored.
    whole = g10sim("run", f"out/{resource}/config.yaml", "-o", "out")
    assert f"{row['amounts']} cells, {row['amounts']} of them from an earlier run" in whole.out
    assert (here / "out/results.csv").read_bytes() == (here / "out" / resource / "results.csv").read_bytes()
    assert amounts[1] == pytest.approx(0.9 * amounts[0], abs=found.grain(system))
    assert amounts[2] == pytest.approx(1.1 * amounts[0], abs=found.grain(system))


def test_memory_that_contexts_take_is_needed_too(g10sim, here):
    save_trace(chain(4), here / "chain.g10t")
    (here / "run.yaml").write_text(
        "workload: {trace: chain.g10t}\nsystem: {preset: a100-40g-pcie3-znand}\npolicies: [base_uvm]\n"
    )
    context = load_system("a100-40g-pcie3-znand").gpu.beside_tensors
    ended = g10sim("size", "run.yaml", "--target", 0.5, "--resource", "gpu-memory", "-o", "out")
    assert ended.code == 0, ended.err
    (row,) = rows(here / "out")
    assert context < row["answer_amount"] < 2 * context


def test_a_rate_of_writes_is_scaled_with_that_of_reads():
    system = load_system({**SYSTEM, "ssd": {"read_bandwidth": "2 GB/s", "write_bandwidth": "500 MB/s"}})
    changed = RESOURCES["ssd"].changed(system, 5 * GB).ssd
    assert (changed.read_bandwidth, changed.write_bandwidth) == (5 * GB, 1_250_000_000)
    assert RESOURCES["ssd"].changed(system, 2 * GB) == system


@pytest.mark.slow
def test_what_the_bound_forbids_is_not_simulated(g10sim, here, config, monkeypatch):
    save_trace(chain(12, activation_bytes=1 << 26), here / "turns.g10t")
    memory = {"gpu": {"memory": "512 MiB"}, "host": {"memory": "64 GiB"}}
    monkeypatch.setattr("g10sim.experiment.workers.LocalProcesses.run", nothing_is_simulated)
    file = config({"preset": SYSTEM["preset"], **memory, "pcie": {}, "ssd": {}, "page_fault": {}})
    options = ("--target", 0.9, "--resource", "host-memory", "--resource", "ssd", "-o", "out")
    ended = g10sim("size", file, *options)
    assert ended.code == 0, ended.err
    bound = g10sim("bound", "turns.g10t", "--system", write_system(here, memory))
    short = next(line.split()[-1] for line in bound.out.splitlines() if "due to" in line)
    for row in rows(here / "out"):
        assert row["status"] == "forbidden"
        assert row["amounts"] == 0
        assert row["best_performance"] < 0.9
        assert f"{row['best_performance']:.4f} of ideal" in row["reason"]
        assert short.rstrip(".") in row["reason"]
    assert not list((here / "out").rglob("results.csv"))
    assert "forbidden" in ended.out


def write_system(here, changes):
    system = load_system({"preset": SYSTEM["preset"], **changes})
    (here / "system.yaml").write_text(yaml.safe_dump(system.model_dump(mode="json")))
    return "system.yaml"


@pytest.mark.nightly
def test_amounts_below_the_bound_are_not_searched(g10sim, here, config):
    save_trace(chain(12, activation_bytes=1 << 22), here / "turns.g10t")
    gpu = {**SYSTEM["gpu"], "memory": "48 MiB", "page_size": "4 KiB"}
    file = config({"gpu": gpu})
    options = ("--target", 0.9, "--resource", "link", "--precision", 0.1)
    ended = g10sim("size", file, *options, "-o", "out")
    assert ended.code == 0, ended.err
    (row,) = rows(here / "out")
    curve = pd.read_csv(here / "out" / "curves.csv")
    forbidden = curve[(curve["best_performance"] < 0.9) & curve["status"].notna()]
    # Only what is simulated around the answer, and the machine as configured.
    multiples = {round(amount * GB / row["answer_amount"], 2) for amount in forbidden["amount"]}
    configured = round(3 * GB / row["answer_amount"], 2)
    assert multiples <= {0.25, 0.5, 0.75, 0.9, configured}
    assert (curve["performance"].dropna() <= curve["best_performance"][curve["performance"].notna()]).all()


@pytest.mark.slow
def test_the_number_of_workers_changes_no_byte_and_repeating_costs_nothing(g10sim, here, config, monkeypatch):
    file = config(policies=["ideal", "base_uvm", "deepum"])
    arguments = ("size", file, "--target", 0.8, "--resource", "gpu-memory", "--precision", 0.1)
    for workers, directory in ((1, "one"), (3, "three")):
        assert g10sim(*arguments, "-o", directory, "-j", workers).code == 0
    for name in ("sizing.csv", "curves.csv", "sizing.json", "figures/knee.png", "gpu-memory-1/results.csv"):
        assert (here / "one" / name).read_bytes() == (here / "three" / name).read_bytes(), name
    before = (here / "one" / "sizing.json").read_bytes()
    monkeypatch.setattr("g10sim.experiment.workers.LocalProcesses.run", nothing_is_simulated)
    assert g10sim(*arguments, "-o", "one").code == 0
    assert (here / "one" / "sizing.json").read_bytes() == before
    # Policies are sized one by one; the ideal one is not.
    assert {row["policy"] for row in rows(here / "one")} == {"base_uvm", "deepum"}


def nothing_is_simulated(self, tasks):
    assert not tasks
    yield from ()


@pytest.mark.nightly
def test_each_combination_of_a_sweep_is_a_case(g10sim, here, config):
    file = config(sweep={"system.gpu.memory": ["4 MiB", "7 MiB"]})
    g10sim("size", file, "--target", 0.9, "--resource", "link", "--precision", 0.1, "-o", "out")
    found = {row["system.gpu.memory"]: row for row in rows(here / "out")}
    # 16 and 4 MiB of traffic may take 2.2 of 20 ms.
    for memory, traffic in (("4 MiB", 16 * MIB), ("7 MiB", 4 * MIB)):
        least = traffic / (2 * KERNEL / GB / 9)
        assert least <= found[memory]["answer_amount"] <= 1.12 * least


@pytest.mark.nightly
def test_the_performance_of_several_seeds_is_their_mean(g10sim, here, config):
    file = config(workload={"variation": {"magnitude": 0.2}}, seed=[0, 1])
    arguments = ("--target", 0.7, "--resource", "host-memory", "--precision", 0.1, "-o", "out")
    ended = g10sim("size", file, *arguments)
    assert ended.code == 0, ended.err
    (row,) = rows(here / "out")
    assert row["answer_amount"] == 4 * MIB
    simulated = pd.read_csv(here / "out" / "host-memory" / "results.csv")
    alike = simulated[simulated["system.host.memory"] == row["answer"]]
    assert list(alike["seed"]) == [0, 1]
    assert alike["performance"].nunique() == 2
    assert row["performance"] == pytest.approx(alike["performance"].mean())


@pytest.mark.slow
def test_a_machine_that_can_run_nothing(g10sim, here, config):
    file = config({"gpu": {**SYSTEM["gpu"], "memory": "3 MiB"}})
    ended = g10sim("size", file, "--target", 0.7, "--resource", "link", "-o", "out")
    assert ended.code == 0, ended.err
    (row,) = rows(here / "out")
    assert row["status"] == "forbidden"
    assert "of ideal: a kernel has a working set of 4 MiB; allowed: at most the GPU memory" in row["reason"]


@pytest.mark.nightly
def test_costs_follow_from_the_price_list(g10sim, here, config):
    prices = {
        "currency": "EUR",
        "prices": {
            "gpu-memory": {"price": 80, "for": "4 MiB", "source": "made up", "date": "2026-11"},
            "host-memory": {"price": 1, "for": "1 MiB", "source": "made up", "date": 2026},
        },
    }
    (here / "mine.yaml").write_text(yaml.safe_dump(prices))
    arguments = ("--target", 0.7, "--precision", 0.1, "--prices", "mine.yaml", "-o", "out")
    ended = g10sim("size", config(), *arguments)
    found = {row["resource"]: row for row in rows(here / "out")}
    assert (found["gpu-memory"]["cost"], found["gpu-memory"]["added_cost"]) == (80, 0)
    assert (found["host-memory"]["cost"], found["host-memory"]["added_cost"]) == (4, -60)
    assert pd.isna(found["link"]["cost"])
    assert [name for name, row in found.items() if row["cheapest"] is True] == ["host-memory"]
    assert "cheapest by host-memory, 4 MiB (-60.00 EUR relative to what is configured)" in ended.out
    assert described(here / "out")["prices"] == {
        **prices,
        "prices": {name: {**one, "date": str(one["date"])} for name, one in prices["prices"].items()},
    }


def test_the_bundled_prices_have_sources():
    listed = load_prices(DEFAULT_PRICES).prices
    assert set(listed) == set(RESOURCES)
    assert all(one.price and one.source and one.date for one in listed.values())


@pytest.mark.nightly
def test_a_design_without_a_bound_is_searched_without_a_guard(g10sim, here, config):
    save_trace(chain(6, activation_bytes=1 << 22), here / "turns.g10t")
    gpu = {**SYSTEM["gpu"], "memory": "20 MiB"}
    file = config({"gpu": gpu}, policies=["autoswap"])
    ended = g10sim(
        "size",
        file,
        "--target",
        0.9,
        "--resource",
        "gpu-memory",
        "-o",
        "out",
    )
    assert ended.code == 0, ended.err
    (row,) = rows(here / "out")
    assert row["note"].startswith("not guarded by a bound: GPU memory is contiguous")
    assert row["status"] == "found"
    assert row["holds"]
    assert pd.isna(row["best_performance"])


@pytest.mark.nightly
def test_a_policy_that_drops_tensors_has_the_bound_of_those_that_may(g10sim, here, config):
    save_trace(chain(6, activation_bytes=1 << 22), here / "turns.g10t")
    gpu = {**SYSTEM["gpu"], "memory": "24 MiB", "page_size": "4 KiB"}
    file = config({"gpu": gpu}, policies=[{"name": "pressure", "recompute": True}])
    ended = g10sim("size", file, "--target", 0.8, "--resource", "gpu-memory", "-o", "out")
    assert ended.code == 0, ended.err
    (row,) = rows(here / "out")
    assert row["status"] == "found"
    assert row["holds"]
    assert row["performance"] <= row["best_performance"]


@pytest.mark.nightly
def test_a_cell_that_fails_ends_its_search(g10sim, here, config):
    (here / "broken.py").write_text(
        "from g10sim.policies.designs.base_uvm import BaseUvm\n\n\n"
        "class Broken(BaseUvm):\n"
        "    name = 'broken'\n\n"
        "    def on_kernel_start(self, view):\n"
        "        raise RuntimeError('no')\n"
    )
    file = config(policies=["base_uvm", "broken:Broken"])
    ended = g10sim("size", file, "--target", 0.8, "--resource", "link", "-o", "out")
    assert ended.code == 1
    assert "link (turns.g10t, broken" in ended.err
    assert [row["status"] for row in rows(here / "out")] == ["found", "failed"]


def test_an_ssd_of_flash_has_no_rate_to_search(g10sim, here, config):
    file = config({"ssd": {"preset": "samsung-sz985-800gb"}})
    ended = g10sim("size", file, "--target", 0.7, "--resource", "ssd", "-o", "out")
    assert ended.code == 0, ended.err
    (row,) = rows(here / "out")
    assert row["status"] == "not applicable"
    assert row["reason"] == "the system has no tier `ssd` with rates (model: link)"
    assert not (here / "out" / "figures").exists()


@pytest.mark.nightly
def test_the_figure_marks_the_answer(g10sim, here, config):
    resources = ("--resource", "gpu-memory", "--resource", "link")
    g10sim("size", config(), "--target", 0.8, "--precision", 0.1, *resources, "-o", "out")
    figure = plots.draw("knee", here / "out")
    assert [axes.get_xlabel() for axes in figure.axes] == ["GPU memory (GiB)", "PCIe bandwidth (GB/s)"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(labels) == ["Bound", "least that reaches it", "simulated", "target"]
    (row,) = [row for row in rows(here / "out") if row["resource"] == "link"]
    stars = [line for line in figure.axes[1].get_lines() if line.get_marker() == "*"]
    assert [(x, y) for line in stars for x, y in line.get_xydata()] == [
        (row["answer_amount"] / GB, pytest.approx(row["performance"]))
    ]
    (here / "out" / "curves.csv").write_text("search\n")
    ended = g10sim("plot", "knee", "--results", "out")
    assert ended.code == 2
    assert "curves.csv: is damaged, was edited" in ended.err


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({}, ("--target", 0), "--target: found 0; allowed: above 0, at most 1"),
        ({}, ("--target", 1.5), "--target: found 1.5; allowed: above 0, at most 1"),
        ({}, ("--target", "nan"), "--target: found nan; allowed: above 0, at most 1"),
        ({}, (), "--target"),
        ({}, ("--target", 0.9, "--precision", 0.2), "--precision: found 0.2; allowed: above 0, at most 0.1"),
        (
            {},
            ("--target", 0.9, "--precision", "nan"),
            "--precision: found nan; allowed: above 0, at most 0.1",
        ),
        ({}, ("--target", 0.9, "--resource", "links"), "--resource: found 'links' (did you mean 'link'?)"),
        ({}, ("--target", 0.9, "--prices", "none.yaml"), "none.yaml"),
        ({"policies": ["ideal"]}, ("--target", 0.9), "policies: found none with limited memory"),
        (
            {"workload": {"trace": None, "iterations": None, "jobs": [{"trace": "turns.g10t"}]}},
            ("--target", 0.9),
            "workload: found several jobs; allowed: traces that run alone",
        ),
        ({"workload": {"replicas": 1}}, ("--target", 0.9), "workload: found several jobs"),
    ],
)
def test_bad_input_is_one_line(g10sim, here, config, changes, options, words):
    file = config(**changes)
    data = yaml.safe_load(Path(file).read_text())
    data["workload"] = {key: value for key, value in data["workload"].items() if value is not None}
    Path(file).write_text(yaml.safe_dump(data))
    ended = g10sim("size", file, *options)
    assert ended.code == 2
    assert words in ended.err
    assert ended.err.count("\n") == 1
    assert ended.out == ""
    assert not (here / "results").exists()


PRICE = {"price": 1, "for": "1 GB/s", "source": "made up", "date": "2026"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"currency": 5}, "currency"),
        ({"prices": {"gpu": PRICE}}, "prices: found 'gpu'; allowed: gpu-memory"),
        ({"prices": {"link": {**PRICE, "price": -1}}}, "prices.link.price"),
        ({"prices": {"link": {**PRICE, "for": "1 GiB"}}}, "prices.link.for"),
        ({"prices": {"link": {**PRICE, "for": "0 GB/s"}}}, "prices.link.for"),
        ({"prices": {"link": {**PRICE, "source": ""}}}, "prices.link.source"),
        ({"prices": {"link": {**PRICE, "date": "May"}}}, "prices.link.date"),
        ({"prices": {"link": {"price": 1, "for": "1 GB/s"}}}, "source"),
    ],
)
def test_a_bad_price_list_is_one_line(g10sim, here, config, change, words):
    (here / "mine.yaml").write_text(yaml.safe_dump({"currency": "EUR", "prices": {}, **change}))
    ended = g10sim("size", config(), "--target", 0.7, "--prices", "mine.yaml")
    assert ended.code == 2
    assert "mine.yaml" in ended.err
    assert words in ended.err
    assert all(line.startswith("error: mine.yaml:") for line in ended.err.splitlines())
