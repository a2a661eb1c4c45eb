"""Well-known Hugging Face models: their configurations, which need no download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
    "Llama-65b": _llama(80, 8192, 22016, 64, 64, 32000, 2048),
    "Llama-2-70b": _llama(80, 8192, 28672, 64, 8, 32000, 4096),
    "Meta-Llama-3-8B": _llama(32, 4096, 14336, 32, 8, 128256, 8192),
    "Meta-Llama-3-70B": _llama(80, 8192, 28672, 64, 8, 128256, 8192),
    "vit-base-patch16-224": KnownModel("ViTConfig", Task.IMAGE_CLASSIFICATION, 0, _VIT),
    "vit-large-patch16-224": KnownModel("ViTConfig", Task.IMAGE_CLASSIFICATION, 0, _VIT | _LARGE),
}
"""By the name on the Hugging Face hub without its owner; sizes as published with each model."""
