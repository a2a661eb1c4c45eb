"""The page of modelled kernel times against measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from tables import table

from g10sim.capture.refinement import Refinement
from g10sim.experiment.calibrated import Calibrated, Check, MeasuredTrace, calibrate, read_published
from g10sim.units import format_duration, format_rate

BASE, NAME = "a100-40g", "a100-40g-g10"
FIT = ("BERT_Base", "ResNet152", "SENet154")

_INTRODUCTION = """# Kernel times: modelled against measured

Written by `python docs/generate kernel-times REFERENCE`, where `REFERENCE` holds the published data of
G10 (`traces/MODEL/BATCH`). Its kernels were measured on an A100 by the authors of the G10 paper (Zhang
et al., MICRO 2023), float32, every operator on its own and unfused. `g10sim trace calibrate REFERENCE -o
FILE.yaml` makes the fit below; [capture](capture.md) says how a description turns work into time.

## What the measured times consist of

Many of them hardly depend on the work: of one operator the kernel with the least work and the one with
the most (by FLOPs or bytes, over all batch sizes of a model) take

"""

_FINDINGS = """
Times that do not grow with the work look like those of starting up a library, measured with the kernel:
about 610 ms and 112 ms for some convolutions, about 68 ms for batch normalization and what the backward
pass uses of cuDNN. They make up most of the measured time of the three convolutional networks. Which
convolution pays is presumably a matter of the algorithm that cuDNN chose; no shape tells it for sure.
Gradients of the inputs of linear layers take time for the weight's bytes (121 MB/s) besides that of the
product. Neither is a property of the GPU: descriptions that are meant to model hardware leave them out,
and one, `a100-40g-g10`, has them, to compare with the published traces.

## What was fitted

A description gives a kernel the time

    time = startup + weight bytes / weight bandwidth + launch
           + max(FLOPs / (share x peak), bytes / (share x bandwidth))

with numbers for a class of operators, or for operators that are set apart; the shares are at most 1, so
no kernel beats the hardware. With a startup the share that is reached grows with the size s as s / (s +
half), where half = startup x share x peak. Nothing is fitted to single kernels. Convolutions have an
average startup, one for those that the roofline of the A100 says are limited by computing and one for
those limited by memory, because more of the former pay; none was seen to pay that sums up 2560 or more
products for an element. Kernels whose measured time is too short to move the bytes they name (some
softmax, ReLU and concatenation kernels) are left out.

The shares are in `a100-40g`, without any startup, and so in the descriptions of the other GPUs, which no
measurement was at hand for. `a100-40g-g10` has all of the numbers:

"""


def page(reference: Path, captures: bool = True) -> str:
    """Return the page as Markdown. Raises TraceError for data that cannot be read."""
    traces = read_published(reference)
    parts = [_INTRODUCTION, _spread(traces), published_sections(traces)]
    if captures:
        parts.append(_captured(calibrate(traces, BASE, NAME, FIT).checks))
    return "".join(parts)


def published_sections(traces: Sequence[MeasuredTrace]) -> str:
    """Return the sections that depend on the published kernels alone."""
    found = calibrate(traces, BASE, NAME, FIT)
    return "".join((_FINDINGS, _numbers(found), _checks(found.checks), _splits(traces)))


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
    text = """
## Check on the published kernels

Sums over all kernels of an iteration; the work of each kernel is taken from the published sizes and
shapes. "Measured" counts every kernel, also the few (at most 1.3% of the time, most of it loading
images) that no operator of PyTorch stands for.

"""
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
    return text + table(("model", "use"), ("batch size", "measured (s)", "described (s)", "error"), rows)


def _splits(traces: Sequence[MeasuredTrace]) -> str:
    text = """
The conditions that tell convolutions apart were chosen with all five models in view; the numbers fitted
were not. Fits to other models, error in per cent over all batch sizes (models that were held out in bold):

"""
    models = sorted({trace.model for trace in traces})
    rows = []
    for chosen in combinations(models, len(FIT)):
        checks = calibrate(traces, BASE, NAME, chosen).checks
        rows.append((", ".join(chosen), *(_range(model, checks) for model in models)))
    return text + table(("fit to",), models, rows)


def _range(model: str, checks: Iterable[Check]) -> str:
    found = [check for check in checks if check.model == model]
    errors = sorted(check.error * 100 for check in found)
    text = f"{errors[0]:+.0f} to {errors[-1]:+.0f}"
    return text if found[0].fitted else f"**{text}**"


def _captured(checks: Sequence[Check]) -> str:
    from published_models import MODELS

    from g10sim.capture import capture_step
    from g10sim.capture.libraries import make_torchvision_importable

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
    columns = table(("model", "use"), ("batch size", "measured (s)", "captured (s)", "error"), rows)
    return _CAPTURED + columns + _SHORTCOMINGS


_CAPTURED = """
## Check on captured traces

The same models captured here (`docs/generate/published_models.py`) with `--gpu a100-40g-g10 --optimizer
sgd --attention eager`, smallest, middle and largest batch size of the published traces. The models are
those of the traces: BERT-base without output over the vocabulary and with ReLU; ViT-S/32; SENet-154 with
convolutions that are not split into groups.

"""

_SHORTCOMINGS = """
## What this does not say

- The sums are right within these errors, not each kernel: the time of a single convolution in
  `a100-40g-g10` is an average over those that pay for a startup and those that do not.
- The published traces also count what a captured one does not have: constants and biases expanded to the
  size of the batch and updated as if they were weights, and images copied from the host. Pooling over
  whole images in squeeze-and-excitation blocks is a mean in captured models, without the startup of
  cuDNN's pooling.
- The shares of `a100-40g` come from float32 kernels of 2023. Products in 16-bit formats, fused attention
  and channels-last convolutions were not measured. No GPU has been at hand to compare the descriptions
  of the other GPUs with.
"""
