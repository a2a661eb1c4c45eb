"""Streaming: tensors come in the order of their uses, and what is used last makes room."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from operator import attrgetter, itemgetter

import numpy as np

from g10sim.analysis.bound.demand import demand_of
from g10sim.analysis.timeline import Integers
from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.looks import Look
from g10sim.policies.designs.stream.shares import located, page_shares, whole_tensors
from g10sim.policies.interface import Evict, Fetch, Move, PlannedMachine, PolicyView, Protect, Requirements
from g10sim.policies.interface.jobs import JobPolicy, PolicyPerJob
from g10sim.policies.interface.parameters import WITH_PAGEABLE, Declared, DeviceMap, Size, parameter
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.offloading.room import IN_FRAMEWORK, find_tier
from g10sim.policies.planning.timeline import absences
from g10sim.trace.model import Trace
from g10sim.trace.repetition import named
from g10sim.trace.workload import Job
from g10sim.units import parse_bytes

_NEVER = 2**60
_WINDOW = 16
"""The window is at most this part of GPU memory: where kernels are long, more would stream for nothing."""


class Streaming(JobPolicy):
    """One job's tensors in the cyclic order of their uses, kernels counted on from iteration to iteration.

    ``_missing`` are the bytes of each tensor that nobody has asked for: they lie elsewhere, or have no
    contents and are mapped before a kernel writes them. ``_uses`` are the kernels on the GPU that need each
    tensor's contents, or make them, and ``_next`` is the one that needs what is missing. ``_lasting``
    and ``_dying`` have both numbers of what is missing, the next one first, and others that no longer hold.
    ``_living`` are the tensors that die before the iteration ends and have contents beyond the running
    kernel, in the order of their births, each with the kernel that bears it. ``_asked`` has the bytes asked
    for of each tensor that may be on its way. ``_free_bytes`` are those of the GPU beyond all that is there
    or was asked for. ``_all_sizes`` and so on are the same as arrays.
    """

    def __init__(self, trace: Trace, machine: PlannedMachine, design: Stream) -> None:
        self._trace, self._kernels, self._overlaps = trace, len(trace.kernels), design.overlap
        sizes: Integers = np.array(machine.sizes(trace), dtype=np.int64)
        each = zip(trace.uses, trace.deaths, strict=True)
        self._uses = [uses[: max(1, bisect_left(uses, death))] for uses, death in each]
        following: Integers = np.array([uses[0] if uses else _NEVER for uses in self._uses], dtype=np.int64)
        self._living = OrderedDict[int, int]()  # whose first entry is found at once
        self._dies: list[bool] = (~np.array(trace.lasting, dtype=bool) & (following < _NEVER)).tolist()
        missing: Integers = np.where(following < _NEVER, sizes, 0)
        self._all_sizes, self._all_next, self._all_missing = sizes, following, missing
        self._sizes, self._next, self._missing = sizes.data, following.data, missing.data
        self._lasting, self._dying = list[tuple[int, int]](), list[tuple[int, int]]()
        for tensor in np.flatnonzero(missing).tolist():
            self._await(tensor)
        self._asked: dict[int, int] = {}
        self._asked_bytes = self._last_asked = 0
        self._named: list[list[int]] = []
        self._homes: dict[int, str] = {}
        self._free_bytes = machine.gpu_bytes // machine.page_bytes * machine.page_bytes
        demand = demand_of(trace, machine.clock_hz, machine.page_bytes)
        longest = min(int(demand.cycles.max(initial=0) * machine.link_rate), machine.gpu_bytes // _WINDOW)
        window = longest if design.window is None else parse_bytes(design.window)
        keep_bytes = None if design.keep is None else parse_bytes(design.keep)
        places = located(trace, design.device_map or {})
        keeps_copies = design.keeps_copies or design.device_map is not None
        if design.device_map is not None:
            away = absences(trace, machine.sizes(trace))
            leaving = {one: one.size_bytes for one in away if one.tensor in places}
        elif keep_bytes is None and not keeps_copies:
            leaving = page_shares(trace, machine, demand, window)
        else:
            leaving = whole_tensors(trace, machine, demand, keep_bytes)
        self._departures = grouped((one.start, (one.tensor, size)) for one, size in leaving.items())
        leave = {absence.tensor for absence in leaving} if keeps_copies else set[int]()
        self._clean = leave - trace.written
        self._until_new = _until_new(trace)
        self.homes = places or (self._first_homes(machine) if keeps_copies else {})

    def _first_homes(self, machine: PlannedMachine) -> dict[int, str]:
        """Return homes of persistent tensors, those that stream first, in the fastest tier with room."""
        room = {tier.name: tier.capacity_bytes for tier in machine.tiers}
        lasting = (tensor.id for tensor in self._trace.tensors if tensor.persistent)
        homes = dict[int, str]()
        for tensor in sorted(lasting, key=lambda tensor: (tensor not in self._clean, tensor)):
            size = self._sizes[tensor]
            homes[tensor] = next((name for name, free in room.items() if free >= size), list(room)[-1])
            room[homes[tensor]] -= size
        return homes

    def on_kernel_start(self, view: PolicyView) -> Iterator[Move]:
        """Yield what to do when a kernel is about to start."""
        now = view.iteration * self._kernels + view.kernel
        self._observe(view, now)
        for tensor in view.trace.kernels[view.kernel].tensors:
            self._ask(view, tensor, now)
            if not view.is_whole(tensor):
                yield Fetch(tensor)
        yield from self._depart(view)
        for tensor in self._wanted(now) if self._overlaps else ():
            self._ask(view, tensor, self._next[tensor])
            yield Fetch(tensor)
        if self._asked_bytes > view.free_bytes:  # otherwise nothing is pushed out
            near = (self._all_next <= self._last_asked) & (self._all_missing < self._all_sizes)
            yield Protect(frozenset(np.flatnonzero(near).tolist()))

    def state(self, view: PolicyView) -> tuple[object, ...]:
        """Return next uses, counted from now, what is missing, and what was asked for."""
        now = view.iteration * self._kernels + view.kernel
        uses = np.where(self._all_next < _NEVER, self._all_next - now, _NEVER)
        asked, homes = tuple(self._asked.items()), tuple(sorted(self._homes.items()))
        victims = tuple(map(tuple, self._named))
        return uses.tobytes(), self._all_missing.tobytes(), asked, self._last_asked - now, homes, victims

    def choose_victims(self, view: PolicyView) -> list[int]:
        """Return what is used later than all that was asked for, used last first."""
        following = self._all_next
        there = np.flatnonzero((self._all_missing < self._all_sizes) & (following > self._last_asked))
        order = there[np.argsort(-following[there], kind="stable")].tolist()
        needed = set(filter(view.is_needed, view.trace.kernels[view.kernel].touched))
        victims = [tensor for tensor in order if tensor not in needed]
        self._named.append(victims)
        return victims

    def _observe(self, view: PolicyView, now: int) -> None:
        """Note next uses, and what has left and arrived since the kernel before this one started."""
        if now:
            self._pass(view, now - 1)
        for victims in self._named:
            for tensor in victims:
                if not self._see(view, tensor) and view.resident_bytes(tensor):
                    break
        self._named.clear()
        for tensor in list(self._asked):
            if view.in_transfer_bytes(tensor):
                break
            self._asked_bytes -= self._asked.pop(tensor)
        for tensor in view.trace.kernels[(view.kernel + 1) % self._kernels].tensors:
            self._see(view, tensor)
        if not self._asked:
            self._last_asked = now

    def _pass(self, view: PolicyView, done: int) -> None:
        """Note the next uses of a kernel's tensors; what died with it is missing until it is born again."""
        lap, kernel = divmod(done, self._kernels)
        ended = self._trace.kernels[kernel]
        for tensor in ended.tensors:
            uses = self._uses[tensor]
            place = bisect_right(uses, kernel)
            if place < len(uses):
                self._next[tensor] = uses[place] + lap * self._kernels
                self._await(tensor)
                if self._dies[tensor]:
                    self._living.setdefault(tensor, kernel)
                continue
            self._living.pop(tensor, None)
            self._next[tensor] = uses[0] + (lap + 1) * self._kernels
            if not self._trace.lasting[tensor]:
                self._lack(tensor, self._sizes[tensor])
            self._await(tensor)
        for tensor in set(ended.touched).difference(ended.tensors):
            self._see(view, tensor)

    def _see(self, view: PolicyView, tensor: int) -> bool:
        """Count what of a tensor is not here, or leaves; return True if that has changed."""
        missing = 0 if tensor in self._asked else self._sizes[tensor] - view.resident_bytes(tensor)
        return self._lack(tensor, missing)

    def _lack(self, tensor: int, missing: int) -> bool:
        """Note what of a tensor is missing; return True if that has changed."""
        before = self._missing[tensor]
        if missing == before:
            return False
        self._missing[tensor] = missing
        if self._uses[tensor]:
            self._free_bytes += missing - before
            if not before:
                self._await(tensor)
        return True

    def _await(self, tensor: int) -> None:
        """Put a tensor that is missing in order, if any is asked for ahead."""
        if self._overlaps and self._missing[tensor]:
            order = self._dying if self._dies[tensor] else self._lasting
            heappush(order, (self._next[tensor], tensor))

    def _ask(self, view: PolicyView, tensor: int, need: int) -> None:
        """Note that a tensor is asked for, which kernel ``need`` needs."""
        if missing := self._missing[tensor]:
            self._asked[tensor] = self._asked.get(tensor, 0) + missing
            self._asked_bytes += missing
            self._last_asked = max(self._last_asked, need)
        if tensor in self._clean:
            home = next((tier for tier in view.tiers if view.bytes_in(tensor, tier)), None)
            self._homes[tensor] = home or self._homes[tensor]
        self._lack(tensor, 0)

    def _wanted(self, now: int) -> list[int]:
        """Return what to ask for now in the order of use: as much as has room, and what is needed next."""
        room, soon = self._free_bytes, now + self._until_new[now % self._kernels]
        wanted = list[int]()
        for use, tensor in self._coming(now):
            room -= self._missing[tensor]
            if room < 0 and use > soon:
                self._await(tensor)
                break
            wanted.append(tensor)
        return wanted

    def _coming(self, now: int) -> Iterator[tuple[int, int]]:
        """Take out uses within an iteration from now of what is missing and can be asked for, in order."""
        end, last_birth = now + self._kernels, self._next_birth_of_living(now)
        limits = (self._lasting, end - 1), (self._dying, min(end - 1, last_birth))
        last = (now, len(self._uses))  # what left and came back before its use is there twice
        while heads := [order for order, limit in limits if self._head(order) <= limit]:
            first = heappop(min(heads, key=itemgetter(0)))
            if first > last:
                yield first
                last = first

    def _head(self, order: list[tuple[int, int]]) -> int:
        """Return the next use of what is missing, after leaving out what no longer holds."""
        while order:
            use, tensor = order[0]
            if self._missing[tensor] and self._next[tensor] == use:
                return use
            heappop(order)
        return _NEVER

    def _next_birth_of_living(self, now: int) -> int:
        """Return the first kernel that needs new space for a tensor that still has contents.

        Until these die it cannot be asked for, and what is needed later would be before it in the queue.
        """
        lap, kernel = divmod(now, self._kernels)
        following = (lap + 1) * self._kernels
        if self._living:
            return following + next(iter(self._living.values()))
        running = self._trace.kernels[kernel].tensors
        is_born = any(self._dies[tensor] and self._next[tensor] <= now for tensor in running)
        return following + kernel if is_born else _NEVER

    def _depart(self, view: PolicyView) -> Iterator[Move]:
        """Send away what is to be elsewhere until its next use."""
        for tensor, size in self._departures.get(view.kernel, ()):
            excess = min(size - self._missing[tensor], view.resident_bytes(tensor))
            if excess <= 0 or view.is_needed(tensor):
                continue
            self._lack(tensor, self._missing[tensor] + excess)
            if tensor in self._homes:
                yield Evict(tensor, self._homes[tensor], is_clean=True)
            else:
                free = (name for name in view.tiers if view.free_bytes_of(name) >= excess)
                yield Evict(tensor, next(free, view.tiers[-1]), size_bytes=excess)


def _until_new(trace: Trace) -> list[int]:
    """Return for each kernel how many later the next one is that needs other tensors."""
    kernels = list(named(trace.kernels, attrgetter("tensors")))
    found = [1] * len(kernels)
    for number in reversed(range(len(kernels) - 1)):
        if set(kernels[number + 1]) == set(kernels[number]):
            found[number] += found[number + 1]
    return found


@register_policy
class Stream(Declared, PolicyPerJob):
    """Streams weights, and whatever else does not fit, to the GPU in the order of use.

    Every tensor that is idle for long streams with equally many pages, small ones with all, as many as do not
    fit; the rest stays. They leave after their use. While kernels compute, what is used next comes in.
    """

    name = "stream"
    label = "Stream"
    look = Look("#999933", "x.", "+", "3 1 1 2")
    paper = "weight streaming, as L2L (Pudipeddi et al., arXiv 2002.05645) and ZeRO-Inference"

    window: Size | None = parameter(default=None, published="the next layer, L2L")
    """Bytes that come in ahead of use; none: what the link carries during the longest kernel, at most 1/16 of
    GPU memory."""
    keep: Size | None = parameter(default=None, published="0 B, L2L")
    """Bytes of persistent tensors that stay on the GPU, whole tensors, first those that kernels write; all
    others leave after every use. None: as much as fits."""
    keeps_copies: bool = parameter(default=False, published="true, ZeRO-Inference")
    """Tiers keep their copies: persistent tensors that no kernel writes leave without being copied, whole."""
    device_map: DeviceMap | None = parameter(default=None)
    """Places of weights, by the longest start of their names, as Accelerate's: on ``gpu`` they stay, from a
    tier they come for each use and are given up without a copy. Those that no start is of stay."""
    overlap: bool = parameter(default=True, published="true, L2L; false, Accelerate")
    """Fetch what is used next while kernels compute; otherwise each kernel waits for its own weights."""
    pinned: bool = parameter(
        default=True, published="true, ZeRO-Inference; false, Accelerate", effect=WITH_PAGEABLE
    )
    """Copies use page-locked host memory, as far as it may be pinned; otherwise pageable memory."""

    job_class = Streaming

    def _set_up(self) -> None:
        if self.device_map is not None and self.keep is not None:
            raise ValueError(f"keep: found '{self.keep}' beside device_map; allowed: one or the other")

    @property
    def requirements(self) -> Requirements:
        """The design frees what is dead itself."""
        return replace(IN_FRAMEWORK, host_memory="pinned" if self.pinned else "any")

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> Streaming:
        """Note the order of uses; the rest is decided kernel by kernel."""
        for tier in (self.device_map or {}).values():
            if tier != "gpu":
                find_tier(self.name, system, tier, "weights")
        return Streaming(job.trace, machine, self)

    def pageable(self, job: int) -> Collection[int]:
        """Return all tensors, unless they are pinned."""
        return () if self.pinned else range(len(self.workload.jobs[job].trace.tensors))
