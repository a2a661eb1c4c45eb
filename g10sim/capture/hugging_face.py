"""Models of Hugging Face transformers, built from a configuration with random weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING

from g10sim.capture.known_models import Described, described
from g10sim.capture.options import GROUPED, Sizes, StepOptions
from g10sim.capture.routing import split_experts, with_values
from g10sim.errors import ConfigError, choices_text, nearest

_DEFAULT_SEQUENCE_LENGTH = 512
_DEFAULT_PIXELS = 224
_LONGEST = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")
"""Names of the most positions in configurations; one without any of them has no limit."""
_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_POSITIONS_AFTER_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "longformer", "mpnet")
"""Families whose positions start behind that of padding, so that a sample takes as many fewer."""


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


_OF_BOTH = frozenset({Task.IMAGE_AND_TEXT, Task.CONTRASTIVE})
_LOSS_TYPE_OF_TASK = frozenset({Task.MASKED_LM, Task.CAUSAL_LM, Task.IMAGE_CLASSIFICATION})


def build_hugging_face(
    name: str, sizes: Sizes, options: StepOptions, settings: Sequence[str] = ()
) -> Callable[[], Any]:
    """Return a function that builds a model and its inputs.

    ``name`` is one that ``described`` takes; ``settings`` (``KEY=VALUE``) change its configuration. Text
    takes ``seq_len`` (default 512, or less where the model takes less), images ``image_size`` (pixels,
    default the model's own). Raises ConfigError for an unknown name, a configuration that transformers does
    not take, or an option that the model does not take.
    """
    found = described(name, settings)
    configuration = _configuration(found, settings)
    task = _task(found, configuration)
    _settle_special_tokens(configuration, task)
    if options.attention == "eager":
        configuration._attn_implementation = "eager"
    # Keys and values of a generation cache would stay alive through the whole training step.
    for part in (configuration, configuration.get_text_config()):
        part.use_cache = False
    settled = _settled(f"hf:{name}", found, configuration, task, sizes)
    return partial(_model, configuration, task, settled, options)


def _configuration(found: Described, settings: Sequence[str]) -> Any:
    data = dict(found.data)
    family = data.pop("model_type")
    if family not in CONFIG_MAPPING:
        raise ConfigError(
            f"{found.place}: model_type: found '{family}'{nearest(family, CONFIG_MAPPING)}; allowed: the "
            f"{len(list(CONFIG_MAPPING))} families of the installed transformers (its own code is not run)"
        )
    with found.taken_by("transformers"), _quiet():
        _check_keys(found, CONFIG_MAPPING[family](), settings)
        return CONFIG_MAPPING[family].from_dict(data)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from remarks on configurations, such as on special tokens, while open."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def _settle_special_tokens(configuration: Any, task: Task) -> None:
    """Let special tokens that a model asks for be ones that it has: no number of them changes a kernel."""
    text = configuration.get_text_config()
    for part in (configuration, text):
        most = getattr(part, "vocab_size", None) or getattr(text, "vocab_size", None)
        # The last token before padding decides the class of a sequence.
        if task is Task.SEQUENCE_CLASSIFICATION and getattr(part, "pad_token_id", None) is None:
            part.pad_token_id = 0
        if configuration.is_encoder_decoder and getattr(part, "decoder_start_token_id", None) is None:
            part.decoder_start_token_id = 0
        for name in _SPECIAL_TOKENS:
            token = getattr(part, name, None)
            if isinstance(token, int) and most is not None and token >= most:
                setattr(part, name, 0)


def _check_keys(found: Described, default: Any, settings: Sequence[str]) -> None:
    """Raise ConfigError for a setting that the family does not have: transformers would ignore it."""
    for setting in settings:
        key = setting.partition("=")[0]
        *above, last = key.split(".")
        part = default
        for name in above:
            part = getattr(part, name, None)
        if part is None or isinstance(part, Mapping) or key in found.published:
            continue  # made of what is given, or free
        if not hasattr(part, last):
            known = [name for name in part.to_dict() if not name.startswith("_")]
            raise found.no_such_key(setting, last, known)


def _task(found: Described, configuration: Any) -> Task:
    """Tell the task by the class that a configuration names, or the first that the family is made for."""
    # Looked up now: importing a class while tensors are fake would leave fake tensors in its module.
    classes = {}
    for task in Task:
        mapping = getattr(transformers, task.value)._model_mapping
        if type(configuration) in mapping:
            made = mapping[type(configuration)]
            classes[task] = getattr(made, "__name__", "")
    named = (configuration.architectures or [None])[0]
    for task, name in classes.items():
        if named in (None, name):
            return task
    if not classes:
        tasks = choices_text(f"...{task.value.removeprefix('AutoModel')}" for task in Task)
        raise ConfigError(
            f"{found.place}: found the family {configuration.model_type}, which is made for none of the "
            f"tasks that capture knows; allowed: {tasks}"
        )
    raise ConfigError.at(f"{found.place}: architectures", named, choices_text(set(classes.values())))


def _settled(source: str, found: Described, configuration: Any, task: Task, sizes: Sizes) -> Sizes:
    """Return the sizes with the model's own in place of those that are not given."""
    is_of_images = task is Task.IMAGE_CLASSIFICATION
    if is_of_images:
        sizes.check(source, "images")
    elif task not in _OF_BOTH:
        sizes.check(source, "text")
    vision = getattr(configuration, "vision_config", None) or configuration
    if sizes.image_size:
        vision.image_size = sizes.image_size
    pixels = getattr(vision, "image_size", None) or _DEFAULT_PIXELS
    pixels = pixels if isinstance(pixels, int) else pixels[0]
    if is_of_images:
        return replace(sizes, image_size=pixels)
    longest = found.longest or _longest(configuration)
    seq_len = _sequence_length(source, longest, sizes.seq_len)
    return replace(sizes, seq_len=seq_len, image_size=pixels)


def _longest(configuration: Any) -> int | None:
    text = configuration.get_text_config()
    for name in _LONGEST:
        found = getattr(text, name, None)
        if isinstance(found, int) and found > 0:
            behind = text.model_type in _POSITIONS_AFTER_PADDING
            return found - (text.pad_token_id + 1 if behind else 0)
    return None


def _sequence_length(source: str, longest: int | None, seq_len: int) -> int:
    most = longest or max(_DEFAULT_SEQUENCE_LENGTH, seq_len)
    length = seq_len or min(_DEFAULT_SEQUENCE_LENGTH, most)
    if not 1 <= length <= most:
        raise ConfigError(f"{source}: found --seq-len {length}; allowed: 1 to {most}")
    return length


def _model(configuration: Any, task: Task, sizes: Sizes, options: StepOptions) -> Any:
    """Build a network and its inputs."""
    with torch.no_grad():
        dtype = getattr(torch, options.dtype)
        network = getattr(transformers, task.value).from_config(configuration, dtype=dtype)
    if task in _LOSS_TYPE_OF_TASK:
        # The loss follows from the name of the class, but not for every class.
        network.loss_type = task.value.removeprefix("AutoModel")
    if options.routing != GROUPED:
        split_experts(network)
    return network, _make_inputs(network, task, sizes, training=not options.inference)


def _make_inputs(network: Any, task: Task, sizes: Sizes, *, training: bool) -> dict[str, Any]:
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


def _inputs(network: Any, task: Task, sizes: Sizes) -> dict[str, Any]:
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


def _labels(task: Task, sizes: Sizes, made: dict[str, Any]) -> dict[str, Any]:
    if task is Task.CONTRASTIVE:
        return {"return_loss": True}
    if task is Task.QUESTION_ANSWERING:
        return {name: _classes(sizes) for name in ("start_positions", "end_positions")}
    if task in (Task.IMAGE_CLASSIFICATION, Task.SEQUENCE_CLASSIFICATION):
        return {"labels": _classes(sizes)}
    if task is Task.IMAGE_AND_TEXT:
        return {"labels": torch.zeros_like(made["input_ids"])}
    return {"labels": _ids(sizes)}


def _ids(sizes: Sizes) -> Any:
    return torch.zeros((sizes.batch_size, sizes.seq_len), dtype=torch.int64)


def _classes(sizes: Sizes) -> Any:
    return torch.zeros((sizes.batch_size,), dtype=torch.int64)


def _images(vision: Any, sizes: Sizes) -> Any:
    channels = getattr(vision, "num_channels", 3)
    return torch.zeros(sizes.batch_size, channels, sizes.image_size, sizes.image_size)


def _spectrogram(configuration: Any, sizes: Sizes) -> Any:
    """Make what Whisper takes: bins of frequency by frames, two of which become one position."""
    bins = getattr(configuration, "num_mel_bins", None)
    positions = getattr(configuration, "max_source_positions", None)
    if bins is None or positions is None or configuration.model_type != "whisper":
        raise _refused(configuration, "speech other than Whisper's")
    return torch.zeros(sizes.batch_size, bins, 2 * positions)


def _image_and_text(network: Any, sizes: Sizes) -> dict[str, Any]:
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
    places = sum(part.numel() for part in parts) // width // sizes.batch_size
    ids = [[placeholder] * places + [placeholder - 1 or 1] * sizes.seq_len] * sizes.batch_size
    kinds = [[1] * places + [0] * sizes.seq_len] * sizes.batch_size
    made = {"input_ids": _known(ids), **images}
    if hasattr(network.model, "get_rope_index"):  # positions in time, height and width, made with the batch
        made["position_ids"] = torch.zeros((3, sizes.batch_size, places + sizes.seq_len), dtype=torch.int64)
    takes = inspect.signature(network.forward).parameters
    return made | {name: _known(kinds) for name in ("token_type_ids", "mm_token_type_ids") if name in takes}


def _image_inputs(vision: Any, sizes: Sizes) -> dict[str, Any]:
    """Make images as pixels, or as the patches of a grid where patches span frames (Qwen2-VL's form)."""
    if not hasattr(vision, "temporal_patch_size"):
        return {"pixel_values": _images(vision, sizes)}
    side = sizes.image_size // vision.patch_size
    merged = getattr(vision, "spatial_merge_size", 1)
    if side * vision.patch_size != sizes.image_size or side % merged:
        raise ConfigError.at("--image-size", sizes.image_size, f"a multiple of {vision.patch_size * merged}")
    channels = getattr(vision, "in_channels", 3)
    values = channels * vision.temporal_patch_size * vision.patch_size**2
    patches = torch.zeros(sizes.batch_size * side * side, values)
    return {"pixel_values": patches, "image_grid_thw": _known([[1, side, side]] * sizes.batch_size)}


def _known(numbers: list[list[int]]) -> Any:
    with torch.utils._python_dispatch._disable_current_modes():
        values = torch.tensor(numbers, dtype=torch.int64)
    return with_values(values)


def _refused(configuration: Any, found: str) -> ConfigError:
    return ConfigError(
        f"hf: found the family {configuration.model_type}, a model of {found}; allowed: models of text, of "
        "images, of both with placeholders for images in the text, and Whisper; or module:function"
    )
