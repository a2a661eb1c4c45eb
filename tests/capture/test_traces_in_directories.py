"""Bundled traces beside those at the top: each directory has a manifest of its own."""

import hashlib

import pytest

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture.manifest import MANIFEST, read_manifest
from g10sim.config.data import data_path
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace

MANIFESTS = sorted(data_path("traces").glob(f"*/{MANIFEST}"))


def marks(directory):
    return pytest.mark.slow if directory == "measured" else ()  # more than all others together


@pytest.mark.parametrize(
    "manifest", [pytest.param(one, marks=marks(one.parent.name), id=one.parent.name) for one in MANIFESTS]
)
def test_traces_are_what_their_manifest_says(manifest):
    entries = read_manifest(manifest).traces
    assert {entry.file for entry in entries} == {path.name for path in manifest.parent.glob("*.g10t")}
    for entry in entries:
        path = manifest.parent / entry.file
        trace = load_trace(path)
        check_trace(trace)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256
        assert (len(trace.tensors), len(trace.kernels)) == (entry.tensors, entry.kernels)
        assert peak_live_bytes(trace) == entry.peak_live_bytes
        assert set(entry.command.split()) <= set(trace.origin["command"].split())  # which has defaults, too
