import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Directory of files that the installed PyTorch wrote about steps of a small model."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")
    directory = tmp_path_factory.mktemp("recorded")
    script = Path(__file__).with_name("recorded_step.py")
    ended = subprocess.run([sys.executable, script, directory], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return directory
