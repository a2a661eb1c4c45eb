import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def generate(monkeypatch):
    """Runs ``python docs/generate`` in this process."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "docs" / "generate")
    app = runpy.run_path(str(ROOT / "docs" / "generate" / "__main__.py"))["app"]

    def run(*arguments):
        app([str(argument) for argument in arguments], standalone_mode=False)

    return run
