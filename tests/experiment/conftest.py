import pytest

from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

SYSTEM = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}, "host": {"memory": "4 MiB"}}


@pytest.fixture
def trace():
    return chain(8)


@pytest.fixture
def trace_file(tmp_path, trace):
    path = tmp_path / "chain.g10t"
    save_trace(trace, path)
    return path


@pytest.fixture
def config(trace_file):
    """A configuration of small cells that do not fit in GPU memory."""
    return {
        "name": "small",
        "workload": {"trace": str(trace_file)},
        "system": SYSTEM,
        "policies": ["ideal", "base_uvm", "deepum"],
    }
