"""The page of modelled kernel times against measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from tables import fill, table

from g10sim.analysis.efficiency import Refinement
from g10sim.config.data import data_path
from g10sim.trace.format import load_trace
from g10sim.units import format_duration, format_rate
from tools.calibration import Calibrated, Check, calibrate, read_published
from tools.published_kernels import MeasuredTrace

BASE, NAME = "a100-40g-2023", "a100-40g-g10"
_BUNDLED = {
    "BERT_Base": "bert-base-b256.g10t",
    "Inceptionv3": "inception-v3-b1536.g10t",
    "ResNet152": "resnet152-b1280.g10t",
    "SENet154": "senet154-b1024.g10t",
    "VIT": "vit-small-b1280.g10t",
}
FIT = ("BERT_Base", "ResNet152", "SENet154")


def page(reference: Path, captures: bool = True) -> str:
    """Return the page as Markdown. Raises TraceError for data that cannot be read."""
    traces = read_published(reference)
    parts = [fill("kernel_times", spread=_spread(traces)), published_sections(traces)]
    if captures:
        parts.append(_captured(calibrate(traces, BASE, NAME, FIT).checks))
    return "".join(parts)


def published_sections(traces: Sequence[MeasuredTrace]) -> str:
    """Return the sections that depend on the published kernels alone."""
    found = calibrate(traces, BASE, NAME, FIT)
    return fill(
        "kernel_times_published",
        numbers=_numbers(found),
        checks=_checks(found.checks),
        splits=_splits(traces),
    )


_SPREAD = (
    ("ResNet152", "convolution"),
    ("ResNet152", "convolution_backward_input"),
    ("ResNet152", "convolution_backward_weight"),
    ("ResNet152", "native_batch_norm"),
    ("ResNet152", "native_batch_norm_backward"),
    ("Inceptionv3", "max_pool2d_with_indices_backward"),
    ("BERT_Base", "_softmax_backward_data"),
    ("BERT_Base", "addmm"),
)


def _spread(traces: Sequence[MeasuredTrace]) -> str:
    rows = []
    for model, operator in _SPREAD:
        kernels = [
            kernel
            for trace in traces
            if trace.model == model
            for kernel in trace.kernels
            if kernel.cost.operator == operator
        ]
        work = partial(_work, flops=any(kernel.cost.flops for kernel in kernels))
        kernels.sort(key=lambda kernel: work(kernel.cost))
        least, most = kernels[0], kernels[-1]
        middle = kernels[len(kernels) // 2]
        rows.append(
            (
                f"{model}: `{operator}`",
                str(len(kernels)),
                f"{work(most.cost) / work(least.cost):,.0f} x",
                *(f"{kernel.seconds * 1e3:,.2f}" for kernel in (least, middle, most)),
            )
        )
    numbers = ("kernels", "work, most / least", "least work (ms)", "middle (ms)", "most work (ms)")
    return table(("operator",), numbers, rows)


def _work(cost: object, flops: bool) -> int:
    return int(getattr(cost, "flops" if flops else "moved_bytes"))


def _numbers(found: Calibrated) -> str:
    gpu, rows = found.gpu, []
    for kind in found.fit.shares:
        table_of = gpu.compute_efficiency if kind in gpu.compute_efficiency else gpu.bandwidth_efficiency
        what = "peak" if kind in gpu.compute_efficiency else "bandwidth"
        startup = format_duration(gpu.startup[kind]) if kind in gpu.startup else ""
        rows.append(
            (kind.value, str(found.fit.counts[kind.value]), f"{table_of[kind]:.0%} of {what}", startup, "")
        )
    rows += [(name, str(found.fit.counts[name]), *_own(entry)) for name, entry in gpu.operators.items()]
    return table(("class, or operators set apart",), ("kernels", "share", "startup", "weights"), rows)


def _own(entry: Refinement) -> tuple[str, str, str]:
    share = ""
    if entry.compute_efficiency is not None:
        share = f"{entry.compute_efficiency:.0%} of peak"
    elif entry.bandwidth_efficiency is not None:
        share = f"{entry.bandwidth_efficiency:.1%} of bandwidth"
    rate = "" if entry.weight_bandwidth is None else format_rate(entry.weight_bandwidth)
    return share, format_duration(entry.startup or 0), rate


def _checks(checks: Iterable[Check]) -> str:
    rows = [
        (
            check.model,
            "fit" if check.fitted else "held out",
            str(check.batch_size),
            f"{check.measured_seconds:.2f}",
            f"{check.described_seconds:.2f}",
            f"{check.error:+.1%}",
        )
        for check in checks
    ]
    return table(("model", "use"), ("batch size", "measured (s)", "described (s)", "error"), rows)


def _splits(traces: Sequence[MeasuredTrace]) -> str:
    models = sorted({trace.model for trace in traces})
    rows = []
    for chosen in combinations(models, len(FIT)):
        checks = calibrate(traces, BASE, NAME, chosen).checks
        rows.append((", ".join(chosen), *(_range(model, checks) for model in models)))
    return table(("fit to",), models, rows)


def _range(model: str, checks: Iterable[Check]) -> str:
    found = [check for check in checks if check.model == model]
    errors = sorted(check.error * 100 for check in found)
    text = f"{errors[0]:+.0f} to {errors[-1]:+.0f}"
    return text if found[0].fitted else f"**{text}**"


def _captured(checks: Sequence[Check]) -> str:
    from g10sim.capture import capture_step
    from g10sim.capture.source import make_torchvision_importable
    from tools.published_models import MODELS

    make_torchvision_importable()
    rows = []
    for model, build in MODELS.items():
        found = [check for check in checks if check.model == model]
        for check in (found[0], found[len(found) // 2], found[-1]):
            batch = partial(build, check.batch_size)
            trace = capture_step(batch, gpu=NAME, optimizer="sgd", attention="eager")
            seconds = sum(kernel.duration for kernel in trace.kernels) / trace.ticks_per_second
            rows.append(
                (
                    model,
                    "fit" if check.fitted else "held out",
                    str(check.batch_size),
                    f"{check.measured_seconds:.2f}",
                    f"{seconds:.2f}",
                    f"{seconds / check.measured_seconds - 1:+.1%}",
                )
            )
    columns = ("batch size", "measured (s)", "captured (s)", "error")
    captured = table(("model", "use"), columns, rows)
    return fill("kernel_times_captured", captured=captured, bundled=_bundled(checks))


def _bundled(checks: Sequence[Check]) -> str:
    """Return the table of the iterations of bundled traces, alongside those of the published ones."""
    measured = {(check.model, check.batch_size): check.measured_seconds for check in checks}
    rows = []
    for model, name in _BUNDLED.items():
        trace = load_trace(data_path("traces", "g10", name))
        seconds = sum(kernel.duration for kernel in trace.kernels) / trace.ticks_per_second
        wanted = measured[model, trace.batch_size]
        error = f"{seconds / wanted - 1:+.1%}"
        rows.append((name, str(trace.batch_size), f"{wanted:.2f}", f"{seconds:.2f}", error))
    return table(("trace",), ("batch size", "measured (s)", "captured (s)", "error"), rows)
