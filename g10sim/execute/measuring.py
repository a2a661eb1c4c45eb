"""The protocol of a measurement: the machine, kernel times, predictions, then executed steps."""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import yaml
from pydantic import Field
from torch.utils._python_dispatch import TorchDispatchMode

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.analysis.gpus import NANOSECONDS_PER_SECOND
from g10sim.api import simulate
from g10sim.capture.devices import CUDA
from g10sim.capture.measured import split
from g10sim.config.document import load_document
from g10sim.config.presets import load_behaviour, validated
from g10sim.config.quantities import Spec
from g10sim.errors import ConfigError, G10SimError
from g10sim.execute.executor import StepReport
from g10sim.execute.moving import Guide
from g10sim.execute.running import Source, guided, machine, open_source, recorded, run_guided
from g10sim.execute.script import Script, operator_name
from g10sim.files import write_text, writing
from g10sim.trace.model import TimeSource
from g10sim.units import parse_bytes

DEMAND = "demand"
_WARM, _REPEATS = 1, 5
_SMALL, _FACTOR = 2**16, 4


class MeasuredModel(Spec):
    """A source, its sizes and its options."""

    source: str
    batch_size: int | None = None
    seq_len: int | None = None
    image_size: int | None = None
    settings: tuple[str, ...] = ()
    options: dict[str, Any] = Field(default={})


class Measurement(Spec):
    """The cells to measure: each model within each budget, on demand and under each policy."""

    models: tuple[MeasuredModel, ...] = Field(min_length=1)
    budgets: tuple[str, ...] = Field(min_length=1, description="shares of the peak, such as 70%")
    policies: tuple[str, ...]
    gpu: str
    system: str = Field(description="preset for all that is not measured")
    steps: int = Field(default=3, ge=1)
    largest_copy: str = "1 GiB"


class _Cell(NamedTuple):
    model: str
    budget: str
    policy: str


class _Timed(TorchDispatchMode):  # type: ignore[misc]
    """Takes the time of every operator: with events on a CUDA device, else by the host's clock."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._is_cuda = device == CUDA
        self.calls: list[tuple[str, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        start = self._now()
        result = func(*args, **(kwargs or {}))
        self.calls.append((operator_name(func), start, self._now()))
        return result

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def nanoseconds(self) -> Iterator[tuple[str, int]]:
        """Yield operators with their times."""
        _synchronize(CUDA if self._is_cuda else "")
        for name, start, end in self.calls:
            yield name, int(start.elapsed_time(end) * 1e6) if self._is_cuda else end - start


def _synchronize(device: str) -> None:
    if device == CUDA:
        torch.cuda.synchronize()


def measure_cells(path: Path, device: str, directory: Path) -> Iterator[str]:
    """Carry out a measurement, which a YAML file describes, and yield what to tell on the way.

    Writes ``system.yaml``, ``predicted.csv`` before anything is executed, ``measured.csv`` after every cell,
    and ``timeline.json`` of the worst. Cells that ``measured.csv`` has are not measured again. Raises errors
    of ``g10sim.errors``.
    """
    document = load_document(path)
    plan = validated(Measurement, document.data, document)
    directory.mkdir(parents=True, exist_ok=True)
    sources = [
        open_source(
            model.source,
            device=device,
            batch_size=model.batch_size,
            seq_len=model.seq_len,
            image_size=model.image_size,
            settings=model.settings,
            **model.options,
        )
        for model in plan.models
    ]
    link = _link(device, parse_bytes(plan.largest_copy))
    text = yaml.safe_dump({"preset": plan.system, **link}, sort_keys=False)
    with writing(directory / "system.yaml", ConfigError):
        write_text(directory / "system.yaml", f"# Measured on {_device_name(device)}.\n{text}")
    yield f"link: {link['pcie']['to_device']} in, {link['pcie']['from_device']} out"
    prepared = []
    for source in sources:
        script, plain, unlimited = _timed_script(source, plan)
        prepared.append((source, script, unlimited))
        yield f"{source.model}: plain step {plain * 1e3:.2f} ms, without a limit {unlimited * 1e3:.2f} ms"
    system = {"preset": plan.system, **link}
    predicted = _predictions(plan, prepared, system)
    _write(directory / "predicted.csv", predicted)
    yield f"predicted.csv: sha256 {hashlib.sha256((directory / 'predicted.csv').read_bytes()).hexdigest()}"
    yield from _execute(plan, prepared, system, predicted, directory)


def _device_name(device: str) -> str:
    return str(torch.cuda.get_device_name()) if device == CUDA else "the CPU: its memory is the device"


def _link(device: str, largest: int) -> dict[str, Any]:
    """Measure copies in and out: their rates, and what one costs before its first byte."""
    rates = {}
    for key, inward in (("to_device", True), ("from_device", False)):
        small, large = (_copy_seconds(device, size, inward=inward) for size in (_SMALL, largest))
        seconds = max(large - small, large / _FACTOR)
        rates[key] = f"{int((largest - _SMALL) / seconds)} B/s"
        rates["per_copy"] = f"{max(1, int((small - _SMALL * seconds / (largest - _SMALL)) * 1e9))} ns"
    latency = rates["per_copy"]
    return {"pcie": {"bandwidth": None, **rates}, "page_fault": {"latency": latency, "batch": None}}


def _copy_seconds(device: str, size: int, *, inward: bool) -> float:
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device == CUDA)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    to, source = (there, host) if inward else (host, there)
    return _fastest(lambda: to.copy_(source), device)


def _fastest(run: Callable[[], Any], device: str) -> float:
    found = []
    for _ in range(_WARM + _REPEATS):
        _synchronize(device)
        start = time.perf_counter()
        run()
        _synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found[_WARM:])


def _timed_script(source: Source, plan: Measurement) -> tuple[Script, float, float]:
    """Return a recorded script with measured kernel times, and the seconds of a step, plain and executed."""
    with source.opened():
        step = source.made()
        script = recorded(source, step, plan.gpu)
        plain = _fastest(step.run, source.device)
        mode = _Timed(source.device)
        with mode:
            step.run()
        times = list(mode.nanoseconds())
        trace, place = script.trace, 0
        durations = [kernel.duration for kernel in trace.kernels]
        for call in script.calls:
            while times[place][0] != call.name:  # operators without kernels are not in the script
                place += 1
            if call.end > call.first:
                shares = [trace.kernels[kernel].duration for kernel in range(call.first, call.end)]
                durations[call.first : call.end] = split(times[place][1], shares)
            place += 1
        kernels = (
            replace(kernel, duration=max(1, duration), time_source=TimeSource.MEASURED)
            for kernel, duration in zip(trace.kernels, durations, strict=True)
        )
        timed = replace(trace, kernels=tuple(kernels), ticks_per_second=NANOSECONDS_PER_SECOND)
        guide = Guide(machine(plan.system, 2 * peak_live_bytes(trace)))
        reports = run_guided(source, step, script, guide, guide.system.gpu.memory, plan.steps, undo=False)
    return Script(timed, script.calls), plain, median(report.seconds for report in reports)


def _budget(script: Script, share: str) -> int:
    try:
        return int(float(share.removesuffix("%")) / 100 * peak_live_bytes(script.trace)) // 512 * 512
    except ValueError:
        raise ConfigError(f"budgets: found '{share}'; allowed: a share of the peak, such as 70%") from None


def _predictions(
    plan: Measurement, prepared: Sequence[tuple[Source, Script, float]], system: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Simulate all cells under policies; a refused one is told in its row."""
    rows = []
    for source, script, unlimited in prepared:
        for share in plan.budgets:
            for policy in (DEMAND, *plan.policies):
                row: dict[str, Any] = {"model": source.model, "budget": share, "policy": policy}
                row["unlimited_ms"] = f"{unlimited * 1e3:.4f}"
                if policy != DEMAND:
                    row |= _prediction(script, share, policy, system)
                rows.append(row)
    return rows


def _prediction(script: Script, share: str, policy: str, system: Mapping[str, Any]) -> dict[str, Any]:
    try:
        spec = machine(system, _budget(script, share))
        found = simulate(script.trace, spec, policy, compat={"addresses": "own"}).summary
    except G10SimError as error:
        return {"refused": str(error)}
    ideal = sum(kernel.duration for kernel in script.trace.kernels) / 1e6
    return {
        "predicted_ms": f"{found['exec_ms']:.4f}",
        "predicted_slowdown": f"{found['exec_ms'] / ideal:.4f}",
        "predicted_in_bytes": found["host_to_gpu_bytes"],
        "predicted_out_bytes": found["gpu_to_host_bytes"],
    }


def _execute(
    plan: Measurement,
    prepared: Sequence[tuple[Source, Script, float]],
    system: Mapping[str, Any],
    predicted: Sequence[Mapping[str, Any]],
    directory: Path,
) -> Iterator[str]:
    done = _read(directory / "measured.csv")
    known = {(row["model"], row["budget"], row["policy"]) for row in done}
    by_name = {source.model: (source, script) for source, script, _ in prepared}
    behaviour, timelines = load_behaviour({"addresses": "own"}), {}
    for row in predicted:
        cell = _Cell(row["model"], row["budget"], row["policy"])
        if tuple(cell) in known:
            continue
        source, script = by_name[cell.model]
        spec = machine(system, _budget(script, cell.budget))
        try:
            guide = (
                Guide(spec) if cell.policy == DEMAND else guided(cell.policy, script.trace, spec, behaviour)
            )
            with source.opened():
                step, steps = source.made(), plan.steps + _WARM
                reports = run_guided(source, step, script, guide, spec.gpu.memory, steps, undo=False)
            made, timelines[cell] = _measured(row, reports), (script, reports[-1])
        except G10SimError as error:
            made = {"refused": str(error)}
        done.append({**row, **made})
        _write(directory / "measured.csv", done)
        yield f"{' '.join(cell)}: {made.get('refused') or made['measured_ms'] + ' ms'}"
    ratios = {tuple(row.values())[:3]: float(row["ratio"]) for row in done if row.get("ratio")}
    if ratios:
        far = {cell: max(ratio, 1 / ratio) for cell, ratio in ratios.items()}
        worst = max(far, key=far.__getitem__)
        middle = f"{len(ratios)} cells: median ratio {median(ratios.values()):.3f}"
        yield f"{middle}, worst {ratios[worst]:.3f} ({' '.join(worst)})"
        if worst in timelines:
            _write_timeline(directory / "timeline.json", *timelines[_Cell(*worst)])


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
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, *([str(row.get(key, "")) for key in columns] for row in rows)]
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    with writing(path, ConfigError):
        write_text(path, text.getvalue())


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
            event = {"name": kernel.name, "ph": "X", "pid": 0, "tid": thread, "ts": at, "dur": lasts}
            events.append(event)
        now += alone
    with writing(path, ConfigError):
        write_text(path, json.dumps({"traceEvents": events}))
