"""Builds Hugging Face models from their configurations, with random weights and nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from g10sim.capture.libraries import require
from g10sim.capture.models import KNOWN_MODELS, Task
from g10sim.capture.options import StepOptions
from g10sim.capture.sizes import Sizes
from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest

_DEFAULT_SEQUENCE_LENGTH = 512
_DEFAULT_PIXELS = 224
_CONFIGURATION = "config.json"


def hugging_face_builder(name: str, sizes: Sizes, options: StepOptions) -> Callable[[], Any]:
    """Return a function that builds a model and its inputs.

    ``name`` is a known model or a directory with a ``config.json``. Text models take ``seq_len`` (default
    512, or less where the model takes less), image models ``image_size`` (pixels, default the model's own).
    Raises ConfigError for an unknown name or an option that the model does not take.
    """
    require("transformers")
    import transformers

    configuration, task = _configuration(name)
    # Looked up now: importing a class while tensors are fake would leave fake tensors in its module.
    getattr(transformers, task.value)._model_mapping[type(configuration)]
    source = f"hf:{name}"
    if options.attention == "eager":
        configuration._attn_implementation = "eager"
    # Keys and values of a generation cache would stay alive through the whole training step.
    configuration.use_cache = False
    if task is Task.IMAGE_CLASSIFICATION:
        sizes.refuse_tokens(source)
        if sizes.image_size is not None:
            configuration.image_size = sizes.image_size
        return partial(_image_model, configuration, sizes.batch_size, options.inference)
    sizes.refuse_pixels(source)
    length = _sequence_length(source, _longest(name, configuration), sizes.seq_len)
    return partial(_text_model, configuration, task, sizes.batch_size, length, options.inference)


def _configuration(name: str) -> tuple[Any, Task]:
    import transformers

    known = KNOWN_MODELS.get(name.rpartition("/")[2])
    if known is not None:
        return getattr(transformers, known.configuration)(**known.settings), known.task
    path = Path(name) / _CONFIGURATION
    if not path.is_file():
        raise ConfigError(
            f"hf:{name}: found a model whose configuration would have to be downloaded"
            f"{nearest(name, KNOWN_MODELS)}; allowed: {choices_text(KNOWN_MODELS)}, a directory with a "
            f"{_CONFIGURATION}, or module:function"
        )
    try:
        configuration = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    except Exception as error:
        raise ConfigError(f"{path}: {error}; allowed: a configuration of transformers") from error
    return configuration, _task(path, configuration)


def _task(path: Path, configuration: Any) -> Task:
    architecture = (configuration.architectures or ["none"])[0]
    for task in Task:
        if architecture.endswith(task.value.removeprefix("AutoModel")):
            return task
    endings = choices_text(task.value.removeprefix("AutoModel") for task in Task)
    raise ConfigError(
        f"{path}: architectures: found {architecture}; allowed: a class whose name ends in {endings}"
    )


def _longest(name: str, configuration: Any) -> int:
    known = KNOWN_MODELS.get(name.rpartition("/")[2])
    return known.longest if known is not None else int(configuration.max_position_embeddings)


def _sequence_length(source: str, longest: int, seq_len: int | None) -> int:
    length = min(_DEFAULT_SEQUENCE_LENGTH, longest) if seq_len is None else seq_len
    if not 1 <= length <= longest:
        raise ConfigError(f"{source}: found --seq-len {length}; allowed: 1 to {longest}")
    return length


def _network(configuration: Any, task: Task) -> Any:
    import transformers

    network = getattr(transformers, task.value).from_config(configuration)
    # The loss follows from the name of the class, but not for every class.
    network.loss_type = task.value.removeprefix("AutoModel")
    return network


def _text_model(configuration: Any, task: Task, batch_size: int, length: int, inference: bool) -> Any:
    import torch

    inputs = {"input_ids": torch.zeros(batch_size, length, dtype=torch.int64)}
    if not inference:
        inputs["labels"] = torch.zeros(batch_size, length, dtype=torch.int64)
    return _network(configuration, task), inputs


def _image_model(configuration: Any, batch_size: int, inference: bool) -> Any:
    import torch

    pixels = getattr(configuration, "image_size", _DEFAULT_PIXELS)
    inputs = {"pixel_values": torch.zeros(batch_size, configuration.num_channels, pixels, pixels)}
    if not inference:
        inputs["labels"] = torch.zeros(batch_size, dtype=torch.int64)
    return _network(configuration, Task.IMAGE_CLASSIFICATION), inputs
