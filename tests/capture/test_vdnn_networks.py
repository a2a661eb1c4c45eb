"""The networks of the vDNN papers, captured for a Titan X, against what the vDNN paper reports of them."""

import hashlib

import pytest

from g10sim.capture.manifest import MANIFEST, other_versions, read_manifest
from g10sim.capture.source import capture_source
from g10sim.config.data import data_path
from g10sim.policies.designs.vdnn.layers import make_schedule
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import Phase

MIB = 2**20
ENTRIES = {entry.file: entry for entry in read_manifest(data_path("traces", "vdnn", MANIFEST)).traces}
FORWARD_MS, BACKWARD_MS, CONNECTED_MS, BETWEEN_MS = 321.0, 799.9, 29.6, 114
"""Figure 6 of the vDNN paper, VGG at batch 64: convolutions forward and backward, connected layers, and what
is left of the time between the two uses of the first layer's input, for ReLU and pooling."""


def trace(name):
    return load_trace(data_path("traces", "vdnn", f"{name}.g10t"))


@pytest.mark.parametrize(
    ("name", "mode", "published_mib"),
    [
        ("overfeat-b128", "all", 1158),
        ("overfeat-b128", "conv", 391),
        ("googlenet-b128", "conv", 1370),
        ("vgg19-b64", "all", 4027),
        ("vgg19-b64", "conv", 2543),
        ("vgg19-b128", "all", 8071),
        ("vgg19-b128", "conv", 5071),
        ("vgg19-b256", "all", 16_125),
        ("vgg19-b256", "conv", 10_141),
    ],
)
def test_offloaded_bytes_of_figure_12(name, mode, published_mib):
    """The paper offloads the images of the batch, too; in a captured step they stay."""
    found = trace(name)
    offloaded = make_schedule(found, mode, fuse_activations=True).offloaded
    images = sum(tensor.size_bytes for tensor in found.tensors if tensor.name == "input.0")
    assert images > 0
    moved = sum(found.tensors[tensor].size_bytes for tensor in offloaded) + images
    assert moved / MIB == pytest.approx(published_mib, rel=0.015)


@pytest.mark.parametrize(
    ("convolutions", "published_mib"), [(116, 16_976), (216, 31_951), (316, 46_841), (416, 61_816)]
)
def test_very_deep_networks_leave_on_the_host_what_figure_15_shows(convolutions, published_mib):
    found = trace(f"vgg{convolutions}-b32")
    offloaded = make_schedule(found, "all", fuse_activations=True).offloaded
    assert sum(kernel.name == "convolution" for kernel in found.kernels) == convolutions
    moved = sum(found.tensors[tensor].size_bytes for tensor in offloaded)
    assert moved / MIB == pytest.approx(published_mib, rel=0.005)


def milliseconds(found, *types, phase=None):
    return sum(
        kernel.duration / 1e6
        for kernel in found.kernels
        if kernel.layer_type in types and phase in (None, kernel.phase)
    )


def test_times_are_near_those_of_figure_6():
    """Forward convolutions are slower: cuDNN's FFT takes fewer operations than are counted."""
    found = trace("vgg19-b64")
    assert milliseconds(found, "Conv2d", phase=Phase.BACKWARD) == pytest.approx(BACKWARD_MS, rel=0.01)
    assert milliseconds(found, "Linear") == pytest.approx(CONNECTED_MS, rel=0.02)
    assert milliseconds(found, "ReLU", "MaxPool2d") == pytest.approx(BETWEEN_MS, rel=0.02)
    assert 1 < milliseconds(found, "Conv2d", phase=Phase.FORWARD) / FORWARD_MS < 1.13


def test_a_network_is_captured_again_byte_for_byte(torch, tmp_path):
    entry = ENTRIES["overfeat-b128.g10t"]
    if other_versions(entry):
        pytest.skip(f"the bundled traces were made with other versions: {other_versions(entry)}")
    again = capture_source(
        "g10sim.capture.convnets:overfeat",
        gpu="titan-x", batch_size=128, dtype="float32", optimizer="sgd", attention="fused",
    )  # fmt: skip
    save_trace(again, tmp_path / "again.g10t")
    assert hashlib.sha256((tmp_path / "again.g10t").read_bytes()).hexdigest() == entry.sha256
