"""What happens before a simulation: designs that choose by trial, and kernels with other algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, G10SimError, PolicyError, UnsupportedError
from g10sim.policies.base import Policy
from g10sim.sim.alike import one_group
from g10sim.sim.recorder import RunRecords
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload

Answer = TypeVar("Answer")


class _Trials:
    """A few iterations of a workload under the designs that a policy chooses among."""

    def __init__(
        self, workload: Workload, system: SystemSpec, try_out: Callable[[Policy, Workload], RunRecords]
    ) -> None:
        self._workload, self._host_bytes, self._try_out = workload, system.host.memory, try_out
        self._one_group = one_group(workload, system)

    def __call__(self, design: Policy) -> str | None:
        try:
            self._try_out(design, _shortened(self._workload, 1))
        except (UnsupportedError, CapacityError) as error:
            return str(error)
        return None

    def cycles(self, design: Policy) -> list[int] | None:
        try:
            records = self._records(design)
        except (UnsupportedError, CapacityError):
            return None
        if any(job.refused for job in records.jobs):
            return None
        last = {iteration.job: iteration.end - iteration.start for iteration in records.iterations}
        return [last[job] for job in sorted(last)]

    def _records(self, design: Policy) -> RunRecords:
        """Simulate one group of GPUs, or all of them where that does not tell how all fare."""
        if design.placement == "contiguous" and len(self._one_group.jobs) < len(self._workload.jobs):
            records = self._try_out(design, _shortened(self._one_group, 2))
            if self._stays_in_host_memory(records):
                return records
        return self._try_out(design, _shortened(self._workload, 2))

    def _stays_in_host_memory(self, records: RunRecords) -> bool:
        """Whether host memory is enough for as many such groups, so that none meets another at the SSD."""
        groups = len(self._workload.jobs) // len(self._one_group.jobs)
        flash = sum(record.ssd_to_gpu_bytes + record.gpu_to_ssd_bytes for record in records.iterations)
        host = groups * max(record.peak_host_bytes for record in records.iterations)
        return not flash and host <= self._host_bytes


def _shortened(workload: Workload, iterations: int) -> Workload:
    jobs = (replace(job, iterations=min(job.iterations, iterations)) for job in workload.jobs)
    return replace(workload, jobs=tuple(jobs))


def settled(
    policy: Policy,
    workload: Workload,
    system: SystemSpec,
    try_out: Callable[[Policy, Workload], RunRecords],
) -> Policy:
    """Return the policy that a policy settles on, after trials of an iteration or two where it asks for them.

    ``try_out`` simulates a workload under a policy. Raises UnsupportedError when nothing can run, PolicyError
    for a policy that fails.
    """
    return _asked(policy, "settle", lambda: policy.settle(_Trials(workload, system, try_out)))


def with_chosen_kernels(workload: Workload, system: SystemSpec, policy: Policy) -> Workload:
    """Return the workload with the algorithms that a policy chooses for its kernels.

    Raises PolicyError when it changes anything but durations, scratch space and outputs of kernels.
    """
    if type(policy).choose_kernels is Policy.choose_kernels:
        return workload
    jobs = []
    for job in workload.jobs:
        chosen = _asked(policy, "choose_kernels", partial(policy.choose_kernels, job.trace, system))
        _check(policy, job.trace, chosen)
        jobs.append(replace(job, trace=chosen))
    return replace(workload, jobs=tuple(jobs))


def _check(policy: Policy, trace: Trace, chosen: Trace) -> None:
    if len(chosen.kernels) != len(trace.kernels) or chosen.ticks_per_second != trace.ticks_per_second:
        raise PolicyError(
            f"policy '{policy.name}': choose_kernels returned {len(chosen.kernels)} kernels; allowed: as "
            f"many as the trace has, {len(trace.kernels)}, in its time base"
        )
    faster = [
        k for k, other in zip(trace.kernels, chosen.kernels, strict=True) if other.duration < k.duration
    ]
    if faster:
        raise PolicyError(
            f"policy '{policy.name}': choose_kernels makes kernel {faster[0].id} ({faster[0].name}) faster; "
            "allowed: at least the trace's duration"
        )


def _asked(policy: Policy, hook: str, ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except G10SimError:
        raise
    except Exception as error:
        raise PolicyError(f"policy '{policy.name}': {hook} raised {type(error).__name__}: {error}") from error
