"""Jobs whose tensors move as a whole and need consecutive GPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from g10sim.errors import PolicyError, UnsupportedError, few
from g10sim.hardware.gpu_memory.allocators.caching import CachingPool
from g10sim.hardware.gpu_memory.allocators.space import ContiguousSpace
from g10sim.hardware.gpu_memory.contiguous import Contiguous
from g10sim.hardware.gpu_memory.layout import Blocks
from g10sim.hardware.gpu_memory.placement import (
    FitRule,
    PlannedAddresses,
    best_fit,
    first_fit_left,
    first_fit_right,
    last_hole_right,
    worst_fit,
)
from g10sim.hardware.host_memory.host_buffers import Expanded, index_owner
from g10sim.hardware.pools import Door, Frames, Pool
from g10sim.hardware.transfers.staging import Staging
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Compressed, Place, PlannedPlace, Policy
from g10sim.records import Location, StallReason
from g10sim.sim.accounts.ledger import Execution
from g10sim.sim.accounts.owners import fault_reason
from g10sim.sim.context import JobContext, Machine
from g10sim.sim.hooks import asked
from g10sim.sim.moves.reactions import Reactions
from g10sim.sim.stages.fetching import Fetching
from g10sim.sim.stages.working_set import free_room
from g10sim.sim.view import View
from g10sim.trace.model import Kernel, Tensor, Trace
from g10sim.trace.workload import Job
from g10sim.units import format_bytes

_RULES: dict[Place, FitRule] = {
    Place.LEFT: first_fit_left,
    Place.RIGHT: first_fit_right,
    Place.BEST: best_fit,
    Place.WORST: worst_fit,
    Place.LAST: last_hole_right,
}
_SHOWN_HOLDERS = 4


def contiguous_memory(
    number: int,
    job: Job,
    plan: MigrationPlan | None,
    policy: Policy,
    machine: Machine,
    staging: Staging,
    pools: Sequence[Pool],
    door: Door,
    frames: Frames | None = None,
) -> Contiguous:
    """Return a job's GPU memory with its persistent tensors in it, those in the last tier that find no room.

    ``pools`` are those of the tiers. ``frames`` are the pages of a GPU that jobs share: each has its
    own addresses over them, and its persistent tensors move in when it is let on. Raises PolicyError when the
    policy places too few tensors or at impossible addresses, UnsupportedError when scratch space has no room.
    """
    trace, system, behaviour = job.trace, machine.system, machine.behaviour
    page = system.gpu.page_size
    places = asked(policy, "places", lambda: tuple(policy.places(job, plan, behaviour)))
    if len(places) != len(trace.tensors):
        raise PolicyError(
            f"policy '{policy.name}': places returned {len(places)} places; allowed: one per tensor, "
            f"{len(trace.tensors)}"
        )
    pages = trace.page_sizes(page)
    moved, expanded = _compressed(policy, job, plan, pages, page)
    factor = policy.requirements.published_memory_factor if behaviour.copy_memory == "published" else 1
    room, pool = system.gpu.memory // page * factor, policy.requirements.caching_pool
    blocks = Blocks(
        sizes=moved,
        allocator=ContiguousSpace(room, frames) if pool is None else CachingPool(room, page, pool),
        rules=[
            _rule(place, policy, tensor, page) for place, tensor in zip(places, trace.tensors, strict=True)
        ],
        copy_rate=lambda count, place, leaves: staging.copy_rate(job.gpu, count, place, leaves=leaves),
        recalls=behaviour.running_tensors == "pinned",
        weights=frozenset(tensor.id for tensor in trace.tensors if tensor.persistent),
        buffers=staging.host_buffers(number, job.gpu, keeps=policy.requirements.keeps_host_buffers),
        staged=staging.place,
        returns_between_kernels=policy.requirements.returns_space == "between_kernels",
        expanded=expanded,
        scratch_pages=max((pages[i] for i, at in enumerate(places) if at is Place.BUFFER), default=0),
    )
    memory = Contiguous(page, pools, door, blocks)
    memory.describe(trace.frozen)
    if frames is None:
        move_in(memory, trace, policy)
    return memory


def _compressed(
    policy: Policy, job: Job, plan: MigrationPlan | None, pages: Sequence[int], page_bytes: int
) -> tuple[list[int], dict[int, Expanded]]:
    """Return the pages of every tensor that move, and what the GPU has of those that it compresses.

    Raises PolicyError for tensors that cannot be compressed, or that would grow.
    """
    moved, expanded = list(pages), {}
    for tensor, sizes in asked(policy, "compressed", lambda: dict(policy.compressed(job, plan))).items():
        if type(tensor) is not int or not isinstance(sizes, Compressed):
            found = f"{sizes!r} for tensor {tensor!r}"
            allowed = "Compressed(moved_bytes, index_bytes) for a tensor, as int"
            raise PolicyError.at(f"policy '{policy.name}': compressed", found, allowed)
        known = 0 <= tensor < len(pages) and not job.trace.lasting[tensor]
        moving, index = (-(-size // page_bytes) for size in (sizes.moved_bytes, sizes.index_bytes))
        if not known or not 0 < moving <= pages[tensor] - index:
            raise PolicyError(
                f"policy '{policy.name}': compresses tensor {tensor} to {sizes.moved_bytes} bytes and an "
                f"index of {sizes.index_bytes}; allowed: what is not persistent, to no more than it takes"
            )
        moved[tensor], expanded[tensor] = moving, Expanded(pages[tensor], index)
    return moved, expanded


def move_in(memory: Contiguous, trace: Trace, policy: Policy) -> None:
    """Put persistent tensors into GPU memory as far as they fit, and scratch space next to them.

    Raises UnsupportedError when that does not fit.
    """
    for tensor in trace.tensors:
        if tensor.persistent:
            memory.place(tensor.id, Location.GPU)
    if not memory.reserve_scratch(first_fit_left):
        scratch = format_bytes(memory.blocks.scratch_pages * memory.page_bytes)
        raise UnsupportedError(
            f"policy '{policy.name}': no room for scratch space of {scratch} beside the persistent tensors "
            f"of '{trace.model}'"
        )


def _rule(place: Place | PlannedPlace, policy: Policy, tensor: Tensor, page_bytes: int) -> FitRule | None:
    if isinstance(place, Place):
        return _RULES.get(place)
    where = f"policy '{policy.name}': places puts tensor '{tensor.name}' at"
    if not isinstance(place, PlannedPlace):
        raise PolicyError(f"{where} {place!r}; allowed: a Place or a PlannedPlace")
    addresses = place.addresses_bytes
    wrong = [address for address in addresses if address < 0 or address % page_bytes]
    if wrong or not addresses or policy.requirements.caching_pool is not None:
        found = f"address {wrong[0]}" if wrong else f"{len(addresses)} planned addresses"
        allowed = f"one or more multiples of the page size, {page_bytes}, without a caching pool"
        raise PolicyError(f"{where} {found}; allowed: {allowed}")
    fallback = None if place.fallback is None else _RULES.get(place.fallback)
    return PlannedAddresses([address // page_bytes for address in addresses], fallback)


def _order(policy: Policy, kernel: Kernel) -> tuple[int, ...]:
    """Return a kernel's tensors in a policy's order. Raises ValueError for others, and for one twice."""
    order = tuple(policy.allocation_order(kernel))
    if not {*order} <= {*kernel.tensors} or len({*order}) < len(order):
        raise ValueError(f"found {order!r}; allowed: the kernel's tensors, each once: {kernel.tensors}")
    return order


class WholeFetching(Fetching):
    """Brings the data of kernels that wait until every tensor that they use is on the GPU as a whole."""

    _waits_alone = False

    def __init__(self, context: JobContext, space: Contiguous, view: View, reactions: Reactions) -> None:
        self._space, self._reactions = space, reactions
        super().__init__(context, view, self._waited_for(context))
        self._demanded: dict[int, Location] = {}
        self._makes_room = reactions.has("on_out_of_memory")
        self.make_room = self._make_room

    def _waited_for(self, context: JobContext) -> list[tuple[int, ...]]:
        """Return the tensors that each kernel waits for, in the policy's order. Raises PolicyError."""
        policy, trace = context.policy, context.job.trace
        fetches_weights = context.behaviour.absent_weights == "fetched"
        waited_for = {
            tensor.id
            for tensor in trace.tensors
            if self._space.blocks.needs_space(tensor.id) and (fetches_weights or not tensor.persistent)
        }
        found = []
        for kernel in trace.kernels:
            order = asked(policy, "allocation_order", partial(_order, policy, kernel), kernel.id)
            found.append(tuple(filter(waited_for.__contains__, order)))
            if forgotten := waited_for.intersection(kernel.tensors).difference(found[-1]):
                raise PolicyError(
                    f"policy '{policy.name}', kernel {kernel.id}: allocation_order leaves out tensor "
                    f"'{trace.tensors[min(forgotten)].name}'; allowed: all tensors of the kernel"
                )
        return found

    def has_all(self) -> bool:
        """Return whether the kernel that is held has all its data, and waits for nothing else."""
        return not self._memory.awaits and self._has_come()

    def _has_come(self) -> bool:
        return all(map(self._space.is_usable, self._memory.needed))

    def _has_joined(self) -> bool:
        if not self._memory.has_joined and self._lacks_room:
            with self._fabric.alter(self._number):
                self._make_room()
        return super()._has_joined()

    def _ask(self, execution: Execution) -> None:
        self._demanded.clear()
        self._demand()

    def _looks_again(self) -> bool:
        """Ask again for what left meanwhile."""
        self._demand()
        return super()._looks_again()

    def _demand(self) -> None:
        """Ask for tensors that are away, and make room for them; remember from where they come.

        Where that changes nothing memory is left alone, so that nobody else has to look again.
        """
        memory = self._memory
        missing = [tensor for tensor in self._wanted if memory.idle[tensor] < memory.sizes[tensor]]
        if all(map(self._is_demanded, missing)) and not self._lacks_room:
            return
        with self._fabric.alter(self._number):
            for tensor in missing:
                if origin := self._origin(tensor):
                    self._demanded.setdefault(tensor, origin)
                memory.demand(tensor)
            self._make_room()

    def _origin(self, tensor: int) -> Location | None:
        """Return the slowest tier that has some of a tensor, or none."""
        return next((place for place in self._memory.origins if self._memory.pages[place][tensor]), None)

    def _is_demanded(self, tensor: int) -> bool:
        """Return whether to demand a tensor changes nothing."""
        return self._space.is_asked_for(tensor) and (tensor in self._demanded or not self._origin(tensor))

    @property
    def _lacks_room(self) -> bool:
        """Return whether the kernel waits for space, nothing under way will free any, and the policy may."""
        return self._makes_room and bool(self._space.waiting) and not self._memory.queues.busy

    def _make_room(self) -> None:
        """Let the policy act where the kernel lacks room.

        Prefetches that wait for space, too, are given up then: the tensors are fetched on demand. It acts
        again as long as what it does frees memory at once, without a copy.
        """
        memory, space = self._memory, self._space
        before: tuple[int, int] | None = None
        while self._lacks_room:
            space.withdraw_requests(memory.needed)
            found = len(space.waiting), space.blocks.allocator.free_pages
            if not space.waiting or memory.queues.busy or found == before:
                return
            self._reactions.react("on_out_of_memory")
            before = found

    def reason(self) -> StallReason:
        """Return what the kernel waits for: space first, then what it demanded, then what is late."""
        missing = [tensor for tensor in self._memory.needed if not self._space.is_usable(tensor)]
        if any(tensor in self._space.waiting for tensor in missing):
            return StallReason.ALLOCATION
        origins = [self._demanded[tensor] for tensor in missing if tensor in self._demanded]
        return fault_reason(max(origins).name) if origins else StallReason.LATE_PREFETCH

    def end(self, execution: Execution, extra: int) -> int:
        """Return when a kernel ends whose data are there: whole tensors do not fault."""
        return self.clock.cycle + execution.duration

    def describe_wait(self) -> UnsupportedError:
        """Describe a wait without end: for space, and what holds it, or for copies that find no room."""
        memory, space, trace = self._memory, self._space, self._context.job.trace
        page = memory.page_bytes
        kernel = trace.kernels[self._view.kernel]
        where = f"policy '{self._context.policy.name}', kernel {kernel.id} ({kernel.name}) of '{trace.model}'"
        if not space.waiting:
            return UnsupportedError(f"{where}: waits for copies that cannot go on; {free_room(memory)}")
        first = trace.tensors[self._space.waiting[0]]
        return UnsupportedError(
            f"{where}: tensor '{first.name}' needs {format_bytes(space.blocks.pages(first.id) * page)} of "
            f"consecutive GPU memory; the largest hole has {format_bytes(space.largest_hole_pages * page)}, "
            f"{format_bytes(space.blocks.allocator.free_pages * page)} are free, and nothing under way frees "
            f"more (held by {self._holders()})"
        )

    def _holders(self) -> str:
        """Name the largest blocks of memory and how many more there are."""
        tensors, page = self._context.job.trace.tensors, self._memory.page_bytes
        blocks = sorted(
            self._space.blocks.allocator.blocks.items(), key=lambda item: (-item[1].pages, item[1].start)
        )
        names = ("scratch space" if o == -1 else tensors[max(o, index_owner(o))].name for o, _ in blocks)
        sizes = (format_bytes(block.pages * page) for _, block in blocks)
        held = few(map(" ".join, zip(names, sizes, strict=True)), _SHOWN_HOLDERS)
        others = self._space.blocks.pages_of_others
        return f"{held}; other jobs have {format_bytes(others * page)}" if others else held
