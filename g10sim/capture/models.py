"""Well-known Hugging Face models, built from their configurations without a download, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from g10sim.capture.refusal import require
from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest

_DEFAULT_SEQUENCE_LENGTH = 512


class Task(StrEnum):
    """What a model is trained for; decides its head and its inputs."""

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
    "Meta-Llama-3-8B": _llama(32, 4096, 14336, 32, 8, 128256, 8192),
    "vit-base-patch16-224": KnownModel("ViTConfig", Task.IMAGE_CLASSIFICATION, 0, _VIT),
    "vit-large-patch16-224": KnownModel("ViTConfig", Task.IMAGE_CLASSIFICATION, 0, _VIT | _LARGE),
}
"""By the name on the Hugging Face hub without its owner; sizes as published with each model."""


def hugging_face_builder(
    name: str, *, batch_size: int, seq_len: int | None, image_size: int | None, attention: str
) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """Return a function that builds a known model for training and its inputs.

    Text models take ``seq_len`` (default 512, or less where the model takes less), image models
    ``image_size`` (pixels, default the model's own). Raises ConfigError for an unknown name or an option that
    the model does not take.
    """
    require("transformers")
    known = KNOWN_MODELS.get(name.rpartition("/")[2])
    if known is None:
        raise ConfigError(
            f"hf:{name}: found a model whose configuration would have to be downloaded"
            f"{nearest(name, KNOWN_MODELS)}; allowed: {choices_text(KNOWN_MODELS)}, or module:function"
        )
    if known.longest:
        length = _sequence_length(name, known, seq_len, image_size)
        return lambda: _text_model(known, batch_size, length, attention)
    if seq_len is not None:
        raise ConfigError(
            f"hf:{name}: found --seq-len {seq_len} for a model of images; allowed: --image-size"
        )
    return lambda: _image_model(known, batch_size, image_size, attention)


def _sequence_length(name: str, known: KnownModel, seq_len: int | None, image_size: int | None) -> int:
    if image_size is not None:
        raise ConfigError(
            f"hf:{name}: found --image-size {image_size} for a model of text; allowed: --seq-len"
        )
    length = min(_DEFAULT_SEQUENCE_LENGTH, known.longest) if seq_len is None else seq_len
    if not 1 <= length <= known.longest:
        raise ConfigError(f"hf:{name}: found --seq-len {length}; allowed: 1 to {known.longest}")
    return length


def _model(known: KnownModel, attention: str, **settings: Any) -> Any:
    import transformers

    configuration = getattr(transformers, known.configuration)(**known.settings, **settings)
    configuration._attn_implementation = "sdpa" if attention == "fused" else "eager"
    # Keys and values of a generation cache would stay alive through the whole training step.
    configuration.use_cache = False
    model = getattr(transformers, known.task.value).from_config(configuration).train()
    # The loss follows from the name of the class, but not for every class.
    model.loss_type = known.task.value.removeprefix("AutoModel")
    return model


def _text_model(
    known: KnownModel, batch_size: int, length: int, attention: str
) -> tuple[Any, dict[str, Any]]:
    import torch

    tokens = torch.zeros(batch_size, length, dtype=torch.int64)
    labels = torch.zeros(batch_size, length, dtype=torch.int64)
    return _model(known, attention), {"input_ids": tokens, "labels": labels}


def _image_model(
    known: KnownModel, batch_size: int, image_size: int | None, attention: str
) -> tuple[Any, dict[str, Any]]:
    import torch

    model = _model(known, attention, **({} if image_size is None else {"image_size": image_size}))
    pixels = model.config.image_size
    images = torch.zeros(batch_size, model.config.num_channels, pixels, pixels)
    return model, {"pixel_values": images, "labels": torch.zeros(batch_size, dtype=torch.int64)}
