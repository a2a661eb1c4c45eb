"""The page of the figures is that of the experiments, and has a picture for each."""

from pathlib import Path

import pytest
from matplotlib.image import imread

import g10sim
from g10sim.config.data import data_path
from g10sim.plots.registry import paper_figures

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_page_is_generated_from_the_experiments(generate, tmp_path):
    trace = data_path("traces", "bert-base-b256-s128.g10t")
    settings = [f"workload.trace={trace}"]
    g10sim.run(ROOT / "experiments" / "fig2.yaml", output=tmp_path / "paper" / "fig2", settings=settings)
    page = tmp_path / "page" / "figures.md"
    generate("figures", tmp_path / "paper", "-o", page)
    current = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8") == current, "outdated: python docs/generate figures"
    assert [path.name for path in (page.parent / "images").iterdir()] == ["fig2.png"]


def test_every_figure_has_a_picture():
    for name in paper_figures():
        assert f"](images/{name}.png)" in (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
        assert imread(ROOT / "docs" / "images" / f"{name}.png").shape[1] == 495
