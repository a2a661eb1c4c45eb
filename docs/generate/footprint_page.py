"""The page of captured and published memory of the five models of the G10 paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import fill, table

from g10sim.analysis.footprint import footprint_bytes, live_bytes, peak_live_bytes
from g10sim.capture import capture_step
from g10sim.capture.published_graphs import GRAPHS
from g10sim.capture.source import make_torchvision_importable
from g10sim.errors import ConfigError
from g10sim.importers.gpg import import_gpg
from g10sim.trace.model import TensorKind, Trace
from tools.published_models import MODELS

_GIB = 2**30
_MIB = 2**20
_TOLERANCE = 0.1
_MAKERS = 7


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
    last = {case.model: case for case in cases}.values()
    return fill(
        "footprints",
        footprints=table(("model", "batch"), figures, [_row(case) for case in cases]),
        tolerance=f"{_TOLERANCE:.0%}",
        within=_within(cases),
        makers=[(case, _makers(case)) for case in last],
    )


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
    return " and ".join(f"{good[name]} of {counts[name]} cases ({name})" for name in counts)


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
