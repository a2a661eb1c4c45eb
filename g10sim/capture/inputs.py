"""Inputs of models of transformers, by what they are trained for."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from g10sim.capture.values import with_values
from g10sim.errors import ConfigError


class Task(StrEnum):
    """Tasks that a model is trained for, by the class of transformers that builds its models.

    A model that is made for several, and does not say which, takes the first.
    """

    SPEECH = "AutoModelForSpeechSeq2Seq"
    IMAGE_AND_TEXT = "AutoModelForImageTextToText"
    SEQUENCE_TO_SEQUENCE = "AutoModelForSeq2SeqLM"
    MASKED_LM = "AutoModelForMaskedLM"
    CAUSAL_LM = "AutoModelForCausalLM"
    CONTRASTIVE = "AutoModelForZeroShotImageClassification"
    IMAGE_CLASSIFICATION = "AutoModelForImageClassification"
    SEQUENCE_CLASSIFICATION = "AutoModelForSequenceClassification"
    TOKEN_CLASSIFICATION = "AutoModelForTokenClassification"
    QUESTION_ANSWERING = "AutoModelForQuestionAnswering"


@dataclass(frozen=True, slots=True)
class InputSizes:
    """Sizes of a model's inputs: samples, tokens of a sample's text, pixels each way of its image."""

    batch: int
    tokens: int
    pixels: int


def make_inputs(network: Any, task: Task, sizes: InputSizes, *, training: bool) -> dict[str, Any]:
    """Make the inputs of a model by name, with labels in training.

    Raises ConfigError for a model of speech, or of images and text, that takes others than these.
    """
    made = _inputs(network, task, sizes)
    labels = _labels(task, sizes, made)
    if training:
        made |= labels
    elif task in (Task.SEQUENCE_TO_SEQUENCE, Task.SPEECH):
        made["decoder_input_ids"] = labels["labels"]  # in training the model makes them of the labels
    takes = inspect.signature(network.forward).parameters
    return {name: value for name, value in made.items() if name in takes or "kwargs" not in takes}


def _inputs(network: Any, task: Task, sizes: InputSizes) -> dict[str, Any]:
    configuration = network.config
    if task is Task.SPEECH:
        return {"input_features": _spectrogram(configuration, sizes)}
    if task is Task.IMAGE_CLASSIFICATION:
        return {"pixel_values": _images(configuration, sizes)}
    if task is Task.CONTRASTIVE:
        return {"input_ids": _ids(sizes), "pixel_values": _images(configuration.vision_config, sizes)}
    if task is Task.IMAGE_AND_TEXT:
        return _image_and_text(network, sizes)
    return {"input_ids": _ids(sizes)}


def _labels(task: Task, sizes: InputSizes, made: dict[str, Any]) -> dict[str, Any]:
    if task is Task.CONTRASTIVE:
        return {"return_loss": True}
    if task is Task.QUESTION_ANSWERING:
        return {name: _classes(sizes) for name in ("start_positions", "end_positions")}
    if task in (Task.IMAGE_CLASSIFICATION, Task.SEQUENCE_CLASSIFICATION):
        return {"labels": _classes(sizes)}
    if task is Task.IMAGE_AND_TEXT:
        return {"labels": torch.zeros_like(made["input_ids"])}
    return {"labels": _ids(sizes)}


def _ids(sizes: InputSizes) -> Any:
    return torch.zeros((sizes.batch, sizes.tokens), dtype=torch.int64)


def _classes(sizes: InputSizes) -> Any:
    return torch.zeros((sizes.batch,), dtype=torch.int64)


def _images(vision: Any, sizes: InputSizes) -> Any:
    channels = getattr(vision, "num_channels", 3)
    return torch.zeros(sizes.batch, channels, sizes.pixels, sizes.pixels)


def _spectrogram(configuration: Any, sizes: InputSizes) -> Any:
    """Make what Whisper takes: bins of frequency by frames, two of which become one position."""
    bins = getattr(configuration, "num_mel_bins", None)
    positions = getattr(configuration, "max_source_positions", None)
    if bins is None or positions is None or configuration.model_type != "whisper":
        raise _refused(configuration, "speech other than Whisper's")
    return torch.zeros(sizes.batch, bins, 2 * positions)


def _image_and_text(network: Any, sizes: InputSizes) -> dict[str, Any]:
    """Make one image for each sample, and its text behind as many placeholders as the image has features.

    Which tokens are placeholders decides shapes, so the tokens have values.
    """
    configuration = network.config
    found = (getattr(configuration, name, None) for name in ("image_token_id", "image_token_index"))
    placeholder = next((number for number in found if number is not None), None)
    if placeholder is None or not hasattr(network, "get_image_features"):
        raise _refused(configuration, "images and text without placeholders for images")
    images = _image_inputs(configuration.vision_config, sizes)
    with torch.no_grad():
        features = network.get_image_features(**images)
    features = getattr(features, "pooler_output", features)
    parts = features if isinstance(features, (list, tuple)) else [features]
    width = configuration.get_text_config().hidden_size
    places = sum(part.numel() for part in parts) // width // sizes.batch
    ids = [[placeholder] * places + [placeholder - 1 or 1] * sizes.tokens] * sizes.batch
    kinds = [[1] * places + [0] * sizes.tokens] * sizes.batch
    made = {"input_ids": _known(ids), **images}
    if hasattr(network.model, "get_rope_index"):  # positions in time, height and width, made with the batch
        made["position_ids"] = torch.zeros((3, sizes.batch, places + sizes.tokens), dtype=torch.int64)
    takes = inspect.signature(network.forward).parameters
    return made | {name: _known(kinds) for name in ("token_type_ids", "mm_token_type_ids") if name in takes}


def _image_inputs(vision: Any, sizes: InputSizes) -> dict[str, Any]:
    """Make images as pixels, or as the patches of a grid where patches span frames (Qwen2-VL's form)."""
    if not hasattr(vision, "temporal_patch_size"):
        return {"pixel_values": _images(vision, sizes)}
    side = sizes.pixels // vision.patch_size
    merged = getattr(vision, "spatial_merge_size", 1)
    if side * vision.patch_size != sizes.pixels or side % merged:
        raise ConfigError(
            f"--image-size: found {sizes.pixels}; allowed: a multiple of {vision.patch_size * merged}"
        )
    channels = getattr(vision, "in_channels", 3)
    values = channels * vision.temporal_patch_size * vision.patch_size**2
    patches = torch.zeros(sizes.batch * side * side, values)
    return {"pixel_values": patches, "image_grid_thw": _known([[1, side, side]] * sizes.batch)}


def _known(numbers: list[list[int]]) -> Any:
    with torch.utils._python_dispatch._disable_current_modes():
        values = torch.tensor(numbers, dtype=torch.int64)
    return with_values(values)


def _refused(configuration: Any, found: str) -> ConfigError:
    return ConfigError(
        f"hf: found the family {configuration.model_type}, a model of {found}; allowed: models of text, of "
        "images, of both with placeholders for images in the text, and Whisper; or module:function"
    )
