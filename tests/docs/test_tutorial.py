"""The tutorial notebook runs from top to bottom."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(TUTORIAL, as_version=4)


def shortened(notebook):
    """Simulate two iterations of everything."""
    for old, new in (
        ('s128.g10t"},', 's128.g10t", "iterations": 2},'),
        ('policy="deepum",', 'policy="deepum", iterations=2,'),
        ("policy=Farthest(look_ahead=look_ahead)", "policy=Farthest(look_ahead=look_ahead), iterations=2"),
        ('policy="g10",', 'policy="g10", iterations=2,'),
    ):
        assert sum(old in cell.source for cell in notebook.cells) == 1, old
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    return notebook


@pytest.mark.filterwarnings("default")  # the machinery of notebooks warns of its own affairs
def test_the_tutorial_runs_where_it_lies(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(TUTORIAL, docs)
    NotebookClient(
        shortened(notebook), timeout=120, kernel_name="python3", resources={"metadata": {"path": str(docs)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [set(output.get("data", {})) for output in outputs]
    assert sum("image/png" in kind for kind in kinds) == 4
    assert sum("text/html" in kind for kind in kinds) == 2
    assert not [output for output in outputs if output["output_type"] == "stream"]
    performance = float(outputs[0]["data"]["text/plain"])
    assert 0 < performance < 1
    assert (docs / "results" / "tutorial" / "report.html").is_file()


def test_the_tutorial_is_stored_without_outputs(notebook):
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
