"""Bases of designs whose optimizer the CPU runs: weights lie on the GPU, or below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.policies.interface import Await, Evict, Fetch, PlannedMachine, Store
from g10sim.policies.interface.parameters import Count, Declared, parameter
from g10sim.policies.planning.moves import KernelMoves, MovesByKernel
from g10sim.policies.planning.offloading.gradients import Gradients, host_bytes
from g10sim.policies.planning.offloading.partition import partitioned
from g10sim.policies.planning.offloading.room import FixedPlaces, gpu_peak, refused, require_cpu, require_gpu
from g10sim.policies.planning.offloading.takeover import Schedule, Takeover, parameter_bytes, taken_over
from g10sim.policies.planning.offloading.windows import Window
from g10sim.trace.model import TensorKind, Trace
from g10sim.trace.workload import Job


def read_only(trace: Trace) -> frozenset[int]:
    """Return the persistent tensors that kernels on the GPU read and never write."""
    lasting = (tensor for tensor, lasts in enumerate(trace.lasting) if lasts and trace.uses[tensor])
    return frozenset(tensor for tensor in lasting if tensor not in trace.written_on_gpu)


def read_weights(trace: Trace, least_bytes: int = 0) -> frozenset[int]:
    """Return the weights among them that are larger than ``least_bytes``."""
    tensors = (trace.tensors[tensor] for tensor in read_only(trace))
    weights = (tensor for tensor in tensors if tensor.kind is TensorKind.WEIGHT)
    return frozenset(tensor.id for tensor in weights if tensor.size_bytes > least_bytes)


def offloaded(
    trace: Trace,
    gradients: Gradients,
    homes: Mapping[int, str],
    stays: Sequence[Window],
    *,
    kept: Sequence[Window] = (),
    before: KernelMoves = (),
    after: KernelMoves = (),
) -> MovesByKernel:
    """Return the moves of weights with these stays on the GPU, of gradients, and of states on the SSD.

    ``homes`` are the tiers in which weights and optimizer states lie. Weights come for the stays that are
    ``kept``, too, and are not given up after them. The last kernel waits for what goes to the SSD. Other
    moves are ``before`` kernels start and ``after`` they end.
    """
    away = frozenset(tensor for tensor, home in homes.items() if home == "ssd")
    waits = [(len(trace.kernels) - 1, Await(away))] if away else []
    fetched = ((stay.fetched, Fetch(stay.tensor)) for stay in (*kept, *stays))
    released = ((stay.last, Evict(stay.tensor, homes[stay.tensor], is_clean=True)) for stay in stays)
    used = ((kernel.id, tensor) for kernel in trace.cpu_kernels for tensor in kernel.touched)
    stored = ((kernel, Store(tensor, "ssd")) for kernel, tensor in used if tensor in away)
    return MovesByKernel(
        grouped([*waits, *fetched, *gradients.before(), *before]),
        grouped([*gradients.after(), *released, *stored, *after]),
        homes=homes,
    )


class StepsOnCpu(Declared, FixedPlaces):
    """The CPU runs the optimizer, for a share of the parameters, ``ratio``.

    A design says what runs when (``_schedule``), plans each job (``_plan_job``), and names what lies in the
    tiers for refusals (``_kept``).
    """

    births: Count = parameter(default=4)
    """Kernels ahead of which new tensors are mapped."""

    job_class = MovesByKernel
    ratio = 1.0

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Let the CPU run the optimizer. Raises UnsupportedError without a CPU."""
        schedule = self._schedule(trace)
        require_cpu(self.name, system, schedule.pass_bytes)
        return taken_over(Takeover.of(trace, self.ratio, self._parameter_bytes(trace)), schedule)

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        """Plan what comes and goes, and count what lies in the tiers. Raises UnsupportedError."""
        trace, sizes = job.trace, machine.sizes(job.trace)
        planned = self._plan_job(trace, machine, system)
        away = {tensor for tensor, home in planned.homes.items() if home == "ssd"}
        in_host = host_bytes(trace, sizes, away, self.requirements.cpu_buffers or len(trace.kernels))
        in_host += sum(sizes[tensor] for tensor in planned.homes.keys() - trace.used_on_cpu - away)
        return replace(planned, below={"host": in_host, "ssd": sum(sizes[tensor] for tensor in away)})

    def _parameter_bytes(self, trace: Trace) -> int:
        """Return the bytes of the gradient of one parameter."""
        raise NotImplementedError

    def _schedule(self, trace: Trace) -> Schedule:
        raise NotImplementedError

    def _plan_job(self, trace: Trace, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        raise NotImplementedError


class InBuckets(StepsOnCpu):
    """Gradients leave in buckets, after each of which the CPU may begin to update."""

    reduce_bucket_size: int = parameter(default=500_000_000, ge=1, published="500000000, DeepSpeed")
    """Gradients that fill a bucket."""
    overlap: bool = parameter(default=False)
    """Update what is in a bucket as soon as it has left; otherwise everything after the last gradient."""

    def _bucket_bytes(self, trace: Trace) -> int:
        return self.reduce_bucket_size * self._parameter_bytes(trace)

    def _schedule(self, trace: Trace) -> Schedule:
        return Schedule(self.overlap, self._bucket_bytes(trace), returns=False)


class OptimizerBelow(StepsOnCpu):
    """Weights and activations stay on the GPU, optimizer states in host memory, where the CPU updates.

    A design says whether the GPU waits for a bucket before it sends the next one (``_has_two_buffers``).
    """

    bytes_per_gradient: int | None = parameter(default=None, ge=1, le=8, published="2, paper")
    """Bytes of the gradient of one parameter; none: as its weight was captured, and 2 where the trace does
    not say."""

    _kept: ClassVar[Mapping[str, str]] = {"host": "optimizer states and gradients"}
    _has_two_buffers: ClassVar[bool] = True

    def partition(self, trace: Trace, replicas: int, system: SystemSpec) -> Trace:
        """Let each replica update its part of the parameters (ZeRO stage 2)."""
        return partitioned(trace, replicas, self._schedule(trace).bucket_bytes)

    def _parameter_bytes(self, trace: Trace) -> int:
        return parameter_bytes(trace, self.bytes_per_gradient)

    def _plan_job(self, trace: Trace, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        bucket_bytes, has_two_buffers = self._schedule(trace).bucket_bytes, self._has_two_buffers
        gradients = Gradients(trace, bucket_bytes, self.births, has_two_buffers=has_two_buffers)
        peak = gpu_peak(trace, machine.sizes(trace), gradients.departures, self.births, gradients.stays)
        require_gpu(self.name, system, peak, "weights and activations")
        return offloaded(trace, gradients, {}, ())


class WeightsBelow(StepsOnCpu):
    """Weights come to the GPU for their uses and are given up without a copy."""

    bytes_per_parameter: int | None = parameter(default=None, ge=1, le=8, published="2, paper")
    """Bytes of the weight, and of the gradient, of one parameter; none: as it was captured, and 2 where the
    trace does not say."""

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        """Plan when weights come and go; the moves follow. Raises UnsupportedError."""
        if self.workload.replicas > 1 and not job.trace.collectives:
            raise refused(self.name, "does not share weights and optimizer between replicas", "one GPU")
        return super().start_job(job, machine, system)

    def _parameter_bytes(self, trace: Trace) -> int:
        return parameter_bytes(trace, self.bytes_per_parameter)
