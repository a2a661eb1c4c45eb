"""Fits of kernel times: numbers that made the times are found again, and the published kernels are met."""

import random
import sys
from pathlib import Path

import pytest
import yaml

from g10sim.analysis.gpus import load_gpu, read_gpu
from g10sim.cli.output import exit_code
from g10sim.config.data import data_path
from g10sim.config.document import Document
from g10sim.errors import ConfigError
from g10sim.trace.model import Phase
from g10sim.trace.work import COMPUTING, KernelCost, NumberFormat, OperatorClass
from tools.__main__ import app
from tools.calibration import LONG_SUM, Calibration, calibrate, description, read_published
from tools.published_kernels import MeasuredKernel, MeasuredTrace

ROOT = Path(__file__).parents[2]
A100 = load_gpu("a100-40g-2023")
FIT = ("BERT_Base", "ResNet152", "SENet154")
BACKWARD = Phase.BACKWARD


def measured(cost, seconds):
    return MeasuredKernel(cost, seconds)


def products(flops, **rest):
    return KernelCost("mm", OperatorClass.MATMUL, phase=BACKWARD, flops=flops, **rest)


def convolution(flops, products=9, moved=1):
    return KernelCost(
        "convolution",
        OperatorClass.CONVOLUTION,
        NumberFormat.TF32,
        flops=flops,
        moved_bytes=moved,
        products=products,
    )


def test_startup_and_share_of_a_class_are_found_again():
    kernels = [measured(products(n * 10**10), 100e-6 + n * 10**10 / (0.5 * 19.5e12)) for n in range(1, 40)]
    fit = Calibration(A100, kernels).fit()
    assert fit.shares == {OperatorClass.MATMUL: 0.5}
    assert fit.startups[OperatorClass.MATMUL] == pytest.approx(100e-6 - 9.2e-6, rel=1e-6)
    assert fit.counts["matmul"] == 39


def test_time_for_the_bytes_of_weights_is_found_again():
    draw = random.Random(0)
    costs = [
        products(draw.randrange(10**9, 10**12), weight_bytes=draw.randrange(10**5, 10**8)) for _ in range(50)
    ]
    kernels = [measured(c, c.flops / (0.25 * 19.5e12) + c.weight_bytes / 2e8) for c in costs]
    entry = Calibration(A100, kernels).fit().operators["gradient of a linear layer's input"]
    assert (entry.compute_efficiency, entry.weight_bandwidth) == (0.25, 200_000_000)


def test_convolutions_have_the_share_of_quick_ones_and_an_average_startup():
    roofline = 10**12 / 156e12
    quick = [measured(convolution(10**12), 4 * roofline)] * 3
    slow = [measured(convolution(10**12), 4 * roofline + 0.6)] * 1
    long = [measured(convolution(10**12, products=LONG_SUM), 4 * roofline)] * 2
    fit = Calibration(A100, [*quick, *slow, *long]).fit()
    assert fit.shares == {OperatorClass.CONVOLUTION: 0.25}
    assert fit.operators["convolution limited by computing"].startup == pytest.approx(0.15e12, rel=1e-3)
    assert fit.operators["convolution with long sums"].startup == 0


def test_times_too_short_for_the_work_are_left_out():
    possible = measured(products(195 * 10**9), 0.02)
    impossible = measured(products(195 * 10**9), 0.009)
    assert Calibration(A100, [possible, impossible]).fit().counts == {"matmul": 1}


def test_what_is_written_is_a_description_with_a_source_for_every_number():
    kernels = [measured(products(10**12), 0.1), measured(convolution(10**12), 0.02)]
    data = description(Calibration(A100, kernels).fit(), "a100-40g-2023", "mine", "made-up kernels")
    gpu = read_gpu(Document(yaml.safe_load(yaml.safe_dump(data, sort_keys=False)), "mine.yaml"))
    assert gpu.name == "mine"
    assert gpu.sources["compute_efficiency.matmul"] == "fit to 1 made-up kernels"
    assert gpu.peak == A100.peak


def trace(model, seconds):
    kernels = (measured(products(10**12), seconds),)
    return MeasuredTrace(model, 8, seconds, kernels)


def test_models_that_are_not_fitted_to_are_held_out():
    found = calibrate([trace("One", 0.1), trace("Two", 0.2)], "a100-40g-2023", "mine", ["One"])
    one, two = found.checks
    assert (one.fitted, two.fitted) == (True, False)
    assert one.error == pytest.approx(0, abs=0.01)
    assert two.error == pytest.approx(-0.5, abs=0.01)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["Ome"], r"--fit: found unknown model 'Ome' \(did you mean 'One'\?\); allowed: One, Two"),
        ([], r"--fit: found no model; allowed: One, Two"),
    ],
)
def test_unknown_models_are_refused(models, message):
    with pytest.raises(ConfigError, match=message):
        calibrate([trace("One", 0.1), trace("Two", 0.2)], "a100-40g-2023", "mine", models)


@pytest.fixture(scope="module")
def published_traces(published):
    return read_published(published)


@pytest.fixture(scope="module")
def calibrated(published_traces):
    return calibrate(published_traces, "a100-40g-2023", "a100-40g-g10", FIT)


def test_the_bundled_description_is_the_fit(calibrated):
    bundled = yaml.safe_load(data_path("configs", "gpus", "a100-40g-g10.yaml").read_text())
    assert calibrated.data == bundled


def test_the_shares_of_the_a100_are_those_of_the_fit(calibrated):
    for kind, share in calibrated.fit.shares.items():
        table = A100.compute_efficiency if kind in COMPUTING else A100.bandwidth_efficiency
        assert table[kind] == share
        key = f"{'compute' if kind in COMPUTING else 'bandwidth'}_efficiency.{kind}"
        assert f" {calibrated.fit.counts[kind.value]} " in A100.sources[key]


def test_sums_of_published_kernel_times_are_met_within_15_percent(calibrated):
    assert len(calibrated.checks) == 30
    assert {check.model for check in calibrated.checks if not check.fitted} == {"Inceptionv3", "VIT"}
    assert max(abs(check.error) for check in calibrated.checks) < 0.15


def test_kernels_that_stand_for_operators_make_up_the_published_times(published_traces):
    for one in published_traces:
        assert 0.985 < sum(kernel.seconds for kernel in one.kernels) / one.seconds <= 1


@pytest.mark.nightly
def test_the_page_says_what_the_published_kernels_say(published_traces, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "generate")
    monkeypatch.delitem(sys.modules, "tables", raising=False)
    import kernel_times_page

    text = (ROOT / "docs" / "kernel-times.md").read_text(encoding="utf-8")
    assert kernel_times_page.published_sections(published_traces) in text, (
        "outdated: python docs/generate kernel-times"
    )


def command(*arguments):
    return exit_code(lambda: app(["calibrate", *map(str, arguments)], standalone_mode=False))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "-o", "mine.yaml"), "nowhere: found no traces/MODEL/BATCH/kernels.config"),
        (("nowhere", "-o", "mine.txt"), "-o: found 'mine.txt'; allowed: a file NAME.yaml"),
    ],
)
def test_bad_input_is_refused(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert command(*arguments) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_fit_is_written_and_can_be_used(published, tmp_path, capsys):
    fit = ("--fit", "VIT,BERT_Base,ResNet152")
    assert command(published, "-o", tmp_path / "mine.yaml", *fit) == 0
    assert "held out" in capsys.readouterr().out
    assert load_gpu(tmp_path / "mine.yaml").name == "mine"
