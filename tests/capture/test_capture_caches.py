"""Contents from before a step are persistent: keys and values of a decode step, whoever keeps them."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from torch import nn
from torch.nn import functional

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture import capture_step
from g10sim.trace.check import check_trace
from g10sim.trace.model import TensorKind

pytestmark = pytest.mark.slow

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


def captured(kept, steps=1):
    """Return the trace, its weights' bytes, and the sizes of the persistent tensors that are no weights."""
    trace = capture_step(decode(kept), inference=True, steps=steps)
    weights = sum(t.size_bytes for t in trace.tensors if t.kind is TensorKind.WEIGHT)
    others = [t.size_bytes for t in trace.tensors if t.persistent and t.kind is not TensorKind.WEIGHT]
    return trace, weights, others


def rows(length):
    return SAMPLES * length * WIDTH * 4


@pytest.mark.parametrize(
    ("kept", "length"),
    # One token more before the step that is recorded, and one more after it.
    [("tuples", LENGTH), ("buffers", LENGTH), ("attribute", LENGTH + 2), ("object", LENGTH + 2)],
)
def test_the_cache_of_a_decode_step_is_persistent(kept, length):
    trace, weights, persistent = captured(kept)
    assert persistent.count(rows(length)) == 2 * LAYERS
    peak = peak_live_bytes(trace)
    assert peak >= weights + CACHE_BYTES
    # Keys and values of one layer are there twice where they grow.
    assert peak <= 1.1 * (weights + CACHE_BYTES)


@pytest.mark.parametrize("kept", ["attribute", "object"])
def test_a_cache_that_grows_over_several_steps_is_there_once(kept):
    trace, _, persistent = captured(kept, steps=3)
    assert persistent.count(rows(LENGTH + 4)) == 2 * LAYERS
    allocated = int(trace.origin["allocated_peak_bytes"])
    assert peak_live_bytes(trace) == pytest.approx(allocated, rel=0.01)
    check_trace(trace)
    copies = [kernel for kernel in trace.kernels if kernel.name == "cat"]
    assert len(copies) == 3 * 2 * LAYERS
    for kernel in copies:
        # It reads the cache and writes it, with room for both lengths of it.
        (cache,) = set(kernel.inputs) & set(kernel.outputs)
        (room,) = set(kernel.outputs) - {cache}
        assert (trace.tensors[cache].persistent, trace.tensors[room].persistent) == (True, False)


def test_of_two_copies_of_a_cache_the_last_takes_its_place():
    class Branching(nn.Module):
        """Keeps two continuations of what it had."""

        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(8, WIDTH)
            self.kept = [torch.randn(SAMPLES, LENGTH, WIDTH)]

        def forward(self, tokens):
            new, before = self.embedding(tokens), self.kept[0]
            self.kept = [torch.cat([before, new], 1), torch.cat([before, self.embedding(tokens)], 1)]
            return new

    trace = capture_step(lambda: (Branching(), torch.ones(SAMPLES, 1, dtype=torch.int64)), inference=True)
    first, second = (kernel for kernel in trace.kernels if kernel.name == "cat")
    (before,) = set(first.inputs) & set(second.inputs)
    assert trace.tensors[before].persistent
    assert (before in first.outputs, before in second.outputs) == (False, True)


def in_a_generator():
    project, token = nn.Linear(WIDTH, WIDTH), torch.randn(SAMPLES, 1, WIDTH)
    past = (torch.randn(SAMPLES, LENGTH, WIDTH),)
    while True:
        past = (torch.cat([past[0], project(token).detach()], 1),)
        past[0].sum()
        yield


def in_a_closure():
    project, token = nn.Linear(WIDTH, WIDTH), torch.randn(SAMPLES, 1, WIDTH)
    past = torch.randn(SAMPLES, LENGTH, WIDTH)

    def step():
        nonlocal past
        past = torch.cat([past, project(token).detach()], 1)
        past.sum()

    return step


@pytest.mark.parametrize("build", [in_a_generator, in_a_closure])
def test_a_cache_in_variables_of_a_step_of_ones_own_is_there_once(build):
    trace = capture_step(build)
    assert [t.size_bytes for t in trace.tensors if t.size_bytes == rows(LENGTH + 2)] == [rows(LENGTH + 2)]
    (copy,) = (kernel for kernel in trace.kernels if kernel.name == "cat")
    (cache,) = set(copy.inputs) & set(copy.outputs)
    assert trace.tensors[cache].persistent
    assert peak_live_bytes(trace) == pytest.approx(int(trace.origin["allocated_peak_bytes"]), rel=0.01)
