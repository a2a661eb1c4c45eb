"""Kernel times of the system's GPU in a run, and what is told before it."""

import pytest

import g10sim
from g10sim import plots
from g10sim.analysis.gpus import load_gpu, retimed
from g10sim.config.document import Document
from g10sim.errors import ConfigError, TraceError
from g10sim.experiment.expand import expand
from g10sim.experiment.run import run_experiment
from g10sim.sizing.cases import cases_of
from g10sim.trace.format import save_trace
from g10sim.trace.model import Kernel, Tensor, TensorKind, Trace

TENSORS = Tensor(0, "x", 8, TensorKind.INPUT, True), Tensor(1, "y", 8, TensorKind.ACTIVATION, False)
WORK = {"operator_class": "matmul", "number_format": "float16", "flops": 10**13}


def trace(**facts):
    kernels = (Kernel(0, "mm", 10**9, (0,), (1,), **{**WORK, **facts}),)
    return retimed(Trace("model", 1, 10**9, TENSORS, kernels), load_gpu("a100-40g"))


@pytest.fixture
def config(tmp_path):
    save_trace(trace(), tmp_path / "one.g10t")
    return {
        "workload": {"trace": str(tmp_path / "one.g10t"), "iterations": 1},
        "system": "h100-80g-pcie5-nvme",
        "policies": ["ideal"],
        "output": str(tmp_path / "out"),
    }


@pytest.mark.parametrize("times", ["trace", "system"])
def test_the_configuration_of_a_case_that_is_sized_has_the_kernel_times_of_its_cells(config, times):
    workload = {**config["workload"], "kernel_times": times, "variation": {"magnitude": 0.1}}
    document = Document({**config, "workload": workload, "policies": ["base_uvm"], "seed": [1, 2]}, "")
    (case,) = cases_of(expand(document))
    again = expand(case.document("again", {}, document)).cells
    assert [cell.key for cell in again] == [cell.key for cell in case.cells]


def milliseconds(config, **workload):
    document = Document({**config, "workload": {**config["workload"], **workload}}, "")
    told = []
    outcome = run_experiment(document, told=told.append)
    return outcome.rows[0]["exec_ms"], told


def test_kernels_take_the_times_of_the_systems_gpu_if_asked_to(config):
    (own, told), (systems, nothing) = milliseconds(config), milliseconds(config, kernel_times="system")
    a100, h100 = (retimed(trace(), load_gpu(gpu)).kernels[0].duration for gpu in ("a100-40g", "h100"))
    assert (own, systems) == (pytest.approx(a100 / 1e6, rel=1e-3), pytest.approx(h100 / 1e6, rel=1e-3))
    assert h100 < 0.5 * a100
    (text,) = told
    assert "kernel times are for a100-40g; the system has h100" in text
    assert "workload.kernel_times: system" in text
    assert not nothing


@pytest.mark.parametrize(
    ("system", "kernel_times", "notes"),
    [
        ("h100-80g-pcie5-nvme", "trace", ["times: a100-40g"]),
        ("h100-80g-pcie5-nvme", "system", []),
        ("a100-40g-pcie3-znand", "trace", []),
    ],
)
def test_figures_say_whose_kernel_times_they_show(config, system, kernel_times, notes):
    milliseconds(config | {"system": system, "policies": ["base_uvm"]}, kernel_times=kernel_times)
    drawn = [plots.draw("fig11", config["output"])]
    drawn += plots.chart("bar", config["output"], x="policy", y="exec_ms")[0]
    for figure in drawn:
        texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert [text for text in texts if text.startswith("times: ")] == notes


@pytest.mark.parametrize(
    ("workload", "gpu", "message"),
    [
        ({"kernel_times": "gpu"}, {}, "workload.kernel_times: found 'gpu'"),
        (
            {"kernel_times": "system"},
            {"name": ""},
            "found system, whose gpu.name is ''; allowed",
        ),
        ({"kernel_times": "system"}, {"name": "abacus"}, "whose gpu.name is 'abacus'; allowed: trace, or a"),
    ],
)
def test_systems_without_a_known_gpu_are_refused(config, workload, gpu, message):
    system = {"preset": config["system"], "gpu": gpu}
    with pytest.raises(ConfigError, match=message):
        g10sim.run({**config, "system": system, "workload": {**config["workload"], **workload}})


def test_a_trace_without_work_is_refused(config, tmp_path):
    kernels = (Kernel(0, "mm", 10**9, (0,), (1,)),)
    save_trace(Trace("old", 1, 10**9, TENSORS, kernels), tmp_path / "one.g10t")
    workload = {**config["workload"], "kernel_times": "system"}
    with pytest.raises((ConfigError, TraceError), match=r"kernel 0 \(mm\): found no operator_class"):
        g10sim.run({**config, "workload": workload})
