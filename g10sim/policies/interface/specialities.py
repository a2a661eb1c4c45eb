"""Hooks of policies for special subjects: contiguous and paged memory, workloads, figures and results."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.interface.contract import Move
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.trace.model import Kernel, Trace
from g10sim.trace.workload import Job, Workload

if TYPE_CHECKING:
    from g10sim.policies.interface.policy import Policy, PolicyView


class Place(Enum):
    """Place of a tensor's block in contiguous GPU memory.

    LEFT and RIGHT: first fit from the lowest or from the highest address. BEST: in the smallest hole that
    is large enough; WORST: in the largest. LAST: at the high end of the last hole, and nowhere else.
    BUFFER: in scratch space that all kernels share, as large as the largest such tensor. NOWHERE: it needs
    no memory.
    """

    LEFT = "left"
    RIGHT = "right"
    BEST = "best"
    WORST = "worst"
    LAST = "last"
    BUFFER = "buffer"
    NOWHERE = "nowhere"


_FALLBACKS = (None, Place.LEFT, Place.RIGHT, Place.BEST, Place.WORST, Place.LAST)


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """Addresses in contiguous GPU memory, in bytes, multiples of the page size.

    The i-th time in an iteration that the tensor gets a block, it goes to the i-th address, after the last
    to the first again. Where those pages are not free, ``fallback`` decides; None: it waits until they are.
    """

    addresses_bytes: tuple[int, ...]
    fallback: Place | None = Place.RIGHT

    def __post_init__(self) -> None:
        """Refuse addresses that are no ints, and a fallback without addresses. Raises ValueError."""
        for address in self.addresses_bytes:
            if type(address) is not int:
                raise ValueError(f"addresses_bytes: found {address!r}; allowed: an int")
        if self.fallback not in _FALLBACKS:
            allowed = ", ".join(map(str, _FALLBACKS))
            raise ValueError(f"fallback: found {self.fallback!r}; allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class Compressed:
    """Sizes of a tensor that the GPU compresses before it leaves and expands when it is back, in bytes.

    ``moved_bytes`` cross links and lie in memory tiers; ``index_bytes`` stay on the GPU while it is away.
    """

    moved_bytes: int
    index_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that are no ints, or below 0. Raises ValueError."""
        for name, size in (("moved_bytes", self.moved_bytes), ("index_bytes", self.index_bytes)):
            if type(size) is not int or size < 0:
                raise ValueError(f"{name}: found {size!r}; allowed: an int from 0")


class ContiguousHooks:
    """Hooks of designs with ``placement="contiguous"``: whole tensors in consecutive pages."""

    def on_out_of_memory(self, view: PolicyView) -> Iterable[Move]:
        """Return what to do when the kernel waits for contiguous memory and nothing under way frees any.

        Asked again as long as that is so; without an action, the workload is unsupported.
        """
        return ()

    def places(
        self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec
    ) -> Sequence[Place | PlannedPlace]:
        """Return where every tensor's block goes."""
        return (Place.LEFT,) * len(job.trace.tensors)

    def compressed(self, job: Job, plan: MigrationPlan | None) -> Mapping[int, Compressed]:
        """Return the tensors that the GPU compresses when they leave.

        None may be persistent. What the view says of their bytes is compressed; compressing takes no time.
        """
        return {}

    def allocation_order(self, kernel: Kernel) -> Sequence[int]:
        """Return a kernel's tensors in the order in which missing ones are allocated and fetched."""
        return kernel.tensors


class PagedHooks:
    """Hooks of designs with paged memory that say where tensors lie below the GPU."""

    def homes(self, job: int) -> Mapping[int, str]:
        """Return the tiers in which persistent tensors of a job lie before time starts, by name.

        The job is given by its position in the workload. All others, and what finds no room there, lie as
        ``compat.initial_tier`` says. Asked with paged GPU memory; only designs with ``addresses="own"``
        may name any.
        """
        return {}

    def host_reserved(self, job: int) -> int:
        """Return the bytes of host memory that a job, given by its position, keeps reserved all the time.

        They count as in use where less is. A system with less host memory is unsupported.
        """
        return 0

    def pageable(self, job: int) -> Collection[int]:
        """Return the tensors of a job, given by its position in the workload, that host memory does not pin.

        They cross no faster than ``system.host.pinned.pageable_bandwidth``. Asked with paged GPU memory; only
        designs with ``addresses="own"`` may name any.
        """
        return ()


class Trials(Protocol):
    """Simulates some iterations of the workload under designs that a policy chooses among.

    ``workload`` is as policies plan for it, with kernel times that do not vary.
    """

    workload: Workload
    system: SystemSpec

    def __call__(self, design: Policy) -> str | None:
        """Say why one iteration cannot be run, or None if it can."""

    def cycles(
        self, design: Policy, *, until_steady: bool = False, at_most: Sequence[int] = ()
    ) -> Sequence[int] | None:
        """Return the cycles of every job's second iteration (or only one); None where it cannot be run.

        With ``until_steady`` they are those of the iteration that results report, for jobs whose number of
        iterations is ``auto``: a design that keeps links busy over the end of an iteration may be faster in
        the second one than ever after. A trial of a number of iterations ends once the last of every job has
        taken longer than its cycles of ``at_most``, if given: one more of each is the answer then.

        Where jobs whose GPUs share links form groups that are alike and do not slow each other down, these
        are the jobs of one group, under a design that places tensors contiguously. None, too, where jobs
        share a GPU that refuses one of them.
        """


class WorkloadHooks:
    """Hooks of designs that choose among designs or change what runs, before anything is planned."""

    def settle(self, obstacle: Trials) -> Policy | Self:
        """Choose among several designs before time starts; by default there is only this one.

        ``obstacle`` simulates one iteration of the workload under a policy and says why it cannot be run, or
        None if it can; its ``cycles`` tell how long iterations take.
        """
        return self

    def choose_kernels(self, trace: Trace, system: SystemSpec) -> Trace:
        """Return the trace with other algorithms for its kernels: other durations and scratch space.

        Its kernels stay the same in number and order, unless the CPU takes over some of the optimizer's, or
        runs some of a forward pass, with their tensors, bytes and reads. It then has more kernels on the CPU
        and fewer of these phases on the GPU, which keeps all others in order, and may have further tensors,
        behind those of ``trace``, and kernels on the GPU without duration.
        Results compare with the durations of ``trace``.
        """
        return trace

    def partition(self, trace: Trace, replicas: int, system: SystemSpec) -> Trace:
        """Return what one of several data-parallel replicas runs, if they share a training's memory.

        Asked after ``choose_kernels``, with its answer, for 2 replicas or more. Kernels on LINKS may come in
        between: collectives in which each replica takes part, and which run alongside the GPU's kernels.
        Tensors may become smaller, and there may be further ones behind those of ``trace``.
        """
        return trace

    @property
    def partitions(self) -> bool:
        """Return True if replicas share memory under the design."""
        return type(self).partition is not WorkloadHooks.partition

    @property
    def keeps_kernels(self) -> bool:
        """Return True if the GPU runs every kernel of a trace as it is."""
        return type(self).choose_kernels is WorkloadHooks.choose_kernels and not self.partitions


class DesignFacts:
    """Facts of a design that figures, checks and results ask for."""

    look: ClassVar[Look] = Look()
    """Colour, hatch, marker and line in figures; without a colour, figures choose."""
    check_exemptions: ClassVar[Mapping[str, str]] = {}
    """Checks of ``g10sim.policies.checks`` that do not apply to this design, each with the reason."""
    reference_plan: ClassVar[str | None] = None
    """File name of the plan that the published simulator writes for this design."""

    @property
    def note(self) -> str:
        """Remark on this instance for the results, such as its choices; usually nothing."""
        return ""

    @classmethod
    def legend(cls) -> Look:
        """Return the look of this design in figures, with its label; those of a base class do not count."""
        own = vars(cls)
        look = cls.look if "look" in own else Look()
        return replace(look, label=own.get("label") or cls.__name__)

    @classmethod
    def with_reference_plan(cls, path: Path) -> Policy:
        """Return a policy that follows the plan at ``path``, written by the published simulator."""
        from g10sim.policies.interface.registry import create

        return create({"name": "replay", "plan_file": str(path)})

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """Names of the constructor's parameters."""
        return tuple(name for name in inspect.signature(cls).parameters)

    def parameters(self) -> dict[str, Any]:
        """Parameters of this instance by name."""
        return {name: getattr(self, name) for name in self.parameter_names()}
