import hashlib
import shlex

import pytest
import yaml

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.analysis.working_set import working_set_bytes
from g10sim.config.data import data_path
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import TimeSource

MANIFEST = yaml.safe_load(data_path("traces", "MANIFEST.yaml").read_text())["traces"]
A100_BYTES = 40 * 2**30


@pytest.fixture(params=MANIFEST, ids=[entry["file"] for entry in MANIFEST])
def entry(request):
    return request.param


def test_every_bundled_trace_is_listed():
    assert {path.name for path in data_path("traces").glob("*.g10t")} == {entry["file"] for entry in MANIFEST}


def test_a_bundled_trace_is_what_the_manifest_says(entry):
    path = data_path("traces", entry["file"])
    trace = load_trace(path)
    check_trace(trace)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
    assert path.stat().st_size < 10**6
    assert (peak_live_bytes(trace), len(trace.kernels)) == (entry["peak_live_bytes"], entry["kernels"])
    assert {kernel.time_source for kernel in trace.kernels} == {TimeSource(entry["time_source"])}
    assert {key: trace.origin[key] for key in ("command", "gpu")} == {
        key: entry[key] for key in ("command", "gpu")
    }


def test_every_kernel_of_a_bundled_trace_fits_a_40_gib_gpu(entry):
    trace = load_trace(data_path("traces", entry["file"]))
    assert max(working_set_bytes(trace)) < A100_BYTES


def test_bundled_traces_fit_and_oversubscribe_a_40_gib_gpu():
    ratios = [entry["peak_live_bytes"] / A100_BYTES for entry in MANIFEST]
    assert min(ratios) < 1
    assert sum(1.3 < ratio < 3 for ratio in ratios) >= 2


def test_the_command_of_the_manifest_makes_the_same_file_again(tmp_path):
    entry = MANIFEST[0]
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
    if versions != entry["versions"]:
        pytest.skip(f"made with {entry['versions']}, installed are {versions}")
    from g10sim.capture import capture_source

    source, *options = shlex.split(entry["command"])[3:]
    names = [name.removeprefix("--").replace("-", "_") for name in options[::2]]
    values = [int(value) if value.isdigit() else value for value in options[1::2]]
    again = tmp_path / "again.g10t"
    save_trace(capture_source(source, **dict(zip(names, values, strict=True))), again)
    assert hashlib.sha256(again.read_bytes()).hexdigest() == entry["sha256"]
