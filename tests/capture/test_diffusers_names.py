"""Denoising networks of diffusers by name, file and settings."""

import json
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture.known_models import known_models
from g10sim.capture.options import Sizes, StepOptions
from g10sim.capture.source import capture_source
from g10sim.errors import ConfigError
from g10sim.trace.check import check_trace
from g10sim.trace.model import Phase, TensorKind

pytestmark = pytest.mark.slow

SDXL = "stable-diffusion-xl-base-1.0"
TINY = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 16,
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2],
    "attention_head_dim": [2, 4],
    "cross_attention_dim": 32,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 80,
    "norm_num_groups": 8,
}
"""The form of SDXL, small: 80 values are 8 for each of six sizes, and 32 of the prompt."""


@pytest.fixture
def diffusers():
    from g10sim.capture.source import make_torchvision_importable

    make_torchvision_importable()
    return pytest.importorskip("diffusers", reason="needs pip install 'g10sim[capture]'")


@pytest.fixture
def place(tmp_path, diffusers):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path


def captured(source, **options):
    trace = capture_source(source, gpu="a100-40g", **({"batch_size": 2} | options))
    check_trace(trace)
    return trace


def test_a_step_of_a_unet_is_captured_from_a_file(place):
    trace = captured(f"diffusers:{place}")
    assert {kernel.phase for kernel in trace.kernels} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    sizes = {tensor.name: tensor.size_bytes for tensor in trace.tensors}
    assert sizes["input.sample"] == sizes["input.targets"] == 2 * 4 * 16 * 16 * 4
    assert sizes["input.encoder_hidden_states"] == 2 * 77 * 32 * 4
    names = [kernel.name for kernel in trace.kernels]
    # Transformers of two layers, which attend to images and text: one down, one in the middle, two up.
    layers = [k.layer for k in trace.kernels if k.name == "attention"]
    assert len(layers) == len(set(layers)) == 2 * 2 * (1 + 1 + 2)
    assert names.count("mse_loss") == 1
    assert "operators_priced_by_bytes" not in trace.origin


def test_images_have_eight_times_the_size_of_their_latents(place):
    trace = captured(f"diffusers:{place}", image_size=64, inference=True, attention="eager")
    assert next(t for t in trace.tensors if t.name == "input.sample").size_bytes == 2 * 4 * 8 * 8 * 4
    names = {kernel.name for kernel in trace.kernels}
    assert "attention" not in names
    assert "_softmax" in names


def test_settings_change_the_configuration(place):
    from g10sim.capture.diffusion import build_diffusers

    build = build_diffusers(str(place), Sizes(1), StepOptions(), ["layers_per_block=2"])
    assert build.args[0]["layers_per_block"] == 2


@pytest.mark.parametrize("name", known_models("diffusion"))
def test_a_known_unet_has_its_published_number_of_parameters(diffusers, name):
    import torch

    _, model = known_models("diffusion")[name]
    assert model.source.startswith("https://huggingface.co/")
    with torch.device("meta"):
        network = diffusers.UNet2DConditionModel.from_config(model.settings)
    assert sum(weight.numel() for weight in network.parameters()) == model.parameters


@pytest.mark.nightly
def test_sdxl_is_captured_by_its_name(diffusers):
    trace = captured(f"diffusers:{SDXL}", dtype="bfloat16", batch_size=1)
    weights = sum(t.size_bytes for t in trace.tensors if t.kind is TensorKind.WEIGHT)
    assert weights == 2 * known_models("diffusion")[SDXL][1].parameters


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {"_class_name": "FluxTransformer2DModel"},
            {},
            "_class_name: found FluxTransformer2DModel; allowed: UNet2D",
        ),
        ({"_class_name": None}, {}, "found no _class_name; allowed: the configuration of a model"),
        ({"addition_embed_type": "text"}, {}, "addition_embed_type: found text; allowed: models of latents"),
        ({"mid_block_type": "Deep"}, {}, "Deep"),
        ({}, {"image_size": 60}, "--image-size: found 60; allowed: a multiple of 8"),
        ({}, {"seq_len": 8}, "found --seq-len 8 for a model of images"),
        ({}, {"settings": ["sample_sise=8"]}, "found no such key (did you mean 'sample_size'?)"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused_in_one_line(place, change, options, message):
    (place / "config.json").write_text(json.dumps(TINY | change))
    with pytest.raises(ConfigError) as refused:
        captured(f"diffusers:{place}", **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_would_be_downloaded_is_refused_with_those_that_are_known(diffusers):
    with pytest.raises(ConfigError, match=f"have to be downloaded.*allowed: .*{SDXL}"):
        captured("diffusers:stable-diffusion-3")


def test_a_missing_diffusers_is_named_with_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ConfigError, match=r"capture needs diffusers.*pip install 'g10sim\[capture\]'"):
        captured(f"diffusers:{SDXL}")
