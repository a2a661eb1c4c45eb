import csv
import gzip
import math
import re

import pytest

from g10sim.config.sharing import VariationSpec
from g10sim.errors import ConfigError
from g10sim.reproduce.validation import (
    COLUMNS,
    VARIATION_SEEDS,
    Comparison,
    PublishedRow,
    agreements,
    read_published,
    validate,
)
from g10sim.trace.workload import draw_factors

CYCLES = 1_000_000
TENSORS = [
    "tensor0 Is weight (global)?: 1, Size in byte: 8192, Range:0--8192",
    "tensor1 Is weight (global)?: 0, Size in byte: 4096, Range:0--4096",
]
KERNEL = f"""\
Kernel ID: 0, Name: Conv2d_Forward
Parent Layer ID:0; Name:Conv2d
Execution Time: {CYCLES}
Input Tensors:
{TENSORS[0]}
Output Tensors:
{TENSORS[1]}
____________________________________________________________________
"""


def row(policy, value, *, metric="exec_cycles", figure="fig1", batch=8, host=128, variation="0.0"):
    texts = (figure, metric, "Tiny", batch, policy, host, "3.2", "15.754", variation, value)
    return dict(zip(COLUMNS, map(str, texts), strict=True))


@pytest.fixture
def reference(tmp_path):
    """Published data of one tiny trace; called with the rows of its table."""
    directory = tmp_path / "reference"
    trace = directory / "traces" / "Tiny" / "8"
    trace.mkdir(parents=True)
    (trace / "tensors.config").write_text("\n".join(TENSORS) + "\n")
    (trace / "kernels.config").write_text(KERNEL)
    guide = "Issued Time: 0 Tensor: 0 G:o From: In_ssd, To: In_gpu\n"
    for name in ("prefetch_guide.config.gz", "prefetch_guide.deepum.config.gz"):
        (trace / name).write_bytes(gzip.compress(guide.encode()))

    def make(*rows):
        with (directory / "published.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        return directory

    return make


def test_rows_are_compared_in_the_order_and_with_the_columns_of_the_table(reference, tmp_path):
    directory = reference(
        row("ideal", CYCLES),
        row("ideal", 2 * CYCLES),
        row("ideal", "inf"),
        row("ideal", CYCLES / 1.2e6, metric="compute_ms", figure="fig2"),
        row("ideal", 0, metric="ssd_to_gpu_pages", figure="fig2"),
        row("ideal", 2.0, metric="ssd_to_gpu_pages", figure="fig2"),
        row("ideal", 1.0, metric="performance_vs_ideal"),
        row("ideal", CYCLES, batch=16),
    )
    output = tmp_path / "out"
    found = validate(directory, output)
    with (output / "validation.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert list(written[0]) == [*COLUMNS, "plan", "simulated", "relative_error", "status"]
    assert [one["relative_error"] for one in written] == ["0.0", "-0.5", "inf", "0.0", "0.0", "-1.0", "0.0"]
    assert written[0] == {
        **row("ideal", CYCLES),
        "plan": "",
        "simulated": str(CYCLES),
        "relative_error": "0.0",
        "status": "ok",
    }
    assert [one.status for one in found] == ["ok"] * 7
    assert len(list((output / "cells").glob("*.json"))) == 1


def test_policies_with_a_published_plan_are_compared_twice(reference, tmp_path):
    directory = reference(
        row("base_uvm", CYCLES),
        row("deepum", CYCLES),
        row("deepum", CYCLES, host=64),
        row("ideal", CYCLES),
    )
    found = validate(directory, tmp_path / "out")
    assert [(one.row.texts["policy"], one.row.texts["host_gb"], one.plan) for one in found] == [
        ("base_uvm", "128", ""),
        ("deepum", "128", "reference"),
        ("deepum", "128", "own"),
        ("deepum", "64", "reference"),
        ("deepum", "64", "own"),
        ("ideal", "128", ""),
    ]
    assert {one.status for one in found} == {"ok"}


def test_what_cannot_be_compared_says_why(reference, tmp_path):
    directory = reference(row("nobody", CYCLES), row("ideal", CYCLES))
    found, _ = validate(directory, tmp_path / "out")
    assert found.as_row()["status"] == "skipped: there is no policy 'nobody'"


@pytest.mark.parametrize("given", [row("nobody", CYCLES), row("ideal", CYCLES, batch=16)])
def test_a_table_without_a_row_to_simulate_is_refused(reference, tmp_path, given):
    with pytest.raises(
        ConfigError, match=r"published.csv: found no row that can be simulated; allowed: rows"
    ):
        validate(reference(given), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_with_varied_kernel_times_are_compared_by_the_mean_over_seeds(reference, tmp_path):
    directory = reference(
        row("ideal", CYCLES, variation="0.25"),
        row("ideal", CYCLES),
        row("base_uvm", 1.0, metric="performance_vs_ideal", variation="0.25"),
    )
    varied, plain, performance = validate(directory, tmp_path / "out")
    factors = [draw_factors(VariationSpec(magnitude=0.25), 1, seed)[0] for seed in VARIATION_SEEDS]
    mean = sum(round(CYCLES * factor) for factor in factors) / len(factors)
    assert varied.simulated == pytest.approx(mean)
    assert varied.relative_error == pytest.approx(mean / CYCLES - 1)
    assert re.fullmatch(r"mean of 5 seeds, 95% confidence interval \+-\d.*", varied.message)
    assert (plain.simulated, plain.message) == (CYCLES, "")
    assert (performance.simulated, performance.relative_error) == (1.0, 0.0)
    with pytest.raises(ConfigError, match=r"variation.magnitude: found 1.5; allowed: less than 1"):
        validate(reference(row("ideal", CYCLES, variation="1.5")), tmp_path / "out")


def test_finished_cells_are_reused(reference, tmp_path):
    directory = reference(row("ideal", CYCLES), row("base_uvm", CYCLES))
    validate(directory, tmp_path / "out")
    stored = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")}
    validate(directory, tmp_path / "out")
    assert stored == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")}


def test_rows_are_narrowed(reference):
    directory = reference(row("ideal", 1), row("base_uvm", 1, figure="fig2"), row("ideal", 1, figure="fig2"))
    assert len(read_published(directory)) == 3
    assert len(read_published(directory, figures=["fig2"])) == 2
    assert len(read_published(directory, figures=["fig2"], policies=["ideal"], models=["Tiny"])) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"figures": ["fig3"]},
            r"published.csv: found no figure 'fig3' \(did you mean 'fig1'\?\)",
        ),
        ({"models": ["tiny"]}, r"found no model 'tiny' \(did you mean 'Tiny'\?\)"),
        ({"policies": ["idle"]}, r"found no policy 'idle' \(did you mean 'ideal'\?\)"),
    ],
)
def test_names_that_the_table_does_not_have(reference, names, message):
    with pytest.raises(ConfigError, match=message):
        read_published(reference(row("ideal", 1)), **names)


def test_damaged_tables(reference, tmp_path):
    with pytest.raises(ConfigError, match=r"published.csv: cannot be read: No such file"):
        read_published(tmp_path)
    with pytest.raises(ConfigError, match=r"published.csv: line 3: .*'much'.*; allowed: numbers"):
        read_published(reference(row("ideal", 1), row("ideal", "much")))
    (tmp_path / "published.csv").write_text("figure,metric\nfig1,exec_cycles\n")
    with pytest.raises(ConfigError, match=r"published.csv: line 1: found no column 'model'"):
        read_published(tmp_path)
    with pytest.raises(ConfigError, match=r"published.csv: found metric 'speed'; allowed: "):
        validate(reference(row("ideal", 1, metric="speed")), tmp_path / "out")


def compare(value, simulated, status="ok"):
    published = PublishedRow(row("ideal", value), 8, 0.0, float(value))
    return Comparison(published, "", status, "", simulated)


def test_agreement():
    inf = math.inf
    comparisons = [compare(100, 100), compare(100, 101), compare(100, 98), compare("inf", inf, "unsupported")]
    (group,) = agreements([*comparisons, compare(100, inf, "unsupported"), compare("inf", 5)])
    assert (group.figure, group.policy, group.plan) == ("fig1", "ideal", "")
    assert (group.cells, group.exact, group.mismatched, group.left_out) == (6, 2, 2, 0)
    assert group.median == pytest.approx(0.005)
    assert group.maximum == pytest.approx(0.02)
    skipped = Comparison(comparisons[0].row, "own", "skipped", "why")
    (nothing,) = agreements([skipped])
    assert (nothing.cells, nothing.left_out, nothing.median, nothing.maximum) == (0, 1, None, None)


def test_both_unsupported_have_no_error_and_one_alone_an_infinite_one():
    assert compare("inf", math.inf).relative_error is None
    assert compare("inf", 3).relative_error == math.inf
    assert compare(3, math.inf).relative_error == math.inf
    assert compare(0, 0).relative_error == 0
