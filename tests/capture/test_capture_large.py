import subprocess
import sys

import pytest

from g10sim.trace.format import load_trace
from g10sim.trace.model import TensorKind

MOST_BYTES = 4 * 10**9


@pytest.mark.nightly
def test_a_decoder_of_65_billion_parameters_is_captured_in_little_memory(torch, tmp_path):
    out = tmp_path / "large.g10t"
    options = ["--batch-size", "1", "--seq-len", "2048", "--dtype", "bfloat16", "--gpu", "a100-40g"]
    script = (
        "import resource, sys\n"
        "from g10sim.cli.commands import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", script, "trace", "capture", "hf:Llama-65b", *options, "-o", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ended.stdout.splitlines()[-1]) * 1024 < MOST_BYTES
    weights = [tensor for tensor in load_trace(out).tensors if tensor.kind is TensorKind.WEIGHT]
    assert sum(tensor.size_bytes for tensor in weights) == 2 * 65_285_660_672
