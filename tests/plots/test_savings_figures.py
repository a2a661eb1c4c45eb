"""Figures of memory saved and time added, from results made up and from a small run."""

import pandas as pd
import pytest
from matplotlib.text import Text
from readable import legend_words

import g10sim
from g10sim import plots
from g10sim.errors import ConfigError
from g10sim.plots import savings, savings_jobs, style
from g10sim.plots.saved import saved_looks
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

COLD = "tensile(prediction_error=0.5, replan_threshold=None)"
SEVERAL = ("ideal", "tensile", COLD, "capuchin", "vdnn(mode=conv)", "vdnn(mode=all)")
MOVED = ("ssd_to_gpu_bytes", "gpu_to_ssd_bytes", "host_to_gpu_bytes", "gpu_to_host_bytes")
NETWORKS = ("densenet121", "inception_v3", "inception_v4", "resnet50", "vgg16")


def row(cell, policy, peak, model="vgg16", batch=2, jobs="1", status="ok", job=0):
    names = {
        "cell": cell,
        "name": "n",
        "trace": f"{model}-b{batch}.g10t",
        "model": model,
        "batch_size": batch,
    }
    names |= {"policy": policy, "workload.jobs": jobs, "seed": 0, "status": status, "message": ""}
    numbers = {"exec_cycles": 100, "peak_gpu_bytes": peak, "peak_gpu_bytes_of_all": peak}
    return names | numbers | dict.fromkeys(MOVED, 0) | {"job": job, "gpu": 0}


def kernels(cells):
    """Three iterations of a kernel each, as long as ``cells`` says, by cell and job."""
    rows = [
        {"cell": cell, "job": job, "iteration": i, "start": i * cycles, "end": (i + 1) * cycles}
        for (cell, job), cycles in cells.items()
        for i in range(3)
    ]
    return pd.DataFrame(rows).assign(host_fault_pages=0, flash_fault_pages=0)


def one_at_a_time(networks=NETWORKS, batches=(2, 16)):
    """Vanilla 1000 bytes and 100 cycles; TENSILE 600 and 120, freeing alone 700; vDNN cannot run."""
    rows, cycles = [], {}
    for network in networks:
        for batch in batches:
            for policy, peak, time in (
                ("ideal", 1000, 100), ("base_uvm", 700, 900), ("tensile", 600, 120),
                (COLD, 650, 150), ("vdnn(mode=conv)", 0, 0),
            ):  # fmt: skip
                status = "ok" if time else "unsupported"
                if time:
                    cycles[len(cycles) + sum(r["status"] != "ok" for r in rows), 0] = time
                rows.append(row(len(rows), policy, peak, network, batch, status=status))
    return pd.DataFrame(rows), kernels(cycles)


def shared(networks=NETWORKS, policies=("ideal", "tensile", COLD)):
    """One to three jobs of each network and one of each together; all but vanilla save 10% for each job."""
    rows, cycles, cell = [], {}, 0
    workloads = [[network] * count for network in networks for count in (1, 2, 3)] + [list(networks)]
    for workload in workloads:
        for policy in policies:
            for job, network in enumerate(workload):
                saved = 0 if policy == "ideal" else 100 * min(len(workload), 3)
                rows.append(row(cell, policy, 1000 - saved, network, jobs=str(workload), job=job))
                cycles[cell, job] = 100 if policy == "ideal" else 125
            cell += 1
    return pd.DataFrame(rows), kernels(cycles)


def heights(axes):
    return [round(bar.get_height(), 6) for bar in axes.patches]


def labels(figure):
    return legend_words(figure)


def test_one_training_at_a_time():
    figure = savings.draw(*one_at_a_time(("vgg16", "resnet50"), (2,)))
    saved, added = figure.axes
    assert heights(saved) == [40, 35] * 2  # by trace, then by policy
    assert heights(added) == [20, 50] * 2
    freed = [line.get_ydata() for line in saved.lines if len(line.get_xdata()) == 2]
    assert [heights.tolist() for heights in freed] == [[pytest.approx(30)] * 2] * 2
    assert [text.get_text() for text in added.get_xticklabels()] == ["VGG-16\nbatch 2", "ResNet-50\nbatch 2"]
    assert labels(figure) == [
        "TENSILE", "TENSILE, cold start", "vDNN, convolutions", "unsupported", "dead tensors freed, no swaps",
    ]  # fmt: skip


def test_jobs_on_one_gpu():
    figure = savings_jobs.draw(*shared())
    named = {axes.get_title(): axes for axes in figure.axes[:6]}
    assert list(named)[-2:] == ["VGG-16", "mixed"]
    assert heights(named["VGG-16"]) == [10, 10, 20, 20, 30, 30]
    assert heights(named["mixed"]) == [30, 30]
    assert [text.get_text() for text in named["mixed"].get_xticklabels()] == ["5"]
    assert {height for axes in figure.axes[6:] for height in heights(axes)} == {25}


@pytest.mark.parametrize(
    "figure",
    [
        lambda: savings.draw(*one_at_a_time()),
        lambda: savings.draw(*one_at_a_time(("vgg16",), (2,))),
        lambda: savings_jobs.draw(*shared()),
        lambda: savings_jobs.draw(*shared(("vgg16",))),
        lambda: savings_jobs.draw(*shared(policies=SEVERAL)),
    ],
    ids=["five networks", "one network", "jobs of five networks", "jobs of one network", "several designs"],
)
@pytest.mark.slow
def test_texts_lie_apart_and_inside(figure):
    figure = figure()
    with style.settings():
        figure.draw_without_rendering()
    assert figure.get_figwidth() == style.COLUMN_INCHES
    assert figure.get_figheight() <= style.PAGE_INCHES
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    ticks = {text for axes in figure.axes for text in axes.get_yticklabels()}  # some are beyond their axes
    hidden = {text for axes in figure.axes if not axes.axison for text in axes.get_xticklabels()}
    boxes = [(t, t.get_window_extent().padded(-0.5)) for t in texts if t not in ticks | hidden]
    for number, (text, box) in enumerate(boxes):
        assert figure.bbox.padded(1).contains(*box.min), text
        assert figure.bbox.padded(1).contains(*box.max), text
        for other, beside in boxes[:number]:
            assert not box.overlaps(beside), f"{text.get_text()!r} lies on {other.get_text()!r}"


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        ("tensile", "TENSILE"),
        (COLD, "TENSILE, cold start"),
        ("tensile(replan_threshold=None)", "TENSILE, first plan kept"),
        ("capuchin", "Capuchin"),
        ("autoswap(score=swdoa)", "AutoSwap, SWDOA"),
        ("g10", "G10"),
        ("mine(depth=3)", "mine, depth=3"),
    ],
)
def test_parameters_are_words(policy, label):
    assert saved_looks(pd.DataFrame({"policy": [policy]}))[policy].label == label


@pytest.mark.slow
def test_figures_of_a_small_run(tmp_path):
    trace = chain(8, activation_bytes=8 << 20, weight_bytes=1 << 20)
    save_trace(trace, tmp_path / "chain.g10t")
    jobs = [[{"trace": str(tmp_path / "chain.g10t"), "iterations": 5, "copies": n}] for n in (1, 2)]
    config = {
        "workload": {"jobs": jobs[0], "sharing": {"compute": "time_sliced"}},
        "system": "a100-40g-pcie3-znand",
        "policies": ["ideal", "tensile"],
        "sweep": {"workload.jobs": jobs},
        "record": ["kernels"],
    }
    g10sim.run({"name": "jobs", **config}, output=tmp_path / "jobs")
    saved, added = plots.draw("savings_jobs", tmp_path / "jobs").axes
    assert len(heights(saved)) == len(heights(added)) == 2
    assert min(heights(saved)) > 0
    assert len(heights(plots.draw("savings", tmp_path / "jobs").axes[0])) == 1


def test_nothing_but_vanilla_is_refused():
    results, table = one_at_a_time(("vgg16",), (2,))
    with pytest.raises(ConfigError, match="found no policy to show"):
        savings.draw(results[results.policy == "ideal"], table)
