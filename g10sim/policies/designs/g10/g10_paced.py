"""G10 with plans in the time that the GPU will really take, and a choice among them by simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias

from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.designs.g10.draft import Draft, PlannerOptions, PlanningParameters
from g10sim.policies.designs.g10.planner import draft_g10
from g10sim.policies.designs.g10.recovery import RecoveringJob, WaitingJob
from g10sim.policies.interface import PlannedMachine, PlannedTier, Policy, PolicyPerJob, Trials
from g10sim.policies.interface.parameters import Count, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.limit import TimeLimit, speed
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job

# Of ideal speed: iterations that are steady agree no better than to the rest.
_NEARLY_IDEAL = 0.999
# Where kernels that wait make the paced plan faster than the unpaced one by this factor, with recovery, too,
# memory is so short that no other way came near it on any trace.
_MUCH = 1.1

# A plan that counts on less of the SSD sends less there; how much less is best depends on the trace.
_SPARING = (0.5, 0.25)
_LEAST_SHARE = 0.01

Method: TypeAlias = Literal["fastest", "waiting", "paced", "unpaced", "published"]

_PACED = Effect(
    lambda run, policy: policy.method in ("fastest", "waiting", "paced"),
    "with method fastest, waiting or paced",
    "no plan is paced",
)
_TRIED = Effect(lambda run, policy: policy.method == "fastest", "with method fastest", "nothing is tried out")


@register_policy
class G10Paced(PlannerOptions, PolicyPerJob):
    """G10's plan in the time that the GPU will really take, or without, whichever is faster.

    The paced plan counts the stalls that it expects, and kernels may wait for the room that it makes; the
    unpaced one is that of the policy g10. What leaves the GPU against a plan may be fetched back ahead of
    use. Trial iterations decide, where an SSD is needed also of the published planner's plan and of plans
    that spare the SSD; of equals the simplest is taken.
    """

    name = "g10_paced"
    label = "G10 paced"
    look = Look("#117733", "//||", "8", "2 2")
    paper = (
        "G10 (Zhang et al., MICRO 2023) with plans that count stalls, chosen by simulation: this project's"
    )

    method: Method = parameter(default="fastest")
    """Way to plan; ``fastest``: trial iterations decide; ``waiting``: paced, and kernels wait for the room
    that the plan makes."""
    pacing_rounds: int = parameter(default=20, ge=1, le=100, effect=_PACED)
    """Most rounds of planning with the stalls that the round before expects."""
    ssd_share: float = parameter(default=1.0, ge=_LEAST_SHARE, le=1)
    """Share of the SSD's rates that plans count on. With method fastest trial iterations decide, where an
    SSD is needed and kernels wait, between this, half and a quarter of it."""
    recovery_look_ahead: Count = parameter(default=128)
    """Kernels ahead of which tensors are fetched back that left the GPU against the plan; 0: page faults do
    it. With method fastest trial iterations decide between the two; of kernels that wait they try the
    latter."""
    trial_kernels: Count = parameter(default=10_000, effect=_TRIED)
    """Most kernels in an iteration of all jobs for which trial iterations decide: they take as long as the
    run. With more of them kernels wait, and what left against the plan is fetched back."""

    def _set_up(self) -> None:
        self._drafts: dict[tuple[object, ...], tuple[Trace, Draft]] = {}
        self._needs_ssd, self._trials, self._tried_for = False, 0, TimeLimit()

    job_class: ClassVar[type[RecoveringJob]] = RecoveringJob

    def settle(self, obstacle: Trials) -> Policy:
        """Choose the fastest plan by trial iterations, unless they take too long."""
        if self.method not in ("fastest", "waiting"):
            return self
        kernels = sum(len(job.trace.kernels) for job in obstacle.workload.jobs)
        if self.method == "waiting" or kernels > self.trial_kernels:
            return self._variant("waiting", self.recovery_look_ahead)
        speeds, time = dict[G10Paced, float](), TimeLimit(self.planning_limit)
        for design in self._candidates(speeds):
            unpaced = (found for other, found in speeds.items() if other.method == "unpaced")
            # The best of those that do not wait counts where it is less than _MUCH slower than one that does.
            to_beat = max(*unpaced, max(speeds.values()) / _MUCH) if speeds else 0.0
            speeds[design] = speed(design, obstacle, to_beat, until_steady=True)
            if time.is_over():
                break
        best = max(speeds, key=speeds.__getitem__)
        best._trials, best._tried_for = len(speeds), time
        return best

    def _candidates(self, speeds: Mapping[G10Paced, float]) -> Iterator[G10Paced]:
        """Yield designs to try out, the simplest first, as long as a better one may come.

        ``speeds`` are those of designs that were tried.
        """
        look_aheads = tuple(dict.fromkeys((0, self.recovery_look_ahead)))
        unpaced = [self._variant("unpaced", ahead) for ahead in look_aheads]
        yield unpaced[0]
        if speeds[unpaced[0]] > _NEARLY_IDEAL:
            return
        waiting = self._variant("waiting", 0)
        yield from (waiting, *unpaced[1:])
        is_much_faster = speeds[waiting] > _MUCH * max(map(speeds.__getitem__, unpaced))
        if is_much_faster or not unpaced[0]._needs_ssd:
            return
        yield from (self._variant("waiting", 0, share) for share in _SPARING)
        yield from (self._variant("published", ahead) for ahead in look_aheads)

    def _variant(self, method: Method, look_ahead: int, share: float = 1) -> G10Paced:
        """Return the policy with another method, which counts on a share of what this one does of the SSD."""
        given = {**self.parameters(), "method": method, "recovery_look_ahead": look_ahead}
        given["ssd_share"] = max(_LEAST_SHARE, share * self.ssd_share)
        variant = (_Waiting if method == "waiting" else G10Paced)(**given)
        variant._drafts = self._drafts
        return variant

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> RecoveringJob:
        """Plan a job."""
        parameters = PlanningParameters(
            **self.parameters_of(PlannerOptions),
            planner="published" if self.method == "published" else "live",
            published_order=self.behaviour.planner == "published",
            pacing_rounds=1 if self.method == "unpaced" else self.pacing_rounds,
        )
        draft = self._draft(job.trace, self._sparing(machine), parameters)
        kinds = {eviction.tier.kind for eviction in draft.evictions}
        self._needs_ssd |= "ssd" in kinds or parameters.published_order
        plan, kernels = draft.plan(job.trace), [one.tensors for one in job.trace.kernels]
        return self.job_class(draft, plan, kernels, system.gpu.memory, self.recovery_look_ahead)

    def _sparing(self, machine: PlannedMachine) -> PlannedMachine:
        """Return the machine with as much of the SSDs' rates as plans count on."""
        share = self.ssd_share

        def spared(ssd: PlannedTier) -> PlannedTier:
            return replace(ssd, read_rate=share * ssd.read_rate, write_rate=share * ssd.write_rate)

        tiers = tuple(spared(tier) if tier.kind == "ssd" else tier for tier in machine.tiers)
        return replace(machine, tiers=tiers)

    def _draft(self, trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
        """Plan one job, once for all designs that differ in nothing that counts for it, and all trials."""
        key = id(trace), machine, parameters.planner, parameters.pacing_rounds, parameters.published_order
        if key not in self._drafts:
            self._drafts[key] = trace, draft_g10(*self._counted(trace, machine), parameters)
        return self._drafts[key][1]

    def _counted(self, trace: Trace, machine: PlannedMachine) -> tuple[Trace, PlannedMachine]:
        """Leave out what the published planner counts, or refuses, although it is never used.

        Those are tensors behind the last one in use, and further tiers without room.
        """
        if self.method != "published" or self.behaviour.planner == "published":
            return trace, machine
        count = max(tensor for kernel in trace.kernels for tensor in kernel.tensors) + 1
        tiers = tuple(tier for tier in machine.tiers if tier.capacity_bytes or tier == machine.tiers[0])
        return replace(trace, tensors=trace.tensors[:count]), replace(machine, tiers=tiers)

    @property
    def note(self) -> str:
        """The plan that was chosen, and among how many that were tried."""
        sparing = f"{self.ssd_share:g} of the SSD's rates" if self.ssd_share < 1 else ""
        recovery = f"recovery {self.recovery_look_ahead} kernels ahead" if self.recovery_look_ahead else ""
        trials = f"the fastest of {self._trials} trials" if self._trials else ""
        limits = self._tried_for, *(job.draft.time for job in self.jobs)
        ends = dict.fromkeys(limit.note for limit in limits)
        return ", ".join(filter(None, (f"plan {self.method}", sparing, recovery, trials, *ends)))


class _Waiting(G10Paced):
    """G10 paced whose kernels wait: only designs that act at their end let go of what they used then."""

    job_class = WaitingJob
