"""Policies that decide about every job by itself: an object for each job, which keeps the job's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import getmembers, isclass, isfunction
from types import MappingProxyType
from typing import Any, ClassVar

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import PolicyError
from g10sim.policies.interface.machine import PlannedMachine, planned_machines
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import JointPolicy, KernelHooks, PolicyView
from g10sim.policies.interface.specialities import ContiguousHooks
from g10sim.trace.workload import Job, Workload


class JobPolicy(KernelHooks):
    """Decisions about one job, with the state that they need; ``KernelHooks`` says when each is asked."""

    plan: MigrationPlan | None = None
    """Moves that were planned before time starts."""
    note: str = ""
    """Remark for the results."""
    homes: Mapping[int, str] = MappingProxyType({})
    """Tiers in which persistent tensors lie before time starts; all others lie as the machine says."""

    on_out_of_memory = ContiguousHooks.on_out_of_memory


def _passed_on(name: str, own: Callable[..., object]) -> Callable[..., object]:
    """Return the hook of a policy that the object of the view's job answers."""

    def ask(self: PolicyPerJob, view: PolicyView) -> object:
        return getattr(self.jobs[view.job], name)(view)

    vars(ask)["fget"] = own  # as of a property: errors name the place of this function
    return ask


class PolicyPerJob(JointPolicy):
    """Base of designs that decide about every job by itself.

    A subclass names the class of its jobs' objects, ``job_class``, and makes one in ``start_job``. The
    methods that this class defines are asked while its job runs, the others are not.
    """

    job_class: ClassVar[type[JobPolicy]] = JobPolicy
    shares_gpus: ClassVar[bool] = True
    """Jobs on one GPU count on equal parts of its memory; otherwise each counts on all of it."""
    workload: Workload
    behaviour: BehaviourSpec
    """Workload and behaviour that were planned for last."""
    jobs: tuple[Any, ...] = ()
    """The objects of the jobs of that workload, in order."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Pass on the hooks that the jobs' class defines."""
        super().__init_subclass__(**options)
        if not (isclass(cls.job_class) and issubclass(cls.job_class, JobPolicy)):
            raise TypeError(f"job_class: found {cls.job_class!r}; allowed: a subclass of JobPolicy")
        for name, default in getmembers(JobPolicy, isfunction) if "job_class" in vars(cls) else ():
            own = getattr(cls.job_class, name)
            if own is not default and name not in vars(cls):
                setattr(cls, name, _passed_on(name, own))

    @property
    def note(self) -> str:
        """Return the remarks on all jobs."""
        return "; ".join(dict.fromkeys(job.note for job in self.jobs if job.note))

    def homes(self, job: int) -> Mapping[int, str]:
        """Return the tiers that a job's object names."""
        found: Mapping[int, str] = self.jobs[job].homes
        return found

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> JobPolicy:
        """Return the object of a job that is about to run; ``machine`` is the share that it can count on.

        Raises UnsupportedError when the design cannot run it.
        """
        return self.job_class()

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Start all jobs, and return their plans. Raises UnsupportedError."""
        self.workload, self.behaviour = workload, behaviour
        machines = planned_machines(workload, system, behaviour, shares_gpus=self.shares_gpus)
        pairs = zip(workload.jobs, machines, strict=True)
        self.jobs = tuple(self.start_job(job, machine, system) for job, machine in pairs)
        for started in self.jobs:
            if type(started) is not self.job_class:  # hooks of another class would not be asked
                allowed = f"a {self.job_class.__name__}, the job_class"
                raise PolicyError(f"policy '{self.name}': start_job: found {started!r}; allowed: {allowed}")
        return tuple(job.plan for job in self.jobs)
