"""Models of the libraries that only capture needs, built with random weights and nothing downloaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from g10sim.capture.options import Sizes, StepOptions
from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest

_INSTALL = "pip install 'g10sim[capture]'"
_DEFAULT_SEQUENCE_LENGTH = 512
_DEFAULT_PIXELS = 224
_CONFIGURATION = "config.json"
_AUXILIARY_SHARE = 0.4
"""Weight of the loss of an auxiliary classifier, as in PyTorch's tutorial on fine-tuning Inception-v3, after
Szegedy et al., Going Deeper with Convolutions, arXiv 1409.4842, section 5 (0.3 there)."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


def require(module: str) -> None:
    """Import a library that only capture needs. Raises ConfigError saying which extra to install."""
    try:
        __import__(module)
    except ImportError as error:
        raise ConfigError(
            f"capture needs {module}, which is not installed ({error}); allowed: {_INSTALL}"
        ) from error


def make_torchvision_importable() -> None:
    """Let a torchvision be imported whose compiled operators do not fit the installed PyTorch.

    A torchvision for CUDA beside a PyTorch for CPUs cannot load them and stops at the declaration of ``nms``,
    which detection needs and classifiers do not. Declaring it is enough.
    """
    if find_spec("torchvision") is None:
        return
    try:
        import torchvision as torchvision
    except RuntimeError:
        _declared_operators()


@cache
def _declared_operators() -> Any:
    """Declare the operators; the result is kept, for the declarations end with it."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


class Task(StrEnum):
    """Tasks that a model is trained for, each of which decides its head and its inputs."""

    MASKED_LM = "AutoModelForMaskedLM"
    CAUSAL_LM = "AutoModelForCausalLM"
    IMAGE_CLASSIFICATION = "AutoModelForImageClassification"


@dataclass(frozen=True)
class KnownModel:
    """A configuration class of transformers, what differs from its defaults, and the longest input.

    ``longest`` counts tokens; it is 0 for a model of images.
    """

    configuration: str
    task: Task
    longest: int
    settings: Mapping[str, Any] = field(default_factory=dict)


def _bert(vocabulary: int, **settings: Any) -> KnownModel:
    return KnownModel("BertConfig", Task.MASKED_LM, 512, {"vocab_size": vocabulary, **settings})


def _gpt2(layers: int, width: int, heads: int) -> KnownModel:
    return KnownModel(
        "GPT2Config", Task.CAUSAL_LM, 1024, {"n_layer": layers, "n_embd": width, "n_head": heads}
    )


def _opt(layers: int, width: int, heads: int) -> KnownModel:
    settings = {"num_hidden_layers": layers, "num_attention_heads": heads, "ffn_dim": 4 * width}
    return KnownModel(
        "OPTConfig", Task.CAUSAL_LM, 2048, {"hidden_size": width, "word_embed_proj_dim": width, **settings}
    )


def _llama(
    layers: int, width: int, inner: int, heads: int, key_heads: int, vocabulary: int, longest: int
) -> KnownModel:
    return KnownModel(
        "LlamaConfig",
        Task.CAUSAL_LM,
        longest,
        {
            "num_hidden_layers": layers,
            "hidden_size": width,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "vocab_size": vocabulary,
            "max_position_embeddings": longest,
        },
    )


_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_VIT = {"num_labels": 1000}

KNOWN_MODELS: Mapping[str, KnownModel] = {
    "bert-base-uncased": _bert(30522),
    "bert-base-cased": _bert(28996),
    "bert-large-uncased": _bert(30522, **_LARGE),
    "bert-large-cased": _bert(28996, **_LARGE),
    "roberta-base": KnownModel("RobertaConfig", Task.MASKED_LM, 512, _ROBERTA),
    "roberta-large": KnownModel("RobertaConfig", Task.MASKED_LM, 512, _ROBERTA | _LARGE),
    "distilbert-base-uncased": KnownModel("DistilBertConfig", Task.MASKED_LM, 512),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "opt-125m": _opt(12, 768, 12),
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-6.7b": _opt(32, 4096, 32),
    "TinyLlama-1.1B": _llama(22, 2048, 5632, 32, 4, 32000, 2048),
    "Llama-2-7b": _llama(32, 4096, 11008, 32, 32, 32000, 4096),
    "Llama-2-13b": _llama(40, 5120, 13824, 40, 40, 32000, 4096),
    "Llama-65b": _llama(80, 8192, 22016, 64, 64, 32000, 2048),
    "Llama-2-70b": _llama(80, 8192, 28672, 64, 8, 32000, 4096),
    "Meta-Llama-3-8B": _llama(32, 4096, 14336, 32, 8, 128256, 8192),
    "Meta-Llama-3-70B": _llama(80, 8192, 28672, 64, 8, 128256, 8192),
    "vit-base-patch16-224": KnownModel("ViTConfig", Task.IMAGE_CLASSIFICATION, 0, _VIT),
    "vit-large-patch16-224": KnownModel("ViTConfig", Task.IMAGE_CLASSIFICATION, 0, _VIT | _LARGE),
}
"""By the name on the Hugging Face hub without its owner; sizes as published with each model."""


def hugging_face_builder(name: str, sizes: Sizes, options: StepOptions) -> Callable[[], Any]:
    """Return a function that builds a model and its inputs.

    ``name`` is a known model or a directory with a ``config.json``. Text models take ``seq_len`` (default
    512, or less where the model takes less), image models ``image_size`` (pixels, default the model's own).
    Raises ConfigError for an unknown name or an option that the model does not take.
    """
    require("transformers")
    import transformers

    configuration, task, longest = _configuration(name)
    # Looked up now: importing a class while tensors are fake would leave fake tensors in its module.
    getattr(transformers, task.value)._model_mapping[type(configuration)]
    source = f"hf:{name}"
    if options.attention == "eager":
        configuration._attn_implementation = "eager"
    # Keys and values of a generation cache would stay alive through the whole training step.
    configuration.use_cache = False
    batch = sizes.batch_size
    if task is Task.IMAGE_CLASSIFICATION:
        sizes.check(source, "images")
        if sizes.image_size is not None:
            configuration.image_size = sizes.image_size
        pixels = getattr(configuration, "image_size", _DEFAULT_PIXELS)
        images = {"pixel_values": (batch, configuration.num_channels, pixels, pixels)}
        return partial(_model, configuration, task, images, {} if options.inference else {"labels": (batch,)})
    sizes.check(source, "text")
    shape = (batch, _sequence_length(source, longest, sizes.seq_len))
    tokens = {"input_ids": shape} if options.inference else {"input_ids": shape, "labels": shape}
    return partial(_model, configuration, task, {}, tokens)


def _configuration(name: str) -> tuple[Any, Task, int]:
    """Return the configuration of a model, its task and its longest input."""
    import transformers

    known = KNOWN_MODELS.get(name.rpartition("/")[2])
    if known is not None:
        return getattr(transformers, known.configuration)(**known.settings), known.task, known.longest
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
    return configuration, _task(path, configuration), getattr(configuration, "max_position_embeddings", 0)


def _task(path: Path, configuration: Any) -> Task:
    architecture = (configuration.architectures or ["none"])[0]
    for task in Task:
        if architecture.endswith(task.value.removeprefix("AutoModel")):
            return task
    endings = choices_text(task.value.removeprefix("AutoModel") for task in Task)
    raise ConfigError(
        f"{path}: architectures: found {architecture}; allowed: a class whose name ends in {endings}"
    )


def _sequence_length(source: str, longest: int, seq_len: int | None) -> int:
    length = min(_DEFAULT_SEQUENCE_LENGTH, longest) if seq_len is None else seq_len
    if not 1 <= length <= longest:
        raise ConfigError(f"{source}: found --seq-len {length}; allowed: 1 to {longest}")
    return length


def _model(configuration: Any, task: Task, floats: Shapes, integers: Shapes) -> Any:
    """Build a network and its inputs, given the names and shapes of those with floats and with integers."""
    import torch
    import transformers

    network = getattr(transformers, task.value).from_config(configuration)
    # The loss follows from the name of the class, but not for every class.
    network.loss_type = task.value.removeprefix("AutoModel")
    inputs = {name: torch.zeros(shape) for name, shape in floats.items()}
    inputs |= {name: torch.zeros(shape, dtype=torch.int64) for name, shape in integers.items()}
    return network, inputs


def timm_builder(name: str, sizes: Sizes, _: StepOptions) -> Callable[[], Any]:
    """Return a function that builds a classifier of timm and a batch of images.

    ``image_size`` defaults to the one of the model's published weights. Raises ConfigError for a name that
    timm does not have.
    """
    require("timm")
    import timm

    source = f"timm:{name}"
    if not timm.is_model(name):
        raise ConfigError(_unknown(source, name, timm.list_models(), "timm.list_models()"))
    sizes.check(source, "images")
    try:
        published: Any = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise ConfigError(f"{source}: {error} allowed: the name without what follows the dot") from error
    channels, pixels = published.input_size[0], sizes.image_size or published.input_size[-1]

    def network() -> Any:
        fixed: dict[str, Any] = (
            {"img_size": pixels} if published.fixed_input_size and sizes.image_size is not None else {}
        )
        return timm.create_model(name, pretrained=False, **fixed)

    return partial(_classifier, network, sizes.batch_size, channels, pixels)


def torchvision_builder(name: str, sizes: Sizes, _: StepOptions) -> Callable[[], Any]:
    """Return a function that builds a classifier of torchvision and a batch of images.

    ``image_size`` defaults to the one of the model's published weights. Raises ConfigError for a name that
    is no classifier of torchvision.
    """
    require("torchvision")
    from torchvision import models

    source = f"torchvision:{name}"
    known = models.list_models(module=models)
    if name not in known:
        raise ConfigError(_unknown(source, name, known, "torchvision.models.list_models(torchvision.models)"))
    sizes.check(source, "images")
    published = models.get_model_weights(name).DEFAULT.transforms.keywords
    pixels = sizes.image_size or published.get("crop_size", _DEFAULT_PIXELS)

    def network() -> Any:
        # Models with learned positions are built for one size; no other builder knows the keyword.
        fixed = {} if sizes.image_size is None else {"image_size": pixels}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The default weight initialization", FutureWarning)
            try:
                return models.get_model(name, weights=None, **fixed)
            except TypeError:
                return models.get_model(name, weights=None)

    return partial(_classifier, network, sizes.batch_size, 3, pixels)


def _unknown(source: str, name: str, known: list[str], listing: str) -> str:
    plain = name.removesuffix(f".{name.partition('.')[2]}")
    return (
        f"{source}: found no such classifier in the installed library, and nothing is downloaded"
        f"{nearest(plain, known)}; allowed: the {len(known)} names of {listing}"
    )


def _classifier(network: Callable[[], Any], batch_size: int, channels: int, pixels: int) -> Any:
    import torch

    from g10sim.capture.workload import Model

    images = torch.zeros(batch_size, channels, pixels, pixels)
    targets = torch.zeros(batch_size, dtype=torch.int64)
    return Model(network(), (images,), _cross_entropy, targets)


def _cross_entropy(output: Any, targets: Any) -> Any:
    """Loss of a classifier; of one with auxiliary classifiers, theirs in part."""
    from torch.nn.functional import cross_entropy

    logits, *auxiliary = output if isinstance(output, tuple) else (output,)
    loss = cross_entropy(logits, targets)
    for other in auxiliary:
        if other is not None:
            loss = loss + _AUXILIARY_SHARE * cross_entropy(other, targets)
    return loss
