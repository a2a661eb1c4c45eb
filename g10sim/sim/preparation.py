"""Steps before a simulation: designs that are chosen by trial, and kernels with other algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

from g10sim.config.system import SystemSpec
from g10sim.config.tiers import Tier
from g10sim.errors import CapacityError, PolicyError, UnsupportedError
from g10sim.policies.base import Policy
from g10sim.records import IterationRecord, RunRecords
from g10sim.sim.alike import one_group
from g10sim.sim.hooks import asked
from g10sim.sim.iterations import shortened
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload


class _Trials:
    """Simulates a few iterations of a workload under the designs that a policy chooses among."""

    def __init__(
        self, workload: Workload, system: SystemSpec, try_out: Callable[[Policy, Workload], RunRecords]
    ) -> None:
        self._workload, self._try_out = workload, try_out
        self._tiers = system.all_tiers
        self._one_group = one_group(workload, system)
        self._groups = len(workload.jobs) // len(self._one_group.jobs)

    def __call__(self, design: Policy) -> str | None:
        try:
            self._try_out(design, shortened(self._workload, 1))
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
        """Simulate one group of GPUs, or all of them if one does not stand for all."""
        if design.requirements.placement == "contiguous" and self._groups > 1:
            records = self._try_out(design, shortened(self._one_group, 2))
            if all(self._has_room(*pair) for pair in product(self._tiers, records.iterations)):
                return records
        return self._try_out(design, shortened(self._workload, 2))

    def _has_room(self, tier: Tier, record: IterationRecord) -> bool:
        """Tell whether a memory is enough for all groups, so that none meets another at the SSD."""
        if tier.kind == "memory":
            return self._groups * record.peaks[f"peak_{tier.name}_bytes"] <= tier.capacity
        traffic, name = record.traffic, tier.name
        return not traffic[f"{name}_to_gpu_bytes"] and not traffic[f"gpu_to_{name}_bytes"]


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
    return asked(policy, "settle", lambda: policy.settle(_Trials(workload, system, try_out)))


def with_chosen_kernels(workload: Workload, system: SystemSpec, policy: Policy) -> Workload:
    """Return the workload with the algorithms that a policy chooses for its kernels.

    Raises PolicyError when it changes anything but durations, scratch space and outputs of kernels.
    """
    if type(policy).choose_kernels is Policy.choose_kernels:
        return workload
    jobs = []
    for job in workload.jobs:
        chosen = asked(policy, "choose_kernels", partial(policy.choose_kernels, job.trace, system))
        _check(policy, job.trace, chosen)
        jobs.append(replace(job, trace=chosen))
    return replace(workload, jobs=tuple(jobs))


def _check(policy: Policy, trace: Trace, chosen: Trace) -> None:
    if len(chosen.kernels) != len(trace.kernels) or chosen.ticks_per_second != trace.ticks_per_second:
        raise PolicyError(
            f"policy '{policy.name}': choose_kernels returned {len(chosen.kernels)} kernels; allowed: as "
            f"many as the trace has, {len(trace.kernels)}, in its time base"
        )
    for kernel, other in zip(trace.kernels, chosen.kernels, strict=True):
        if other.duration < kernel.duration:
            raise PolicyError(
                f"policy '{policy.name}': choose_kernels makes kernel {kernel.id} ({kernel.name}) faster; "
                "allowed: at least the trace's duration"
            )
