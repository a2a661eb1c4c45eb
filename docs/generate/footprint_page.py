"""The page of captured and published memory of the five models of the G10 paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from published_graphs import GRAPHS
from published_models import MODELS
from tables import table

from g10sim.analysis.footprint import footprint_bytes, live_bytes, peak_live_bytes
from g10sim.capture import capture_step
from g10sim.capture.libraries import make_torchvision_importable
from g10sim.errors import ConfigError
from g10sim.importers.gpg import import_gpg
from g10sim.trace.model import TensorKind, Trace

_GIB = 2**30
_MIB = 2**20
_TOLERANCE = 0.1
_MAKERS = 7
_INTRODUCTION = """# Footprints: captured against published

Written by `python docs/generate footprints REFERENCE`, where `REFERENCE` holds the published data of G10
(`traces/MODEL/BATCH`, `tensors.config`). Captures are training steps in float32 with plain SGD, at the same
batch sizes:

- *library*: the models of PyTorch's libraries, in the variants that the published traces show: BERT-base on
  128 tokens without an output layer, ViT-S/32 (published under the name VIT), SENet-154 with whole
  convolutions, Inception-v3 without auxiliary classifier
- *as published*: the same with the operators of the published graphs, where these are others than the
  library's (BERT, ViT, ResNet-152)

*Alive* is the most bytes alive at a time, *all* the bytes of all tensors of an iteration, in GiB, without the
scratch space of published kernels, which a capture does not see.
"""
_REASONS = """## What makes the difference

- **BERT and ViT**: PyTorch normalizes a layer in one kernel, and computes GELU in one; the published graphs
  write both out, ten operators and five, each with a result as large as its input, and most of these stay for
  the backward pass. Biases, scales and constants have the shape of what they are applied to, a value for
  every element of the batch: *weights* below. Attention keeps scores and softmax; the library's is fused.
- **ResNet-152**: a published block applies ReLU before its shortcut is added and keeps the sum besides; the
  library's adds in place and applies ReLU to the sum.
- **Inception-v3 and SENet-154** agree in what is alive. There, and in ResNet-152, *all* is lower: published
  batch normalization writes a normalized copy of its input, which the library's backward pass computes again.
- *All* counts each short-lived result, and so depends on how gradients are cut into kernels. With the
  operators of the published graphs of BERT and ViT, PyTorch's backward pass writes more results than theirs.

In MiB for each sample, at the kernel where most is alive, by the operator that made it:
"""


@dataclass(frozen=True)
class _Case:
    """A model at a batch size: the published trace, and captures of the library's model and the graph."""

    model: str
    batch_size: int
    published: Trace
    library: Trace
    as_published: Trace


def page(reference: Path) -> str:
    """Return the page; captures every model at every published batch size. Raises ConfigError."""
    traces = reference / "traces"
    if not traces.is_dir():
        raise ConfigError(f"{reference}: found no directory 'traces'; allowed: the published data")
    make_torchvision_importable()
    cases = list(_cases(traces))
    figures = (
        *("alive: published", "library", "ratio", "as published", "ratio"),
        *("all: published", "library", "ratio", "as published", "ratio"),
    )
    parts = [_INTRODUCTION, table(("model", "batch"), figures, [_row(case) for case in cases])]
    parts += [_within(cases), _REASONS]
    for case in {case.model: case for case in cases}.values():
        parts += [f"### {case.model}, batch size {case.batch_size}\n", _makers(case)]
    return "\n".join(parts)


def _cases(traces: Path) -> Iterator[_Case]:
    for model, build in MODELS.items():
        for size in sorted(int(path.name) for path in (traces / model).iterdir()):
            published = import_gpg(traces / model / str(size), model, size)
            library = _captured(build, size, "fused")
            graph = _captured(GRAPHS[model], size, "eager") if model in GRAPHS else library
            yield _Case(model, size, published, library, graph)


def _captured(build: Callable[[int], Any], batch_size: int, attention: str) -> Trace:
    return capture_step(lambda: build(batch_size), optimizer="sgd", attention=attention)


def _all_bytes(trace: Trace) -> int:
    scratch = sum(tensor.size_bytes for tensor in trace.tensors if tensor.kind is TensorKind.WORKSPACE)
    return footprint_bytes(trace) - scratch


def _row(case: _Case) -> list[str]:
    cells = [case.model, str(case.batch_size)]
    for measure in (peak_live_bytes, _all_bytes):
        published = measure(case.published)
        cells.append(f"{published / _GIB:.1f}")
        for trace in (case.library, case.as_published):
            cells += [f"{measure(trace) / _GIB:.1f}", f"{measure(trace) / published:.2f}"]
    return cells


def _within(cases: list[_Case]) -> str:
    counts, good = Counter[str](), Counter[str]()
    for case in cases:
        published = peak_live_bytes(case.published)
        for name, trace in (("library", case.library), ("as published", case.as_published)):
            counts[name] += 1
            good[name] += abs(peak_live_bytes(trace) / published - 1) <= _TOLERANCE
    said = " and ".join(f"{good[name]} of {counts[name]} cases ({name})" for name in counts)
    return f"Alive is within {_TOLERANCE:.0%} of the published in {said}.\n"


def _makers(case: _Case) -> str:
    columns = [
        _largest(_alive_by_maker(trace), case.batch_size)
        for trace in (case.published, case.library, case.as_published)
    ]
    rows = [[text for pair in row for text in pair] for row in zip(*columns, strict=True)]
    return table(("published", "MiB", "library", "MiB", "as published", "MiB"), (), rows)


def _largest(found: Counter[str], batch_size: int) -> list[tuple[str, str]]:
    common = found.most_common(_MAKERS)
    rest = sum(found.values()) - sum(size for _, size in common)
    rows = [*common, *[("", 0)] * (_MAKERS - len(common)), ("others", rest), ("together", found.total())]
    return [(name, f"{size / batch_size / _MIB:.1f}" if name else "") for name, size in rows]


def _alive_by_maker(trace: Trace) -> Counter[str]:
    """Bytes at the kernel where most is alive, by the operator that wrote a tensor first."""
    peak = int(live_bytes(trace).argmax())
    makers: dict[int, str] = {}
    for kernel in trace.kernels:
        for tensor in kernel.outputs:
            makers.setdefault(tensor, kernel.name.replace("_Forward", ""))
    found: Counter[str] = Counter()
    for tensor in trace.tensors:
        alive = trace.births[tensor.id] <= peak < trace.deaths[tensor.id]
        if tensor.persistent:
            found["weights" if tensor.kind is TensorKind.WEIGHT else tensor.kind.value] += tensor.size_bytes
        elif alive or peak in trace.uses[tensor.id]:
            found[makers.get(tensor.id, tensor.kind.value)] += tensor.size_bytes
    return found
