"""SSDTrain: activations wait for the backward pass on an SSD, as many as it carries while kernels run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.looks import Look
from g10sim.policies.interface import Evict, Fetch, Move, PlannedMachine, PolicyPerJob
from g10sim.policies.interface.parameters import Count, Declared, TierName, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.moves import MovesByKernel, births
from g10sim.policies.planning.offloading.room import IN_FRAMEWORK, find_tier
from g10sim.policies.planning.offloading.saved import before_module, module_starts, saved_tensors
from g10sim.policies.planning.timeline import Absence
from g10sim.trace.model import Phase, Trace
from g10sim.trace.workload import Job


@register_policy
class SsdTrain(Declared, PolicyPerJob):
    """Sends activations away as soon as the forward pass has used them, whether or not there is room.

    They return in the order of the backward pass, a module ahead or as early as the reads take. Those of the
    last module stay, and of the others no more leave than the tier takes in during the forward pass and gives
    back during the backward pass. What is fetched before it has left stays as far as it is still there.
    """

    name = "ssdtrain"
    label = "SSDTrain"
    look = Look("#997700", "..-", "3", "2 1")
    paper = "Wu et al., SSDTrain: An Activation Offloading Framework to SSDs for LLM Training, DAC 2025"
    requirements = IN_FRAMEWORK
    check_exemptions: ClassVar[Mapping[str, str]] = {
        "no_stalls_with_room": "activations leave to lower the peak of memory, whether or not there is room"
    }

    target: TierName = parameter(default="ssd", published="ssd, paper")
    """Memory tier that activations go to."""
    adaptive: bool = parameter(default=True, published="true, paper")
    """Offload no more than the tier takes in and gives back while kernels run; otherwise all but the last
    module's."""
    modules_ahead: int = parameter(default=1, ge=1, published="1, paper")
    """Modules before its own at which a tensor is fetched, at the latest."""
    births: Count = parameter(default=0)
    """Kernels ahead of which new tensors are mapped, which raises the peak."""

    job_class = MovesByKernel

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> MovesByKernel:
        """Choose what leaves; it is fetched a module ahead, or as early as all reads before its use take.

        Raises UnsupportedError.
        """
        trace, tier = job.trace, machine.tier(self.target)
        every, chosen = self._chosen(trace, machine)
        if chosen:
            find_tier(self.name, system, self.target, "activations")
        starts, times = module_starts(trace), [0, *accumulate(trace.durations_cycles(machine.clock_hz))]
        out, back = list[tuple[int, Move]](), list[tuple[int, Move]]()
        deadline, kernel = times[-1], len(trace.kernels)
        for one in sorted(chosen, key=lambda saved: (-saved.end, saved.tensor)):
            out.append((one.start - 1, Evict(one.tensor, self.target)))
            deadline = min(deadline, times[one.end]) - tier.in_cycles(one.size_bytes)
            ahead = before_module(starts, one.end, self.modules_ahead)
            kernel = min(kernel, ahead, bisect_right(times, deadline) - 1)
            back.append((max(kernel, one.start), Fetch(one.tensor, recalls=True)))
        shares = [sum(one.size_bytes for one in some) / 1e9 for some in (chosen, every)]
        note = "offloads {:.3g} of {:.3g} GB that the forward pass saves".format(*shares)
        return MovesByKernel(grouped([*reversed(back), *births(trace, self.births)]), grouped(out), note)

    def _chosen(self, trace: Trace, machine: PlannedMachine) -> tuple[Sequence[Absence], Sequence[Absence]]:
        """Return what the forward pass saves, all of it and the part that leaves."""
        saved, starts = saved_tensors(trace, machine.sizes(trace)), module_starts(trace)
        kernels = [kernel for kernel in trace.kernels if kernel.phase is Phase.FORWARD]
        last = starts[kernels[-1].id] if kernels else 0
        movable = [one for one in saved if one.start <= last]
        if not self.adaptive:
            return saved, movable
        tier, cycles = machine.tier(self.target), trace.durations_cycles(machine.clock_hz)
        forward = sum(cycles[kernel.id] for kernel in kernels)
        backward = sum(cycles[kernel.id] for kernel in trace.kernels if kernel.phase is Phase.BACKWARD)
        most = min(tier.write_rate * forward, tier.read_rate * backward)
        filled = list(accumulate(one.size_bytes for one in movable))
        return saved, movable[: bisect_right(filled, most)]
