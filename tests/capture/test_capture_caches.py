"""What lives before a step is persistent: keys and values of a decode step, wherever the model keeps them."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from torch import nn
from torch.nn import functional

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture import capture_step
from g10sim.trace.model import TensorKind

LAYERS, SAMPLES, LENGTH, HEADS, WIDTH = 16, 8, 64, 4, 64
CACHE_BYTES = LAYERS * 2 * SAMPLES * LENGTH * WIDTH * 4


class Cache:
    """Keys and values of each layer, which grow by a copy as transformers' DynamicCache does."""

    def __init__(self):
        shape = (SAMPLES, LENGTH, WIDTH)
        self.layers = [[torch.randn(shape), torch.randn(shape)] for _ in range(LAYERS)]

    def update(self, layer, *new):
        self.layers[layer] = [torch.cat(pair, 1) for pair in zip(self.layers[layer], new, strict=True)]
        return self.layers[layer]


class Decoder(nn.Module):
    """Attention layers that decode one token; ``kept`` says where keys and values are."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept
        self.embedding = nn.Embedding(20_000, WIDTH)
        self.projections = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        if kept == "buffers":
            for number in range(2 * LAYERS):
                self.register_buffer(f"cache{number}", torch.randn(SAMPLES, LENGTH, WIDTH))
        if kept == "attribute":
            self.cache = Cache()

    def forward(self, tokens, past=None):
        x = self.embedding(tokens)
        present = []
        for number, projection in enumerate(self.projections):
            query, *new = projection(x).chunk(3, -1)
            key, value = self._extended(number, new, past)
            present.append((key, value))
            split = (t.view(SAMPLES, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for t in (query, key, value))
            x = functional.scaled_dot_product_attention(*split).transpose(1, 2).reshape(SAMPLES, 1, WIDTH)
        return (x, present) if self.kept == "tuples" else x

    def _extended(self, number, new, past):
        if self.kept == "tuples":
            return (torch.cat(pair, 1) for pair in zip(past[number], new, strict=True))
        if self.kept == "buffers":
            found = [getattr(self, f"cache{2 * number + part}") for part in (0, 1)]
            for cache, one in zip(found, new, strict=True):
                cache[:, -1:] = one
            return found
        return (past if past is not None else self.cache).update(number, *new)


def decode(kept):
    def build():
        tokens = torch.ones(SAMPLES, 1, dtype=torch.int64)
        if kept == "tuples":
            past = tuple(tuple(pair) for pair in Cache().layers)
        else:
            past = Cache() if kept == "object" else None
        inputs = {"tokens": tokens} if past is None else {"tokens": tokens, "past": past}
        return Decoder(kept), inputs

    return build


@pytest.mark.parametrize("kept", ["tuples", "buffers", "attribute", "object"])
def test_the_cache_of_a_decode_step_is_persistent(kept):
    trace = capture_step(decode(kept), inference=True)
    sizes = {SAMPLES * length * WIDTH * 4 for length in (LENGTH, LENGTH + 1)}
    caches = [t for t in trace.tensors if t.persistent and t.size_bytes in sizes]
    assert len(caches) == 2 * LAYERS
    weights = sum(t.size_bytes for t in trace.tensors if t.kind is TensorKind.WEIGHT)
    peak = peak_live_bytes(trace)
    assert peak >= weights + CACHE_BYTES
    assert peak <= 1.1 * (
        weights + CACHE_BYTES
    )  # keys and values of one layer are there twice where they grow
