"""One step of training as it is captured, and as the installed PyTorch recorded it on the CPU."""

import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")
sys.path.insert(0, str(Path(__file__).parent))

from recorded_step import BATCH, make_step

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture.step import capture_step
from g10sim.errors import TraceError
from g10sim.importers.execution_trace import import_execution_trace
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile

pytestmark = pytest.mark.slow
ALIKE = {"clamp_min": "relu", "fill_": "ones_like"}
"""Operators inside those that a capture names."""
NUMBER_BYTES = 8
"""PyTorch makes tensors of the numbers among an operator's arguments; a capture has none."""


@pytest.fixture(scope="module")
def captured():
    return capture_step(make_step, batch_size=BATCH)


def kernels(trace):
    return [ALIKE.get(kernel.name, kernel.name) for kernel in trace.kernels]


def sizes(trace):
    """Count tensors by kind and size; what is fed differs in name only."""
    return Counter(
        (tensor.kind.value, tensor.size_bytes) for tensor in trace.tensors if tensor.size_bytes > NUMBER_BYTES
    )


def test_the_execution_trace_has_the_kernels_and_the_bytes_of_the_capture(captured, recorded):
    profile = read_profile(recorded / "profile.json")
    trace = import_execution_trace(recorded / "execution.json", profile=profile, batch_size=BATCH)
    assert kernels(trace) == kernels(captured)
    assert sizes(trace) == sizes(captured)
    assert sum(tensor.size_bytes for tensor in trace.tensors) == pytest.approx(
        sum(tensor.size_bytes for tensor in captured.tensors), abs=len(trace.kernels) * NUMBER_BYTES
    )


def undisturbed(captured, recorded, record_again):
    """Import a profile in which nobody took the CPU from an operator: else its own share of time is wrong."""
    for _ in range(2):
        try:
            trace = import_kineto(read_profile(recorded / "profile.json"), batch_size=BATCH)
        except TraceError:
            trace = None
        if trace is not None and kernels(trace) == kernels(captured):
            return trace
        recorded = record_again()
    return import_kineto(read_profile(recorded / "profile.json"), batch_size=BATCH)


def test_the_profile_alone_has_the_kernels_and_about_the_bytes_of_the_capture(
    captured, recorded, record_again
):
    """It names no tensors: of those with one size the optimizer may be given a wrong one."""
    trace = undisturbed(captured, recorded, record_again)
    assert kernels(trace) == kernels(captured)
    for one, other in zip(trace.kernels, captured.kernels, strict=True):
        made = [sorted(found.tensors[tensor].size_bytes for tensor in kernel.outputs
                       if found.tensors[tensor].size_bytes > NUMBER_BYTES)
                for found, kernel in ((trace, one), (captured, other))]  # fmt: skip
        assert made[0] == made[1]
    assert peak_live_bytes(trace) == pytest.approx(peak_live_bytes(captured), rel=0.1)
