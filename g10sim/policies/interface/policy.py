"""The public interface of migration policies: the view, requirements, places, and ``Policy`` itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, get_args, get_type_hints

from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import not_found
from g10sim.policies.interface.contract import MemoryKind, Move
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.specialities import Compressed as Compressed
from g10sim.policies.interface.specialities import ContiguousHooks, DesignFacts, PagedHooks, WorkloadHooks
from g10sim.policies.interface.specialities import Place as Place
from g10sim.policies.interface.specialities import PlannedPlace as PlannedPlace
from g10sim.policies.interface.specialities import Trials as Trials
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload


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
        """Empty host memory. Deprecated: ``free_bytes_of("host")``."""

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
        """Bytes of a tensor in host memory. Deprecated: ``bytes_in(tensor, "host")``."""

    def flash_bytes(self, tensor: int) -> int:
        """Bytes of a tensor in the tier ``ssd``. Deprecated: ``bytes_in(tensor, "ssd")``."""

    def in_transfer_bytes(self, tensor: int) -> int:
        """Bytes of a tensor that wait in a queue or are on a link."""

    def is_whole(self, tensor: int) -> bool:
        """Return True if all of a tensor is on the GPU and not in transfer."""

    def is_needed(self, tensor: int) -> bool:
        """Return True if the current kernel needs the tensor (it may not be evicted then)."""

    def is_dropped(self, tensor: int) -> bool:
        """Return True if the tensor was dropped and will be computed again."""

    def is_dead(self, tensor: int) -> bool:
        """Return True if the tensor's contents will not be read any more in this iteration."""

    def next_use(self, tensor: int) -> int:
        """Kernels until the tensor is used again after the current one, at least 1.

        A persistent tensor's next use may be in the next iteration; for any other tensor without a
        further use it is twice the number of kernels.
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
        What the design does with buffers of copies there: runs refuse keys that count for nothing then, and
        nothing holds the moves to it. ``any``: pinned or not as the machine and ``pageable`` say;
        ``pinned``: ``pageable`` names none; ``none``: the design sends no copy there.
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


class KernelHooks:
    """Decisions during simulation, kernel by kernel: of a policy, or of the object of one of its jobs."""

    def on_iteration_start(self, view: PolicyView) -> MigrationPlan | None:
        """Return the plan of the job's iterations from this one on; None keeps the one there is."""
        return None

    def is_steady(self, view: PolicyView) -> bool:
        """Return True if all iterations to come are treated like the one that has just ended.

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

    def choose_victims(self, view: PolicyView) -> Iterable[int] | None:
        """Return tensors to evict from a full GPU, first choice first; None leaves it to recency.

        Asked when a page needs room and no earlier choice has pages left. Tensors that the current
        kernel needs may not be named.
        """
        return None


class Policy(KernelHooks, ContiguousHooks, PagedHooks, WorkloadHooks, DesignFacts):
    """Decides what moves between GPU, host memory and flash.

    A subclass sets ``name`` (key in YAML), ``label`` (in legends) and ``paper`` (citation), takes its
    parameters as keyword arguments of the constructor and stores them unchanged under the same names.
    It overrides what it needs: ``plan_job`` decides before time starts; ``on_kernel_start`` and
    ``choose_victims`` decide during simulation. Pages that a kernel misses are fetched on demand, and a
    full GPU makes room by evicting least recent pages, whatever a policy does.

    The names below, and those of ``KernelHooks``, are all that most designs need. The other base classes have
    hooks for special subjects.
    """

    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    @property
    def requirements(self) -> Requirements:
        """Properties of the machine that the design relies on."""
        return Requirements()

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Return one plan (or None) per job, before time starts; by default from ``plan_job``."""
        return tuple(self.plan_job(job, system, behaviour) for job in workload.jobs)

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan | None:
        """Return the plan of one job, or None. Raises UnsupportedError when the design cannot run it."""
        return None


class JointPolicy(Policy):
    """Base of designs that plan the jobs of a workload together."""

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan | None:
        """Plan one job that has the machine to itself. Raises UnsupportedError."""
        return self.plan(Workload((job,)), system, behaviour)[0]
