import subprocess
import sys
from pathlib import Path

import pytest


def record(directory):
    """Let the installed PyTorch write files about steps of a small model."""
    script = Path(__file__).with_name("recorded_step.py")
    ended = subprocess.run([sys.executable, script, directory], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Directory of files that the installed PyTorch wrote about steps of a small model."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")
    directory = tmp_path_factory.mktemp("recorded")
    record(directory)
    return directory


@pytest.fixture
def record_again(recorded, tmp_path):
    """Records the steps anew, and returns the directory."""

    def again():
        record(tmp_path)
        return tmp_path

    return again
