"""Moves: everything that plans, reactions and plan files may ask of a job's memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from g10sim.errors import choices_text
from g10sim.policies.interface.contract import Move as Move
from g10sim.policies.interface.contract import MoveState, register_move
from g10sim.policies.interface.contract import TensorMove as TensorMove

_NEEDED = "the running kernel needs; allowed: "


@register_move
@dataclass(frozen=True, slots=True)
class Fetch(TensorMove):
    """Bring what lies elsewhere to the GPU and allocate what has no contents yet.

    Of a tensor that was dropped the pages are allocated, ahead of the kernel that computes it again. With
    ``recalls`` what is still here of a tensor that is leaving stays.
    """

    name = "fetch"
    recalls: bool = False

    def check(self, state: MoveState) -> str | None:
        """Refuse to recall blocks of contiguous memory: their copies go to their end."""
        if self.recalls and state.memory_kind != "paged":
            return self.refusal(state, "recalls", "leaves as a whole; allowed: with paged memory")
        return None

    def apply(self, state: MoveState) -> None:
        """Queue the tensor."""
        if self.recalls:
            state.recall(self.tensor)
        state.fetch(self.tensor)


@register_move
@dataclass(frozen=True, slots=True)
class Evict(TensorMove):
    """Move a tensor's pages off the GPU to a memory tier, by name (``host``, ``ssd``).

    Pages allocated for a tensor that was dropped are given back instead: they have no contents.

    With ``size_bytes`` no more bytes leave, in whole pages (paged memory). An ``is_clean`` tensor lies
    in the tier already and is not copied: its memory is free at once, as far as the tier has room. In paged
    memory no kernel on the GPU may write such a tensor, except for one that made it before it was away. It is
    copied unless all of it came from there.

    The other options are for contiguous memory and tier ``host`` only, and so is ``is_clean`` there. Kernels
    up to ``until`` may still read the tensor while it is copied; its space is free once it has been copied
    and that kernel has ended. With a ``density`` (share of its elements that are not zero) it is compressed
    in host memory.
    """

    name = "evict"
    target: str = "host"
    until: int | None = None
    density: float | None = None
    is_clean: bool = False
    size_bytes: int | None = None

    def tiers(self) -> Collection[str]:
        """Return the target."""
        return (self.target,)

    def check(self, state: MoveState) -> str | None:
        """Refuse what the running kernel needs, and options that memory cannot serve."""
        if state.memory_kind == "paged":
            return self._check_pages(state)
        if self.size_bytes is not None:
            return self.refusal(state, "evicts", "leaves in part; allowed: with paged memory")
        if self.until is None and self.density is None and not self.is_clean:
            return self._check_use(state)
        if self.target != "host":
            return self.refusal(state, "evicts", "is read, compressed or clean; allowed: to host")
        if self.density is not None and not 0 <= self.density <= 1:
            return self.refusal(state, "compresses", f"has density {self.density}; allowed: 0 to 1")
        return self._check_readers(state)

    def _check_use(self, state: MoveState) -> str | None:
        if state.keeps_needed and state.view.is_needed(self.tensor):
            return self.refusal(state, "evicts", f"{_NEEDED}tensors that it does not need")
        return None

    def _check_pages(self, state: MoveState) -> str | None:
        """Refuse what pages cannot do, and as clean what kernels write."""
        if self.until is not None or self.density is not None:
            return self.refusal(state, "evicts", "is read or compressed; allowed: with contiguous memory")
        if self.size_bytes is not None and self.size_bytes < 0:
            return self.refusal(state, "evicts", f"leaves with {self.size_bytes} bytes; allowed: 0 or more")
        if self.is_clean and self._has_changed(state):
            rule = "kernels on the GPU write; allowed: tensors that they only read"
            return self.refusal(state, "evicts as clean", rule)
        return self._check_use(state)

    def _has_changed(self, state: MoveState) -> bool:
        """Return True if kernels on the GPU have written the tensor since it was last elsewhere."""
        trace = state.view.trace
        is_made_once = self.tensor not in trace.rewritten
        return self.tensor in trace.written_on_gpu and not (is_made_once and state.was_away(self.tensor))

    def _check_readers(self, state: MoveState) -> str | None:
        """Refuse a copy that would miss what the kernels up to ``until`` write."""
        kernel, trace = state.view.kernel, state.view.trace
        last = -1 if self.until is None else self.until
        if state.view.is_needed(self.tensor) and last < kernel:
            return self.refusal(state, "evicts", f"{_NEEDED}until that kernel or a later one")
        uses = trace.uses[self.tensor]
        for use in uses[bisect_left(uses, kernel) : bisect_right(uses, last)]:
            if self.tensor in trace.kernels[use].outputs:
                return self.refusal(state, "copies", f"kernel {use} writes; allowed: read-only ones")
        return None

    def apply(self, state: MoveState) -> None:
        """Queue the tensor."""
        state.evict(self)


def eviction_of(move: Evict | int, target: str, options: Mapping[str, Any]) -> Evict:
    """Return the move that ``MoveState.evict`` was given, whole or in parts."""
    return move if isinstance(move, Evict) else Evict(move, target, **options)


@register_move
@dataclass(frozen=True, slots=True)
class Free(TensorMove):
    """Drop the contents of a tensor that nothing will read again."""

    name = "free"

    def check(self, state: MoveState) -> str | None:
        """Refuse a tensor that is alive."""
        view, tensor = state.view, self.tensor
        trace, kernel = view.trace, view.kernel
        is_unread = view.is_dead(tensor) or (
            trace.births[tensor] >= kernel
            and (view.is_needed(tensor) or tensor not in trace.kernels[kernel].tensors)
        )
        if trace.lasting[tensor] or not is_unread:
            return self.refusal(state, "frees", "will be read again; allowed: dead tensors")
        return None

    def apply(self, state: MoveState) -> None:
        """Forget the contents."""
        state.discard(self.tensor)


@register_move
@dataclass(frozen=True, slots=True)
class Drop(TensorMove):
    """Drop the contents of a tensor that will be read again: its kernels run again before the next reader.

    The tensor must be made by one kernel of the iteration, from inputs that are there and unchanged when it
    is needed. Inputs that are dead by then must be such tensors themselves: their kernels run again first.
    """

    name = "drop"

    def check(self, state: MoveState) -> str | None:
        """Refuse what cannot be computed again."""
        if state.view.is_dropped(self.tensor):
            return None
        if state.view.is_needed(self.tensor):
            return self.refusal(state, "drops", f"{_NEEDED}tensors that it does not need")
        problem = state.drop_problem(self.tensor)
        return self.refusal(state, "drops", problem) if problem else None

    def apply(self, state: MoveState) -> None:
        """Forget the contents, once."""
        if not state.view.is_dropped(self.tensor):
            state.drop(self.tensor)


@register_move
@dataclass(frozen=True, slots=True)
class Access(TensorMove):
    """Let the kernel that is about to start use what a memory tier has of a tensor where it lies.

    The kernel reads those pages over the links to the tier, as often as its trace says, or writes them, and
    takes at least as long as that. They do not come to the GPU; what of the tensor lies elsewhere does.
    """

    name = "access"
    memories = ("paged",)
    may_be_delayed = False
    tier: str = "host"

    def tiers(self) -> Collection[str]:
        """Return the tier."""
        return (self.tier,)

    def check(self, state: MoveState) -> str | None:
        """Refuse tiers that kernels cannot use, and tensors that the kernel does not."""
        usable = state.view.in_place_tiers
        if self.tier not in usable:
            allowed = choices_text(usable) or "no tier here (key kernel_access of a tier)"
            return self.refusal(state, "uses", f"lies in '{self.tier}'; allowed in place: {allowed}")
        if not state.view.is_needed(self.tensor):
            rule = "the kernel does not touch; allowed: its tensors, when it is about to start"
            return self.refusal(state, "uses", rule)
        return None

    def apply(self, state: MoveState) -> None:
        """Leave the pages where they are."""
        state.use_in_place(self.tensor, self.tier)


@register_move
@dataclass(frozen=True, slots=True)
class Store(TensorMove):
    """Send what lies of a tensor in host memory to another memory tier, without a stop on the GPU.

    While a kernel on the CPU uses the tensor, that waits for its end. One that is launched before the tensor
    is away keeps it in host memory. An ``is_clean`` tensor is not copied, as far as the tier has room, if all
    of it was stored there before. No kernel may write such a tensor, except for the one that makes it.
    """

    name = "store"
    memories = ("paged",)
    tier: str = "ssd"
    is_clean: bool = False

    def tiers(self) -> Collection[str]:
        """Return the tier."""
        return (self.tier,)

    def check(self, state: MoveState) -> str | None:
        """Refuse traces without kernels on the CPU, and host memory itself as the tier."""
        if self.tier == "host":
            return self.refusal(state, "stores", "is to go to host; allowed: another tier")
        if not state.view.trace.cpu_kernels:
            return self.refusal(state, "stores", "no kernel on the CPU uses; allowed: where some do")
        if self.is_clean and self.tensor in state.view.trace.rewritten:
            rule = "kernels change; allowed: tensors that they only read, once they are made"
            return self.refusal(state, "stores as clean", rule)
        return None

    def apply(self, state: MoveState) -> None:
        """Send it."""
        state.store(self.tensor, self.tier, is_clean=self.is_clean)


@register_move
@dataclass(frozen=True, slots=True)
class Protect(Move):
    """Keep prefetches from pushing out pages of these tensors until the next kernel starts."""

    name = "protect"
    tensors: frozenset[int]

    def subjects(self) -> Collection[int]:
        """Return the tensors."""
        return self.tensors

    def apply(self, state: MoveState) -> None:
        """Protect the tensors instead of those protected before."""
        state.protect(self.tensors)


@register_move
@dataclass(frozen=True, slots=True)
class Await(Move):
    """Wait for transfers under way of these tensors, or (None) of all: evictions, prefetches, or both.

    What is stored counts as evicted.

    At the start of a kernel, that kernel waits. At its end, or delayed, its end waits, and the next kernel
    starts after it.
    """

    name = "await"
    tensors: frozenset[int] | None = None
    evictions: bool = True
    prefetches: bool = False

    def subjects(self) -> Collection[int]:
        """Return the tensors, if it names any."""
        return () if self.tensors is None else self.tensors

    def apply(self, state: MoveState) -> None:
        """Let the kernel wait."""
        state.await_transfers(self.tensors, evictions=self.evictions, prefetches=self.prefetches)


@register_move
@dataclass(frozen=True, slots=True)
class KeepUncompressed(Move):
    """Leave tensors in host memory uncompressed unless compression has begun."""

    name = "keep_uncompressed"
    memories = ("contiguous",)

    def apply(self, state: MoveState) -> None:
        """Leave them as they are."""
        state.keep_uncompressed()
