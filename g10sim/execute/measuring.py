"""The protocol of a measurement: the machine, kernel times, predictions, then executed steps."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import groupby, product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import yaml
from pydantic import Field

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.analysis.gpus import NANOSECONDS_PER_SECOND
from g10sim.capture.measured import split
from g10sim.config.document import load_document
from g10sim.config.presets import validated
from g10sim.config.quantities import Spec
from g10sim.errors import ConfigError, G10SimError
from g10sim.execute import running
from g10sim.execute.executor import StepReport
from g10sim.execute.links import device_name, fastest, link
from g10sim.execute.moving import Guide
from g10sim.execute.script import Call, Script
from g10sim.execute.simulated import simulated_plan
from g10sim.files import save_text, write_csv
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.trace.model import TimeSource, Trace
from g10sim.units import parse_bytes

DEMAND = "demand"
_CELL = ("model", "budget", "policy")
_WARM = 1


class MeasuredModel(Spec):
    """A source, its sizes and its options; ``name`` is what tables call it, if not by its source."""

    source: str
    name: str | None = None
    batch_size: int | None = None
    seq_len: int | None = None
    image_size: int | None = None
    settings: tuple[str, ...] = ()
    options: dict[str, Any] = Field(default={})


class Measurement(Spec):
    """The cells to measure: each model within each budget, on demand and under each policy."""

    models: tuple[MeasuredModel, ...] = Field(min_length=1)
    budgets: tuple[str, ...] = Field(min_length=1)
    """shares of the peak, such as 70%"""
    policies: tuple[str, ...]
    on_demand: str | None = None
    """policy whose simulation predicts fetching on demand; none: not predicted"""
    reserve: str = "0%"
    """share of a budget that policies leave free: on a device whole tensors move"""
    live: bool = True
    """policies decide while the step runs; false: their simulation's moves are carried out"""
    gpu: str
    system: str
    """preset for all that is not measured"""
    steps: int = Field(default=3, ge=1)
    largest_copy: str = "1 GiB"


def measure_cells(path: Path, device: str, directory: Path) -> Iterator[str]:
    """Carry out a measurement, which a YAML file describes, and yield what to tell on the way.

    Writes ``system.yaml``, ``kernels.csv``, ``predicted.csv`` before anything is executed, ``measured.csv``
    after every cell, and ``timeline.json`` of the worst. Cells that ``measured.csv`` has are not measured
    again. Raises errors of ``g10sim.errors``.
    """
    document = load_document(path)
    plan = validated(Measurement, document.data, document)
    for key, text in (*(("budgets", share) for share in plan.budgets), ("reserve", plan.reserve)):
        _share(key, text)
    names = [model.name or model.source for model in plan.models]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"{document.source}: models: found '{twice[0]}' twice; allowed: one name for each")
    directory.mkdir(parents=True, exist_ok=True)
    sources = [
        running.open_source(device=device, **model.model_dump(exclude={"name", "options"}), **model.options)
        for model in plan.models
    ]
    found = link(device, parse_bytes(plan.largest_copy))
    system = {"preset": plan.system, **found}
    text = yaml.safe_dump(system, sort_keys=False)
    save_text(directory / "system.yaml", f"# Measured on {device_name(device)}.\n{text}")
    yield f"link: {found['pcie']['to_device']} in, {found['pcie']['from_device']} out"
    prepared = []
    for name, source in zip(names, sources, strict=True):
        prepared.append(_prepare(name, source, plan))
        plain, unlimited = (f"{seconds * 1e3:.2f} ms" for seconds in prepared[-1][-2:])
        yield f"{name}: plain step {plain}, without a limit {unlimited}"
    _write(directory / "kernels.csv", [row for made in prepared for row in _kernel_rows(made)])
    predicted = list(_predictions(plan, prepared, system))
    _write(directory / "predicted.csv", [cell.row for cell in predicted])
    yield f"predicted.csv: sha256 {hashlib.sha256((directory / 'predicted.csv').read_bytes()).hexdigest()}"
    yield from _execute(plan, system, predicted, directory)


class _Prepared(NamedTuple):
    """A source, its script with measured kernel times, its modelled trace, and the seconds of a step.

    These are the plain step's, and those of an executed one that has no limit.
    """

    name: str
    source: running.Source
    script: Script
    modelled: Trace
    plain: float
    unlimited: float


def _prepare(name: str, source: running.Source, plan: Measurement) -> _Prepared:
    """Record a step, and take its times with everything on the device; those of kernels add up to a step."""
    with source.opened():
        step = source.made()
        script = running.recorded(source, step, plan.gpu)
        plain = fastest(step.run, source.device)
        guide = Guide(running.machine(plan.system, 2 * peak_live_bytes(script.trace)))
        reports = running.run_guided(
            source, step, script, guide, guide.system.gpu.memory, plan.steps, undo=False
        )
    trace = script.trace
    durations = [kernel.duration for kernel in trace.kernels]
    for call in script.calls:
        if call.end > call.first:
            spent = median(_seconds_of(report, call) for report in reports)
            durations[call.first : call.end] = split(int(spent * 1e9), durations[call.first : call.end])
    kernels = (
        replace(kernel, duration=max(1, duration), time_source=TimeSource.MEASURED)
        for kernel, duration in zip(trace.kernels, durations, strict=True)
    )
    timed = replace(trace, kernels=tuple(kernels), ticks_per_second=NANOSECONDS_PER_SECOND)
    unlimited = median(report.seconds for report in reports)
    return _Prepared(name, source, Script(timed, script.calls), trace, plain, unlimited)


def _seconds_of(report: StepReport, call: Call) -> float:
    """Return the time until the next operator begins."""
    end = report.starts[call.end] if call.end < len(report.starts) else report.seconds
    return end - report.starts[call.first]


class _Predicted(NamedTuple):
    """A row of predictions, what it is of, and the plan that the simulation carried out."""

    row: dict[str, Any]
    made: _Prepared
    plan: MigrationPlan | None


def _budget(script: Script, share: str, reserve: str = "0%") -> int:
    size = _share("budgets", share) * (1 - _share("reserve", reserve)) * peak_live_bytes(script.trace)
    return int(size) // running.PAGE * running.PAGE


def _share(key: str, text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise ConfigError(f"{key}: found '{text}'; allowed: a share, such as 70%") from None


def _kernel_rows(made: _Prepared) -> Iterator[dict[str, Any]]:
    """Add up the times of kernels by operator, as modelled and as measured."""
    names = {kernel: call.name for call in made.script.calls for kernel in range(call.first, call.end)}
    totals: defaultdict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for trace, column in ((made.modelled, "modelled_ms"), (made.script.trace, "measured_ms")):
        for number, kernel in enumerate(trace.kernels):
            totals[names[number]][column] += kernel.duration / trace.ticks_per_second * 1e3
            totals[names[number]]["kernels"] += trace is made.modelled
    for name, found in sorted(totals.items()):
        times = {column: f"{found[column]:.4f}" for column in ("modelled_ms", "measured_ms")}
        yield {"model": made.name, "operator": name, "kernels": int(found["kernels"]), **times}


def _predictions(
    plan: Measurement, prepared: Sequence[_Prepared], system: Mapping[str, Any]
) -> Iterator[_Predicted]:
    """Simulate all cells, in processes alongside; a refused one is told in its row."""
    cells = list(product(prepared, plan.budgets, (DEMAND, *plan.policies)))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        asked = []
        for made, share, policy in cells:
            name, reserve = (plan.on_demand, "0%") if policy == DEMAND else (policy, plan.reserve)
            budget = _budget(made.script, share, reserve)
            asked.append(pool.submit(_prediction, made.script.trace, budget, name, system))
        for (made, share, policy), answer in zip(cells, asked, strict=True):
            found, moves = answer.result()
            row = {
                "model": made.name,
                "budget": share,
                "policy": policy,
                "plain_ms": f"{made.plain * 1e3:.4f}",
                "unlimited_ms": f"{made.unlimited * 1e3:.4f}",
                **found,
            }
            yield _Predicted(row, made, moves)


def _prediction(
    trace: Trace, budget: int, policy: str | None, system: Mapping[str, Any]
) -> tuple[dict[str, Any], MigrationPlan | None]:
    """Simulate a cell and return what it moves: whole tensors, on demand too."""
    if policy is None:
        return {}, None
    largest = max(tensor.size_bytes for tensor in trace.tensors)
    fault = {**system["page_fault"], "group": f"{-(-largest // running.PAGE) * running.PAGE} B"}
    try:
        spec = running.machine({**system, "page_fault": fault}, budget)
        plan, result = simulated_plan(running.executable(policy, trace, spec), trace, spec)
    except G10SimError as error:
        return {"refused": str(error)}, None
    ideal, found = sum(kernel.duration for kernel in trace.kernels) / 1e6, result.summary
    return {
        "predicted_ms": f"{found['exec_ms']:.4f}",
        "predicted_slowdown": f"{found['exec_ms'] / ideal:.4f}",
        "predicted_in_bytes": found["host_to_gpu_bytes"],
        "predicted_out_bytes": found["gpu_to_host_bytes"],
    }, plan


def _execute(
    plan: Measurement, measured: Mapping[str, Any], predicted: Sequence[_Predicted], directory: Path
) -> Iterator[str]:
    done = _read(directory / "measured.csv")
    known = {tuple(row[key] for key in _CELL) for row in done}
    timelines: dict[tuple[str, ...], tuple[Script, StepReport]] = {}
    for made, cells in groupby(predicted, key=lambda cell: cell.made):
        with made.source.opened():
            step: running.AnyStep | None = None
            for cell in cells:
                name = tuple(cell.row[key] for key in _CELL)
                if name in known:
                    continue
                found: dict[str, Any] = {"refused": cell.row.get("refused")}
                if found["refused"] is None:
                    step = made.source.made() if step is None else step
                    try:
                        reports = _run(cell, step, measured, plan)
                        found = _measured(cell.row, reports)
                        timelines[name] = made.script, reports[-1]
                    except (G10SimError, torch.OutOfMemoryError) as error:
                        found, step = {"refused": str(error)}, None
                done.append({**cell.row, **found})
                _write(directory / "measured.csv", done)
                yield f"{' '.join(name)}: {found.get('refused') or found['measured_ms'] + ' ms'}"
    ratios = {tuple(row[key] for key in _CELL): float(row["ratio"]) for row in done if row.get("ratio")}
    if ratios:
        far = {cell: max(ratio, 1 / ratio) for cell, ratio in ratios.items()}
        worst = max(far, key=far.__getitem__)
        middle = f"{len(ratios)} cells: median ratio {median(ratios.values()):.3f}"
        yield f"{middle}, worst {ratios[worst]:.3f} ({' '.join(worst)})"
        if worst in timelines:
            _write_timeline(directory / "timeline.json", *timelines[worst])


def _run(
    cell: _Predicted, step: running.AnyStep, measured: Mapping[str, Any], plan: Measurement
) -> Sequence[StepReport]:
    made, policy, share = cell.made, cell.row["policy"], cell.row["budget"]
    budget = _budget(made.script, share)
    if policy == DEMAND:
        guide = Guide(running.machine(measured, budget))
    else:
        system = running.machine(measured, _budget(made.script, share, plan.reserve))
        guide = running.guided(policy, made.script.trace, system) if plan.live else Guide(system, cell.plan)
    return running.run_guided(made.source, step, made.script, guide, budget, plan.steps + _WARM, undo=False)


def _measured(row: Mapping[str, Any], reports: Sequence[StepReport]) -> dict[str, Any]:
    last, seconds = reports[-1], median(report.seconds for report in reports[_WARM:])
    slowdown = seconds * 1e3 / float(row["unlimited_ms"])
    found = {
        "measured_ms": f"{seconds * 1e3:.4f}",
        "measured_slowdown": f"{slowdown:.4f}",
        "measured_in_bytes": last.in_bytes,
        "measured_out_bytes": last.out_bytes,
        "faults": last.faults,
        "peak_bytes": last.peak_bytes,
        "allocated_bytes": last.allocated_bytes,
    }
    if row.get("predicted_slowdown"):
        found["ratio"] = f"{slowdown / float(row['predicted_slowdown']):.4f}"
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_csv(path, list(dict.fromkeys(key for row in rows for key in row)), rows)


def _write_timeline(path: Path, script: Script, report: StepReport) -> None:
    """Write kernels as measured by themselves and as executed, for ui.perfetto.dev."""
    events, now = [], 0.0
    ends = [*report.starts[1:], report.seconds]
    for kernel, start, end in zip(script.trace.kernels, report.starts, ends, strict=True):
        alone = kernel.duration / 1e3
        for thread, at, lasts in (
            ("without moves", now, alone),
            ("executed", start * 1e6, (end - start) * 1e6),
        ):
            events.append({"name": kernel.name, "ph": "X", "pid": 0, "tid": thread, "ts": at, "dur": lasts})
        now += alone
    save_text(path, json.dumps({"traceEvents": events}))
