"""The notebooks run from top to bottom."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

ROOT = Path(__file__).parents[2]
TUTORIAL, GALLERY = ROOT / "docs" / "tutorial.ipynb", ROOT / "docs" / "gallery.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(TUTORIAL, as_version=4)


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """A directory for notebooks to run in."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs"


def run(notebook, directory):
    resources = {"metadata": {"path": str(directory)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def made_small(notebook, docs, system, small):
    """Put traces of 24 kernels in the place of BERT's, and a GPU for them in that of the system."""
    (docs / "traces").mkdir()
    for number in (256, 512):
        save_trace(replace(chain(8), batch_size=number), docs / "traces" / f"bert-base-b{number}-s128.g10t")
    assert any(system in cell.source for cell in notebook.cells)
    for cell in notebook.cells:
        cell.source = cell.source.replace(system, small)
    return notebook


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the machinery of notebooks warns of its own affairs
def test_the_tutorial_runs_where_it_lies(notebook, docs):
    shutil.copy(TUTORIAL, docs)
    small = ', gpu={"memory": "6500 KiB"}, host={"memory": "64 GiB"}'
    outputs = run(made_small(notebook, docs, ', host={"memory": "64 GiB"}', small), docs)
    kinds = [set(output.get("data", {})) for output in outputs]
    assert sum("image/png" in kind for kind in kinds) == 4
    assert sum("text/html" in kind for kind in kinds) == 2
    assert not [output for output in outputs if output["output_type"] == "stream"]
    performance = float(outputs[0]["data"]["text/plain"])
    assert 0 < performance < 1
    assert (docs / "results" / "tutorial" / "report.html").is_file()


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_the_gallery_draws_every_figure(docs):
    gallery = nbformat.read(GALLERY, as_version=4)
    small = '"system": {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "6500 KiB"}}'
    outputs = run(made_small(gallery, docs, '"system": "a100-40g-pcie3-znand"', small), docs)
    drawn = sum("image/png" in output.get("data", {}) for output in outputs)
    assert drawn == sum("plots." in cell.source or ".plot(" in cell.source for cell in gallery.cells[2:])
    assert not [output for output in outputs if output["output_type"] == "error"]


@pytest.mark.parametrize("path", [TUTORIAL, GALLERY], ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
