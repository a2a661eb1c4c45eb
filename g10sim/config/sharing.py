"""Parts of a workload: exchange of gradients, sharing of a GPU by jobs, and variation of kernel times."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from g10sim.config.effects import Effect
from g10sim.config.quantities import Number, PositiveBytes, PositiveDuration, Spec, default_size, default_time

BESIDE = Effect(
    lambda run, _: run.shares_gpus,
    "with sharing.compute time_sliced or concurrent",
    "jobs on a GPU run one after another",
)
_SENT = Effect(lambda run, exchange: exchange.method != "none", "with method ring or host", "nothing is sent")


class ExchangeSpec(Spec):
    """Exchange of gradients, bucket by bucket, while the backward pass goes on.

    A bucket is sent when every replica has computed all of its gradients; the default size is that of
    PyTorch's DistributedDataParallel (``bucket_cap_mb``).
    """

    method: Literal["ring", "host", "none"] = "ring"
    """ring: all-reduce around a ring of the GPUs; host: each GPU sends its gradients to the host, which adds
    them up, and fetches the sums; none: replicas do not wait for each other"""
    bucket: Annotated[PositiveBytes, _SENT] = default_size("25 MiB")
    """gradients that are sent together, at least"""


_TURNS = Effect(
    lambda run, sharing: sharing.compute == "time_sliced", "with compute time_sliced", "jobs take no turns"
)
_CONCURRENT = Effect(
    lambda run, sharing: sharing.compute == "concurrent",
    "with compute concurrent",
    "kernels of jobs do not run at once",
)


class SharingSpec(Spec):
    """Time slices or concurrency of jobs on one GPU, and admission of jobs when memory is short.

    Vendors do not publish the length of time slices; the default is of the order that GPUs show.
    """

    compute: Literal["exclusive", "time_sliced", "concurrent"] = "exclusive"
    """exclusive: one job after another; time_sliced: jobs in turn, a time slice each; concurrent: kernels of
    all jobs at once, each slower"""
    time_slice: Annotated[PositiveDuration, _TURNS] = default_time("2 ms")
    """longest turn of a job of priority 1; priority p has p times as long"""
    slowdown: Annotated[Number, _CONCURRENT] = Field(default=1.0, ge=0, le=1)
    """how much each further job slows the others; n jobs run at 1 / (1 + (n - 1) slowdown) of their speed: 0
    not at all, 1 as if they took turns"""
    admission: Annotated[Literal["wait", "refuse"], BESIDE] = "wait"
    """what becomes of a job that arrives while GPU memory is short: wait its turn, or be refused"""
    admission_memory: Annotated[Literal["working_set", "live", "footprint"], BESIDE] = "working_set"
    """what admitted jobs together must not need more of than GPU memory has: their largest working sets,
    their most live bytes, or their footprints"""


_VARIED = Effect(lambda run, part: part.magnitude > 0, "with a magnitude above 0", "the magnitude is 0")


class VariationSpec(Spec):
    """Random factors by which kernel times are multiplied after planning (G10 paper, figure 19).

    With magnitude v the factors are uniform in [1 - v, 1 + v], or normal with mean 1 and standard
    deviation v, truncated to between 0 and 2, which keeps times positive and the mean at 1.
    """

    distribution: Annotated[Literal["uniform", "normal"], _VARIED] = "uniform"
    """uniform: in [1 - magnitude, 1 + magnitude]; normal: standard deviation magnitude, truncated to between
    0 and 2"""
    magnitude: Number = Field(ge=0, lt=1)
    """how far the factors depart from 1"""
