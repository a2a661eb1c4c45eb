"""The public interface of migration policies: the view, requirements, places, and ``Policy`` itself."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args, get_type_hints

from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.interface.moves import MemoryKind, Move
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.registry import not_found
from g10sim.trace.model import Kernel, Trace
from g10sim.trace.workload import Job, Workload


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


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """Addresses in contiguous GPU memory, in bytes, multiples of the page size.

    The i-th time in an iteration that the tensor gets a block, it goes to the i-th address, after the last
    to the first again. Where those pages are not free, ``fallback`` decides; None: it waits until they are.
    """

    addresses_bytes: tuple[int, ...]
    fallback: Place | None = Place.RIGHT


@dataclass(frozen=True, slots=True)
class Compressed:
    """Sizes of a tensor that the GPU compresses before it leaves and expands when it is back, in bytes.

    ``moved_bytes`` cross links and lie in memory tiers; ``index_bytes`` stay on the GPU while it is away.
    """

    moved_bytes: int
    index_bytes: int = 0


class PolicyView(Protocol):
    """Questions a policy may ask during simulation; nothing here changes anything."""

    @property
    def job(self) -> int:
        """Position of the running job in the workload."""

    @property
    def gpu(self) -> int:
        """GPU that the job runs on."""

    @property
    def trace(self) -> Trace:
        """The job's trace."""

    @property
    def now_cycles(self) -> int:
        """Current simulated time in cycles."""

    @property
    def iteration(self) -> int:
        """Iteration in progress, counted from 0."""

    @property
    def kernel(self) -> int:
        """Kernel that is about to start (or running)."""

    @property
    def free_bytes(self) -> int:
        """Empty GPU memory."""

    @property
    def largest_hole_bytes(self) -> int:
        """Largest tensor that could be allocated; with paged placement, all empty GPU memory."""

    @property
    def host_free_bytes(self) -> int:
        """Empty host memory."""

    @property
    def whole_tensors(self) -> frozenset[int]:
        """Tensors of which all is on the GPU and not in transfer."""

    @property
    def measured_cycles(self) -> tuple[int, ...]:
        """Cycles that each kernel computed when it last ran, the trace's own before that.

        Where jobs share a GPU, what others took of its time counts.
        """

    @property
    def own_cycles(self) -> tuple[int, ...]:
        """Cycles that each kernel computed when it last ran, without what other jobs took of the GPU's time.

        The trace's own before that.
        """

    @property
    def tiers(self) -> Sequence[str]:
        """Names of the memory tiers, fastest first."""

    @property
    def in_place_tiers(self) -> Sequence[str]:
        """Names of the memory tiers in which kernels can use tensors where they lie, fastest first."""

    def free_bytes_of(self, tier: str) -> int:
        """Empty memory of a tier; 0 for one that the system does not have."""

    def bytes_in(self, tensor: int, tier: str) -> int:
        """Bytes of a tensor in a tier and not in transfer; 0 for one that the system does not have."""

    def away_bytes(self, tensor: int) -> int:
        """Bytes of a tensor in all memory tiers together and not in transfer."""

    def size_bytes(self, tensor: int) -> int:
        """Size of a tensor in whole pages."""

    def resident_bytes(self, tensor: int) -> int:
        """Bytes of a tensor on the GPU and not in transfer: what an eviction would move."""

    def host_bytes(self, tensor: int) -> int:
        """Bytes of a tensor in host memory and not in transfer."""

    def flash_bytes(self, tensor: int) -> int:
        """Bytes of a tensor on flash and not in transfer."""

    def in_transfer_bytes(self, tensor: int) -> int:
        """Bytes of a tensor that wait in a queue or are on a link."""

    def is_whole(self, tensor: int) -> bool:
        """Tell whether all of a tensor is on the GPU and not in transfer."""

    def is_needed(self, tensor: int) -> bool:
        """Tell whether the current kernel needs the tensor (it may not be evicted then)."""

    def is_dropped(self, tensor: int) -> bool:
        """Tell whether the tensor was dropped and will be computed again."""

    def is_dead(self, tensor: int) -> bool:
        """Tell whether the tensor's contents will not be read any more in this iteration."""

    def next_use(self, tensor: int) -> int:
        """Kernels until the tensor is used again after the current one, at least 1.

        A persistent tensor's next use may be in the next iteration; for any other tensor without a
        further use it is twice the number of kernels.
        """


class Trials(Protocol):
    """Simulates some iterations of the workload under designs that a policy chooses among.

    ``workload`` is as policies plan for it, with kernel times that do not vary.
    """

    workload: Workload
    system: SystemSpec

    def __call__(self, design: Policy) -> str | None:
        """Say why one iteration cannot be run, or None if it can."""

    def cycles(self, design: Policy, *, until_steady: bool = False) -> Sequence[int] | None:
        """Return the cycles of every job's second iteration (or only one); None where it cannot be run.

        With ``until_steady`` they are those of the iteration that results report, for jobs whose number of
        iterations is ``auto``: a design that keeps links busy over the end of an iteration may be faster in
        the second one than ever after.

        Where jobs whose GPUs share links form groups that are alike and do not slow each other down, these
        are the jobs of one group, under a design that places tensors contiguously. None, too, where jobs
        share a GPU that refuses one of them.
        """


_WORDS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    CachingPoolSpec: "CachingPoolSpec(...)",
    type(None): "None",
}


@cache
def _choices() -> dict[str, tuple[Any, ...]]:
    """Return what is allowed for every requirement: values, and types of values."""
    return {name: tuple(_parts(hint)) for name, hint in get_type_hints(Requirements).items()}


def _parts(hint: Any) -> Iterator[Any]:
    if isinstance(hint, type | str):
        yield hint
    for part in get_args(hint):
        yield from _parts(part)


@dataclass(frozen=True)
class Requirements:
    """Properties of GPU memory, links and the memory manager that a policy asks for.

    Parameters
    ----------
    unlimited_memory
        Simulate a GPU with room for everything.
    placement
        ``paged``: any free pages will do (unified memory). ``contiguous``: whole tensors move, and each needs
        consecutive pages.
    addresses
        Addresses of paged placement. ``pooled``: from the framework's caching allocator, whose ranges stay
        mapped when tensors die; ``own``: the design frees what is dead itself, and may drop tensors.
    caching_pool
        Chunks from which contiguous memory is handed out; None: the whole memory is one.
    returns_space
        When contiguous memory takes back the space of evicted tensors.
    keeps_host_buffers
        A tensor's buffer in host memory stays pinned for the whole run once it was used.
    published_memory_factor
        How much more GPU memory the published simulator gives the design (``compat.copy_memory``).
    link_service
        How copies share links, in place of ``system.pcie.service``; None: as the system says.
    drops_dead_tensors
        Dead pages are never written out, even if the machine itself would write them.
    moves_ahead
        The policy asks for migrations before they are demanded.
    keeps_mappings
        GPU memory stays mapped in a framework's caching allocator: after the first iteration new tensors wait
        for no mapping.
    keeps_copies
        A tier keeps its copy of a tensor until a kernel writes the tensor. Until then it leaves the GPU
        without a transfer, as far as the tier has room; so it is with frozen ones anyway. For paged memory.
    pins_on_use
        A tensor's buffer in host memory is pinned when pages of it cross first, as far as
        ``system.host.pinned.limit`` lets it, and kept.
    host_memory
        Buffers of copies there. ``any``: pinned or not as the machine and ``pageable`` say; ``pinned``:
        ``pageable`` names none; ``none``: no copy goes there.
    cpu_buffers
        Kernels on the CPU whose data are in host memory at a time, until what ``Store`` moves to other tiers
        has left; they come one after another in the order of launches. None: those of all that were launched.
    """

    unlimited_memory: bool = False
    placement: MemoryKind = "paged"
    addresses: Literal["pooled", "own"] = "pooled"
    caching_pool: CachingPoolSpec | None = None
    returns_space: Literal["at_once", "between_kernels"] = "at_once"
    keeps_host_buffers: bool = False
    published_memory_factor: int = 1
    link_service: Literal["fair", "first_come", "deadline"] | None = None
    drops_dead_tensors: bool = False
    moves_ahead: bool = True
    keeps_mappings: bool = False
    keeps_copies: bool = False
    pins_on_use: bool = False
    host_memory: Literal["any", "pinned", "none"] = "any"
    cpu_buffers: int | None = None

    def __post_init__(self) -> None:
        """Refuse other values than the declared ones. Raises ValueError."""
        for name, choices in _choices().items():
            found = getattr(self, name)
            if type(found) not in choices and not (isinstance(found, str) and found in choices):
                words = [_WORDS.get(choice, choice) for choice in choices]
                raise ValueError(f"{name}: found {found!r}{not_found(found, words)}")
        if self.keeps_copies and self.placement != "paged":
            raise ValueError(f"keeps_copies: found with placement '{self.placement}'; allowed: with 'paged'")


class Policy:
    """Decides what moves between GPU, host memory and flash.

    A subclass sets ``name`` (key in YAML), ``label`` (in legends) and ``paper`` (citation), takes its
    parameters as keyword arguments of the constructor and stores them unchanged under the same names.
    It overrides what it needs: ``plan_job`` decides before time starts; ``on_kernel_start`` and
    ``choose_victims`` decide during simulation. Pages that a kernel misses are fetched on demand, and a
    full GPU makes room by evicting least recent pages, whatever a policy does.
    """

    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    look: ClassVar[Look] = Look()
    """Colour, hatch, marker and line in figures; without a colour, figures choose."""
    paper: ClassVar[str] = ""
    check_exemptions: ClassVar[Mapping[str, str]] = {}
    """Checks of ``g10sim.policies.checks`` that do not apply to this design, each with the reason."""
    reference_plan: ClassVar[str | None] = None
    """File name of the plan that the published simulator writes for this design."""

    @property
    def requirements(self) -> Requirements:
        """Properties of the machine that the design relies on."""
        return Requirements()

    @property
    def note(self) -> str:
        """Remark on this instance for the results, such as its choices; usually nothing."""
        return ""

    def settle(self, obstacle: Trials) -> Policy:
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
        between: collectives in which each replica takes part, and which run beside the GPU's kernels.
        Tensors may become smaller, and there may be further ones behind those of ``trace``.
        """
        return trace

    @property
    def partitions(self) -> bool:
        """Tell whether replicas share memory under the design."""
        return type(self).partition is not Policy.partition

    @property
    def keeps_kernels(self) -> bool:
        """Tell whether the GPU runs every kernel of a trace as it is."""
        return type(self).choose_kernels is Policy.choose_kernels and not self.partitions

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Return one plan (or None) per job, before time starts; by default from ``plan_job``."""
        return tuple(self.plan_job(job, system, behaviour) for job in workload.jobs)

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan | None:
        """Return the plan of one job, or None. Raises UnsupportedError when the design cannot run it."""
        return None

    def on_iteration_start(self, view: PolicyView) -> MigrationPlan | None:
        """Return the plan of the job's iterations from this one on; None keeps the one there is."""
        return None

    def is_steady(self, view: PolicyView) -> bool:
        """Tell whether all iterations to come are treated like the one that has just ended.

        A design that measures first, or adjusts its plan from iteration to iteration, says False until that
        is over: an iteration can only be steady if this is True at its end and at the end of the one before.
        """
        return True

    def state(self, view: PolicyView) -> Hashable:
        """Return what the design keeps of the past and decides by later, counted from now; usually nothing.

        Asked at the end of an iteration. Iterations repeat exactly where this and memory are as they were at
        the end of an earlier one.
        """
        return ()

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Return what to do when a kernel is about to start, after the plan's own moves."""
        return ()

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Return what to do when a kernel has ended and its dead tensors are released."""
        return ()

    def on_out_of_memory(self, view: PolicyView) -> Iterable[Move]:
        """Return what to do when the kernel waits for contiguous memory and nothing under way frees any.

        Asked again as long as that is so; without an action, the workload is unsupported.
        """
        return ()

    def places(
        self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec
    ) -> Sequence[Place | PlannedPlace]:
        """Return where every tensor's block goes; asked with contiguous placement only."""
        return (Place.LEFT,) * len(job.trace.tensors)

    def compressed(self, job: Job, plan: MigrationPlan | None) -> Mapping[int, Compressed]:
        """Return the tensors that the GPU compresses when they leave; asked with contiguous placement only.

        None may be persistent. What the view says of their bytes is compressed; compressing takes no time.
        """
        return {}

    def homes(self, job: int) -> Mapping[int, str]:
        """Return the tiers in which persistent tensors of a job lie before time starts, by name.

        The job is given by its position in the workload. All others, and what finds no room there, lie as
        ``compat.initial_tier`` says. Asked with paged GPU memory; only designs with addresses of their own
        may name any.
        """
        return {}

    def host_reserved(self, job: int) -> int:
        """Return the bytes of host memory that a job, given by its position, keeps reserved all the time.

        They count as in use where less is. The policy refuses what has not as much.
        """
        return 0

    def pageable(self, job: int) -> Collection[int]:
        """Return the tensors of a job, given by its position in the workload, that host memory does not pin.

        They cross no faster than ``system.host.pinned.pageable_bandwidth``. Asked with paged GPU memory; only
        designs with addresses of their own may name any.
        """
        return ()

    def allocation_order(self, kernel: Kernel) -> Sequence[int]:
        """Return a kernel's tensors in the order in which missing ones are allocated and fetched."""
        return kernel.tensors

    def choose_victims(self, view: PolicyView) -> Iterable[int] | None:
        """Return tensors to evict from a full GPU, first choice first; None leaves it to recency.

        Asked when a page needs room and no earlier choice has pages left. Tensors that the current
        kernel needs may not be named.
        """
        return None

    @classmethod
    def legend(cls) -> Look:
        """Return the look of this design in figures, with its label; those of a base class do not count."""
        own = vars(cls)
        look = cls.look if "look" in own else Look()
        return replace(look, label=own.get("label") or cls.__name__)

    @classmethod
    def with_reference_plan(cls, path: Path) -> Policy:
        """Return a policy that follows the plan at ``path``, written by the published simulator."""
        from g10sim.policies.designs.replay import Replay

        return Replay(plan_file=str(path))

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """Names of the constructor's parameters."""
        return tuple(name for name in inspect.signature(cls).parameters)

    def parameters(self) -> dict[str, Any]:
        """Parameters of this instance by name."""
        return {name: getattr(self, name) for name in self.parameter_names()}


class JointPolicy(Policy):
    """Base of designs that plan the jobs of a workload together."""

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan | None:
        """Plan one job that has the machine to itself. Raises UnsupportedError."""
        return self.plan(Workload((job,)), system, behaviour)[0]
