import sys
from functools import cache
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from g10sim.capture.source import capture_source, make_torchvision_importable, require, torchvision_misfit
from g10sim.cli.commands import app
from g10sim.errors import ConfigError
from g10sim.trace.check import check_trace
from g10sim.trace.model import Phase, TensorKind

INSTALL = "is not installed: pip install 'g10sim[capture]'"


@pytest.fixture
def libraries(torch):
    make_torchvision_importable()
    for name in ("torchvision", "timm"):
        pytest.importorskip(name, reason=f"{name} {INSTALL}")


def captured(source, **options):
    trace = capture_source(source, gpu="a100-40g", **({"batch_size": 2, "optimizer": "sgd"} | options))
    check_trace(trace)
    return trace


@cache
def trained(source):
    return captured(source)


def elements(trace, kind=TensorKind.WEIGHT):
    return sum(tensor.size_bytes for tensor in trace.tensors if tensor.kind is kind) // 4


@pytest.mark.parametrize(
    ("source", "parameters", "pixels"),
    [
        ("torchvision:resnet152", 60_192_808, 224),
        pytest.param("torchvision:inception_v3", 27_161_264, 299, marks=pytest.mark.nightly),
        pytest.param("torchvision:vit_b_16", 86_567_656, 224, marks=pytest.mark.nightly),
        pytest.param("timm:legacy_senet154", 115_088_984, 224, marks=pytest.mark.nightly),
        ("timm:vit_base_patch16_224", 86_567_656, 224),
    ],
)
def test_a_classifier_has_its_published_size_and_images(libraries, source, parameters, pixels):
    trace = trained(source)
    assert elements(trace) == parameters
    images = next(tensor for tensor in trace.tensors if tensor.name == "input.0")
    assert images.size_bytes == 2 * 3 * pixels**2 * 4
    assert trace.origin[source.partition(":")[0]]
    assert trace.model == source.partition(":")[2]
    assert {kernel.phase for kernel in trace.kernels} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


@pytest.mark.nightly
def test_auxiliary_classifiers_count_in_training_and_not_in_inference(libraries):
    training = trained("torchvision:inception_v3")
    inference = captured("torchvision:inception_v3", inference=True, optimizer=None)
    assert [kernel.name for kernel in training.kernels].count("nll_loss_forward") == 2
    layers = {kernel.layer.partition(".")[0] for kernel in inference.kernels}
    assert "AuxLogits" in {kernel.layer.partition(".")[0] for kernel in training.kernels}
    assert "AuxLogits" not in layers


@pytest.mark.parametrize("source", ["torchvision:vit_b_16", "timm:vit_tiny_patch16_224", "timm:resnet18"])
def test_images_may_have_another_size(libraries, source):
    trace = captured(source, image_size=64)
    images = next(tensor for tensor in trace.tensors if tensor.name == "input.0")
    assert images.size_bytes == 2 * 3 * 64**2 * 4


def test_checkpointing_finds_the_blocks_of_classifiers(libraries):
    plain, again = (
        captured("torchvision:resnet18", activation_checkpointing=choice) for choice in (False, True)
    )
    names = [kernel.name for kernel in again.kernels if kernel.phase is Phase.BACKWARD]
    assert names.count("convolution") > 10
    assert "convolution" not in {kernel.name for kernel in plain.kernels if kernel.phase is Phase.BACKWARD}


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            "timm:resnet512",
            {},
            "found no such classifier in the installed library, and nothing is downloaded",
        ),
        ("timm:vit_base_patch16_22", {}, "did you mean 'vit_base_patch16_224'?"),
        ("timm:resnet152.nobody", {}, "allowed: the name without what follows the dot"),
        ("timm:hf-hub:someone/model", {}, "nothing is downloaded"),
        ("torchvision:resnet151", {}, "did you mean 'resnet152'?"),
        ("torchvision:fasterrcnn_resnet50_fpn", {}, "found no such classifier"),
        ("torchvision:resnet18", {"seq_len": 8}, "found --seq-len 8 for a model of images; allowed: --image"),
    ],
)
def test_a_classifier_that_cannot_be_built_offline_is_refused(libraries, source, options, message):
    with pytest.raises(ConfigError) as refused:
        captured(source, **options)
    assert message in str(refused.value)
    assert str(refused.value).startswith(source)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_is_named_with_the_extra_to_install(torch, monkeypatch, library):
    monkeypatch.setattr("g10sim.capture.source.make_torchvision_importable", lambda: None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"capture needs {library}.*pip install 'g10sim\[capture\]'"):
        captured(f"{library}:resnet18")


def test_views_made_in_place_are_no_kernels(libraries):
    trace = captured("torchvision:convnext_tiny")
    assert "as_strided_" not in {kernel.name for kernel in trace.kernels}
    assert "operators_priced_by_bytes" not in trace.origin


NMS = "operator torchvision::nms does not exist"


def test_a_library_that_does_not_fit_pytorch_is_refused_in_one_line(torch, tmp_path, monkeypatch):
    (tmp_path / "ill_fitting.py").write_text(f"raise RuntimeError('{NMS}')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refused:
        require("ill_fitting")
    assert (
        f"capture needs ill_fitting, which cannot be imported: it does not fit the other libraries ({NMS})"
        in str(refused.value)
    )
    assert "allowed: releases that fit, as pip install 'g10sim[capture]' chooses" in str(refused.value)


def test_a_torchvision_that_does_not_fit_is_named_with_both_releases(libraries, monkeypatch):
    def fail(_):
        raise RuntimeError(f"{NMS}\n")

    monkeypatch.setattr("g10sim.capture.source.importlib.import_module", fail)
    releases = f"torchvision {version('torchvision')} does not fit torch {version('torch')}"
    assert torchvision_misfit.__wrapped__() == f"{releases} ({NMS})"


def test_a_capture_says_that_it_did_without_the_compiled_operators(libraries, monkeypatch, tmp_path):
    monkeypatch.setattr("g10sim.cli.capture.torchvision_misfit", lambda: f"torchvision does not fit ({NMS})")
    arguments = ["torchvision:resnet18", "--batch-size", "1", "--inference", "--gpu", "h100"]
    result = CliRunner().invoke(app, ["trace", "capture", *arguments, "-o", str(tmp_path / "out.g10t")])
    assert result.exit_code == 0
    assert f"torchvision does not fit ({NMS}): captured without torchvision's compiled" in " ".join(
        result.stderr.split()
    )
