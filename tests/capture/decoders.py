"""Small language models of transformers, and decode steps with caches of every kind."""

import torch
import transformers

from g10sim.capture.generation import cache_name

PROMPT, SAMPLES = 24, 2
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
WEIGHTY = {**SIZES, "hidden_size": 512, "intermediate_size": 2048, "vocab_size": 8000}
ONE_BILLION = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


def configured(kind, **sizes):
    """A configuration whose model class is imported before tensors are fake."""
    found = getattr(transformers, kind)(**sizes)
    return found, transformers.AutoModelForCausalLM._model_mapping[type(found)]


def llama(layers=4, samples=SAMPLES, prompt=PROMPT, kind="LlamaConfig", **sizes):
    """Return a function that builds a model and its prompt."""
    configuration, network = configured(kind, num_hidden_layers=layers, **(SIZES | sizes))
    return lambda: (network(configuration), {"input_ids": torch.zeros(samples, prompt, dtype=torch.int64)})


class Buffered(torch.nn.Module):
    """A decoder whose keys and values are buffers."""

    def __init__(self, network, cache):
        super().__init__()
        self.network = network
        self.cache = cache
        for number, layer in enumerate(cache.layers):
            self.register_buffer(f"keys{number}", layer.keys)
            self.register_buffer(f"values{number}", layer.values)

    def forward(self, input_ids):
        return self.network(
            input_ids=input_ids, use_cache=True, **{cache_name(self.network): self.cache}
        ).logits


def decode_step(kept, layers=8, samples=8, length=256, **sizes):
    """Return a function that builds a decode step after ``length`` tokens, with keys and values ``kept``."""
    configuration, network = configured("LlamaConfig", num_hidden_layers=layers, **(WEIGHTY | sizes))
    heads = configuration.num_key_value_heads
    width = configuration.hidden_size // configuration.num_attention_heads

    def build():
        model = network(configuration).eval()
        if kept == "dynamic":
            cache = transformers.DynamicCache(config=configuration)
        else:
            cache = transformers.StaticCache(config=configuration, max_cache_len=length + 1)
        for number in range(layers):
            both = (torch.zeros(samples, heads, length, width) for _ in range(2))
            cache.update(*both, number)
        token = torch.zeros(samples, 1, dtype=torch.int64)
        if kept == "buffers":
            return Buffered(model, cache), {"input_ids": token}
        return model, {"input_ids": token, cache_name(model): cache, "use_cache": True}

    return build
