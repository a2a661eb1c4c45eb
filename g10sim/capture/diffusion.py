"""Denoising networks of diffusers (UNets with text), built from a configuration with random weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from torch.nn.functional import mse_loss

from g10sim.capture.known_models import CONFIGURATION, Described, known_models, lay_over, local
from g10sim.capture.options import Sizes, StepOptions
from g10sim.capture.workload import Model
from g10sim.errors import ConfigError, as_spelled, choices_text, nearest

FOLDER = "diffusion"
_CLASS = "_class_name"
_TEXT_TOKENS = 77
"""Tokens of a prompt: positions of CLIP's text encoders (Radford et al., arXiv 2103.00020, section 2.4)."""
_PIXELS_PER_LATENT = 8
"""Pixels each way of an image for a value of its latents (Rombach et al., arXiv 2112.10752, section 4.3)."""
_TIMES = 6
"""Height and width of the original and of the target, top and left of the crop (Podell et al., arXiv
2307.01952, section 2.2)."""
_NOT_GIVEN = ("class_embed_type", "encoder_hid_dim_type", "num_class_embeds", "time_cond_proj_dim")
"""Keys of inputs besides latents, time and text."""


def build_diffusers(
    name: str, sizes: Sizes, options: StepOptions, settings: Sequence[str] = ()
) -> Callable[[], Model]:
    """Return a function that builds a UNet, its inputs, and its loss: the mean square error of the noise.

    ``name`` is a known model, a directory with a ``config.json``, or such a file; ``settings``
    (``KEY=VALUE``) change its configuration. ``image_size`` is that of the images, in pixels, eight of which
    are one value of their latents each way; it defaults to the model's. Prompts have 77 tokens. Raises
    ConfigError for another name, configuration or option.
    """
    source = f"diffusers:{name}"
    found = _described(name)
    known = [name for name in inspect.signature(UNet2DConditionModel).parameters if name != "kwargs"]
    for setting in settings:
        key = setting.partition("=")[0]
        if key not in known:
            raise found.no_such_key(setting, key, known)
        lay_over(found, setting)
    sizes.check(source, "images")
    with found.taken_by("diffusers"), torch.device("meta"):
        configuration = UNet2DConditionModel.from_config(found.data).config
    _check_inputs(found.place, configuration)
    pixels = sizes.image_size or _PIXELS_PER_LATENT * (configuration.sample_size or 0)
    if not pixels or pixels % _PIXELS_PER_LATENT:
        raise ConfigError(f"--image-size: found {pixels}; allowed: a multiple of {_PIXELS_PER_LATENT}")
    return partial(_model, found.data, sizes.batch_size, pixels // _PIXELS_PER_LATENT, options)


def _described(name: str) -> Described:
    models = known_models(FOLDER)
    plain = as_spelled(name.rpartition("/")[2], models)
    if plain in models:
        return Described(dict(models[plain][1].settings), f"diffusers:{name}")
    found = local(name, _CLASS)
    if found is None:
        raise ConfigError(
            f"diffusers:{name}: found a model whose configuration would have to be downloaded"
            f"{nearest(plain.lower(), models)}; allowed: {choices_text(models)}, or a directory with a "
            f"{CONFIGURATION}"
        )
    if found.data[_CLASS] != UNet2DConditionModel.__name__:
        raise ConfigError.at(f"{found.place}: {_CLASS}", found.data[_CLASS], UNet2DConditionModel.__name__)
    return found


def _check_inputs(place: str, configuration: Any) -> None:
    added = configuration.addition_embed_type
    wrong = [key for key in _NOT_GIVEN if configuration[key] is not None]
    if added not in (None, "text_time"):
        wrong.append("addition_embed_type")
    if wrong:
        raise ConfigError(
            f"{place}: {wrong[0]}: found {configuration[wrong[0]]}; allowed: models of latents, time and "
            "text, with sizes of images as in SDXL (addition_embed_type text_time) or without"
        )


def _model(data: dict[str, Any], samples: int, latents: int, options: StepOptions) -> Model:
    network = UNet2DConditionModel.from_config(data)
    if options.attention == "eager":
        network.set_attn_processor(AttnProcessor())
    configuration = network.config
    shape = (samples, configuration.in_channels, latents, latents)
    inputs = {
        "sample": torch.randn(shape),
        "timestep": torch.zeros(samples, dtype=torch.int64),
        "encoder_hidden_states": torch.randn(samples, _TEXT_TOKENS, _text_width(configuration)),
    }
    if configuration.addition_embed_type is not None:
        times = _TIMES * configuration.addition_time_embed_dim
        width = configuration.projection_class_embeddings_input_dim - times
        inputs["added_cond_kwargs"] = {
            "text_embeds": torch.randn(samples, width),
            "time_ids": torch.zeros(samples, _TIMES),
        }
    noise = torch.randn(samples, configuration.out_channels, *shape[2:])
    return Model(network, inputs, lambda output, noise: mse_loss(output.sample, noise), noise)


def _text_width(configuration: Any) -> int:
    width = configuration.cross_attention_dim
    return int(width if isinstance(width, int) else width[0])
