"""Memory that the kernels to come need, and when each tensor is needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.footprint import levels, working_set_bytes
from g10sim.analysis.timeline import Integers
from g10sim.grouping import grouped
from g10sim.policies.interface import PlannedMachine
from g10sim.policies.planning.timeline import Timeline
from g10sim.trace.model import Device, Kernel, Trace
from g10sim.trace.repetition import each, named


@dataclass(frozen=True)
class Dropped:
    """A tensor without contents from kernel ``start`` on; ``producers`` make it again before ``end``.

    The last of them is its own producer, the others make what that one reads and what is gone by then.
    """

    tensor: int
    start: int
    end: int
    producers: tuple[Kernel, ...]

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """Tensors that the producers read and none of them makes."""
        made = set(self.results)
        return tuple(i for producer in self.producers for i in producer.inputs if i not in made)

    @property
    def results(self) -> list[int]:
        """Tensors that the producers make."""
        return [result for producer in self.producers for result in producer.outputs]


class Reruns:
    """Tensors and memory of kernels that run again, to bring dropped tensors back.

    ``sources`` are pairs of a kernel and a tensor that has to be there before it, as others read it then or
    write into it, ``scratch`` pairs of a kernel and a result that nobody needs any more. ``live_bytes`` are
    those of all others that are alive at each kernel.
    """

    def __init__(self, demand: Demand, drops: Sequence[Dropped]) -> None:
        trace, away = demand.trace, {drop.tensor: drop for drop in drops}
        self._demand, self._drops = demand, drops
        self.scratch = sorted({(drop.end, i) for drop in drops for i in _scratch(trace, drop)})
        self.sources = [(drop.end, i) for drop in drops for i in _sources(trace, drop, away)]
        self.live_bytes = demand.live_bytes - dropped_bytes(demand, drops)

    def scratch_bytes(self) -> Integers:
        """Return the bytes of scratch of each kernel, all of it at a time."""
        spans = ((kernel, kernel + 1, self._demand.sizes[tensor]) for kernel, tensor in self.scratch)
        return levels(spans, len(self.live_bytes))

    def most_scratch_bytes(self) -> Integers:
        """Return the most bytes of scratch at a time, if it goes when no kernel that runs again reads it."""
        sizes, scratch = self._demand.sizes, set(self.scratch)
        again = grouped((drop.end, producer) for drop in self._drops for producer in drop.producers)
        found = np.zeros_like(self.live_bytes)
        for kernel, producers in again.items():
            ordered = sorted({producer.id: producer for producer in producers}.values(), key=attrgetter("id"))
            last = {tensor: producer.id for producer in ordered for tensor in producer.tensors}
            there = 0
            for producer in ordered:
                own = [tensor for tensor in producer.tensors if (kernel, tensor) in scratch]
                there += sum(sizes[tensor] for tensor in own if tensor in producer.outputs)
                found[kernel] = max(found[kernel], there)
                there -= sum(sizes[tensor] for tensor in own if last[tensor] == producer.id)
        return found


def _per_kernel(kernels: int, pairs: Iterable[tuple[int, int]]) -> list[Sequence[int]]:
    """Return the lists of tensors of all kernels, each in the order of pairs of a kernel and a tensor."""
    found = grouped(pairs)
    return [found.get(kernel, ()) for kernel in range(kernels)]


class Forecast:
    """An iteration of a job, after which the next one comes.

    ``sizes`` are bytes in whole pages, ``cycles`` the durations of kernels, of which the ``timeline`` has the
    starts. ``lack`` are the bytes beyond GPU memory that are alive at a kernel (negative: room),
    ``most_lacking`` the most of them; no kernel uses more than ``largest_set``. ``first_uses`` are the first
    kernels that need tensors. For each kernel, ``born`` are the tensors that need pages from then on,
    ``dead`` those that do not any more, ``dropped`` those to be dropped when it is about to start.
    ``sources`` are what kernels that run again before it read, and those of their results that have contents
    already; ``needed`` are these and its own tensors. They write ``scratch`` besides: results that nobody
    needs any more.
    """

    def __init__(self, demand: Demand, machine: PlannedMachine, drops: Sequence[Dropped] = ()) -> None:
        self.trace = trace = demand.trace
        self.kernels = kernels = len(trace.kernels)
        self.sizes = np.array(demand.sizes, dtype=np.int64)
        self.cycles, self.timeline = demand.cycles, Timeline(demand.cycles)
        room = machine.gpu_bytes // machine.page_bytes * machine.page_bytes
        reruns = Reruns(demand, drops)
        self.largest_set = int(working_set_bytes(trace).max(initial=0))
        self.never = 3 * kernels - 1
        used = [tensor for tensor, uses in enumerate(trace.uses) if uses]
        self.lasting = [tensor for tensor in used if trace.lasting[tensor]]
        mortal = [tensor for tensor in used if not trace.lasting[tensor]]
        self.on_gpu = each(trace.kernels, lambda kernel: kernel.device is Device.GPU)
        self._mortal, self._births, self._deaths, self._drops = mortal, trace.births, trace.deaths, drops
        self._uses = [uses[: bisect_left(uses, trace.deaths[i])] for i, uses in enumerate(trace.uses)]
        again = [(drop.end, drop.tensor) for drop in drops]
        self.born = _per_kernel(kernels, [*((trace.births[i], i) for i in mortal), *again])
        self.dead = _per_kernel(kernels + 1, ((trace.deaths[i], i) for i in mortal))
        self.dropped = _per_kernel(kernels, ((drop.start, drop.tensor) for drop in drops))
        self.scratch = _per_kernel(kernels, reruns.scratch)
        self.lack = reruns.live_bytes + reruns.scratch_bytes() - room
        self.most_lacking = int(self.lack.max())
        self.sources = _per_kernel(kernels, reruns.sources)
        tensors = named(trace.kernels, attrgetter("tensors"))
        self.needed = [(*own, *more) for own, more in zip(tensors, self.sources, strict=True)]
        for kernel, source in reruns.sources:
            self._uses[source] = tuple(sorted({*self._uses[source], kernel}))
        self.first_uses = [self.next_use(tensor, 0) for tensor in range(len(self.sizes))]

    def alive_at(self, kernel: int) -> list[int]:
        """Return the tensors that have contents or pages at a kernel."""
        births, deaths = self._births, self._deaths
        dropped = {drop.tensor for drop in self._drops if drop.start <= kernel < drop.end}
        mortal = [tensor for tensor in self._mortal if births[tensor] <= kernel < deaths[tensor]]
        return sorted({*self.lasting, *mortal} - dropped)

    def next_use(self, tensor: int, kernel: int) -> int:
        """Return the first kernel from ``kernel`` on that needs a tensor's contents.

        Kernels of the next iteration count on; ``never`` if none does.
        """
        uses: Sequence[int] = self._uses[tensor]
        place = bisect_left(uses, kernel)
        if place < len(uses):
            return uses[place]
        return uses[0] + self.kernels if uses and self.trace.lasting[tensor] else self.never


def dropped_bytes(demand: Demand, drops: Iterable[Dropped]) -> Integers:
    """Return the bytes of dropped tensors during each kernel."""
    return levels(((drop.start, drop.end, demand.sizes[drop.tensor]) for drop in drops), len(demand.cycles))


def with_reruns(cycles: Integers, drops: Iterable[Dropped]) -> Integers:
    """Return how long kernels take, those of dropped tensors that run again before them included."""
    found = cycles.copy()
    for producer, end in {(one.id, drop.end) for drop in drops for one in drop.producers}:
        found[end] += cycles[producer]
    return found


def _scratch(trace: Trace, drop: Dropped) -> list[int]:
    """Return what the producers of a dropped tensor write that nobody needs any more."""
    needed = trace.kernels[drop.end].tensors
    return [result for result in drop.results if trace.deaths[result] <= drop.end and result not in needed]


def _sources(trace: Trace, drop: Dropped, dropped: Mapping[int, Dropped]) -> list[int]:
    """Return what has to be there when the producers of a dropped tensor run again."""
    there = [*drop.sources]
    for result in drop.results:
        other = dropped.get(result)
        is_dropped = other is not None and other.start <= drop.end <= other.end
        if not is_dropped and trace.deaths[result] > drop.end:
            there.append(result)
    return there
