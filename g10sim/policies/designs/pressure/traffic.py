"""Time of an iteration where what is needed last leaves, no more of it than has to, and copies run ahead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from g10sim.analysis.footprint import levels
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.interface import PlannedMachine

_LAPS = 2
"""Iterations that are followed; the last one counts."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes/cycle in and out while both ways are busy, and while the other one is idle."""

    into: float
    out: float
    lone_into: float
    lone_out: float

    def cycles(self, in_bytes: float, out_bytes: float) -> tuple[float, float]:
        """Return how long bytes take to come in, and others that leave meanwhile to leave."""
        both = min(in_bytes / self.into, out_bytes / self.out)
        came = both + (in_bytes - both * self.into) / self.lone_into
        return came, both + (out_bytes - both * self.out) / self.lone_out

    def carried(self, in_bytes: float, out_bytes: float, cycles: float) -> tuple[float, float]:
        """Return how many of these bytes come in and leave in some cycles."""
        both = min(cycles, in_bytes / self.into, out_bytes / self.out)
        came, left = both * self.into, both * self.out
        alone = cycles - both
        return min(in_bytes, came + alone * self.lone_into), min(out_bytes, left + alone * self.lone_out)


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies to and off a memory in some iterations, whose kernels are counted on.

    ``out`` are (first kernel during which one may run, kernel before which it has to be done, bytes),
    ``into``, one for each kernel, (kernel before which the last of it leaves, bytes). ``free_bytes`` are
    those of the memory during each kernel, if no copy runs ahead.
    """

    out: Sequence[tuple[int, int, int]]
    into: Sequence[tuple[int, int]]
    free_bytes: Sequence[int]

    def cycles(self, durations: Sequence[int], rates: LinkRates) -> float:
        """Return how long the last iteration takes.

        A kernel waits for what it needs to come, and for what has to leave before it. Meanwhile later copies
        run: those out in the order in which they have to be done, those in as far ahead as there is room.
        """
        leaving, last = _Leaving(self.out), len(self.free_bytes)
        time = begin = came = 0.0
        due = there = following = 0
        for kernel, ((_, needed), free) in enumerate(zip(self.into, self.free_bytes, strict=True)):
            if kernel == last - len(durations):
                begin = time
            while following < last and self.into[following][0] <= kernel:
                there += self.into[following][1]
                following += 1
            due += needed
            late, ahead = leaving.late_bytes(kernel), free + leaving.early_bytes + leaving.open_bytes
            outward, lacking = late + leaving.open_bytes, max(0.0, due - came)
            inward = max(lacking, min(there, due + max(0.0, ahead)) - came)
            waits = max(rates.cycles(inward, late)[1], rates.cycles(lacking, outward)[0])
            step = waits + durations[kernel % len(durations)]
            arrived, left = rates.carried(inward, outward, step)
            leaving.carry(left - late)
            ahead = max(0.0, free + leaving.early_bytes)
            came = max(came, due, min(came + arrived, due + ahead))
            time += step
        return time - begin


class _Leaving:
    """Copies out; ``early_bytes`` have left by now that did not have to yet, ``open_bytes`` may leave now."""

    def __init__(self, copies: Sequence[tuple[int, int, int]]) -> None:
        self._later, self._open = sorted(copies, reverse=True), list[list[float]]()
        self._early: dict[float, float] = defaultdict(float)
        self.early_bytes = self.open_bytes = 0.0

    def late_bytes(self, kernel: int) -> float:
        """Go on to a kernel; return the bytes that have to leave before it and have not."""
        self.early_bytes -= self._early.pop(kernel, 0.0)
        while self._later and self._later[-1][0] <= kernel:
            _, due, size = self._later.pop()
            heappush(self._open, [float(due), float(size)])
            self.open_bytes += size
        late = 0.0
        while self._open and self._open[0][0] <= kernel:
            late += heappop(self._open)[1]
        self.open_bytes -= late
        return late

    def carry(self, size_bytes: float) -> None:
        """Let bytes leave, those first that have to first."""
        while self._open and size_bytes > 0:
            first = self._open[0]
            part = min(size_bytes, first[1])
            self._early[first[0]] += part
            self.early_bytes += part
            self.open_bytes -= part
            size_bytes -= part
            first[1] -= part
            if not first[1]:
                heappop(self._open)


def copied_cycles(
    forecast: Forecast, machine: PlannedMachine, durations: Sequence[int], keeps_copies: bool = False
) -> float:
    """Return how long an iteration of kernels of these cycles takes with the copies between memories.

    What GPU memory cannot hold crosses the link. What faster tiers cannot hold either crosses the ways of the
    slower ones, which are used side by side. The slowest of these counts.
    """
    most, room, longest = int(forecast.lack.max(initial=0)), 0, float(sum(durations))
    for number, tier in enumerate(machine.tiers):
        if most <= room:
            break
        ways = machine.tiers[number:]
        read, write = sum(way.read_rate for way in ways), sum(way.write_rate for way in ways)
        both = min(machine.in_rate, read), min(machine.out_rate, write)
        alone = min(machine.lone_in_rate, read), min(machine.lone_out_rate, write)
        copies = copies_of(forecast, machine.gpu_bytes + room, keeps_copies)
        longest = max(longest, copies.cycles(durations, LinkRates(*both, *alone)))
        room += tier.capacity_bytes
    return longest


def copies_of(forecast: Forecast, room_bytes: int, keeps_copies: bool = False) -> Copies:
    """Return the copies of a memory of some size, out of which the tensor goes that is needed last.

    (Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal, 1966.)
    What is frozen goes without a copy: as soon as it may, where that gives room. So does what has come back
    and not been written since, where the memory that it came from ``keeps_copies``.
    """
    memory, kernels = _Memory(forecast, keeps_copies), forecast.kernels
    out, into, free_bytes = list[tuple[int, int, int]](), list[tuple[int, int]](), list[int]()
    for kernel in range(_LAPS * kernels):
        place = kernel % kernels
        memory.forget((*forecast.dead[place or kernels], *forecast.dropped[place]))
        needed = {*forecast.needed[place], *forecast.scratch[place]}
        into.append(memory.use(needed, kernel))
        memory.written.update(forecast.trace.kernels[place].outputs)
        out += memory.make_room(kernel, room_bytes, needed)
        free_bytes.append(room_bytes - memory.filled_bytes)
        memory.forget(forecast.scratch[place])
    return Copies(out, into, (levels(memory.lent, len(into)) + free_bytes).tolist())


class _Memory:
    """Bytes of tensors ``here`` and ``away``, those first that are used last.

    An entry of ``_order`` is (less the kernel of the next use, tensor), and holds until that kernel.
    ``lent`` is the room of what goes without a copy and is not used any more until then: (first kernel,
    kernel before which it goes, bytes). With ``keeps_copies`` that is also what has not been ``written``
    since all of it was elsewhere.
    """

    def __init__(self, forecast: Forecast, keeps_copies: bool) -> None:
        self._forecast, self._frozen, self._keeps_copies = forecast, forecast.trace.frozen, keeps_copies
        self.written = set(range(len(forecast.sizes)))
        self._sizes: list[int] = forecast.sizes.tolist()
        count = len(self._sizes)
        self._here, self._away, self._next, self._idle, self._left = ([0] * count for _ in range(5))
        self._order: list[tuple[int, int]] = []
        self.lent: list[tuple[int, int, int]] = []
        self.filled_bytes = 0

    def forget(self, tensors: Collection[int]) -> None:
        """Let tensors go whose contents are not needed any more."""
        for tensor in tensors:
            self.filled_bytes -= self._here[tensor]
            self._here[tensor] = self._away[tensor] = 0
            self.written.add(tensor)

    def use(self, tensors: Collection[int], kernel: int) -> tuple[int, int]:
        """Let a kernel use tensors; return the kernel before which the last one left, and bytes to come."""
        lap, place = divmod(kernel, self._forecast.kernels)
        came = left = 0
        for tensor in tensors:
            size = self._sizes[tensor]
            came += self._away[tensor]
            left = max(left, self._left[tensor] if self._away[tensor] else 0)
            self.filled_bytes += size - self._here[tensor]
            self._here[tensor], self._away[tensor], self._idle[tensor] = size, 0, kernel + 1
            following = lap * self._forecast.kernels + self._forecast.next_use(tensor, place + 1)
            self._next[tensor] = following
            heappush(self._order, (-following, tensor))
        return left, came

    def make_room(self, kernel: int, room_bytes: int, kept: Collection[int]) -> list[tuple[int, int, int]]:
        """Let tensors go until no more are here than have room, but none of some; return their copies."""
        order, here, stay = self._order, self._here, list[tuple[int, int]]()
        copies: list[tuple[int, int, int]] = []
        while self.filled_bytes > room_bytes and order:
            use, tensor = order[0]
            if not here[tensor] or -use != self._next[tensor]:
                heappop(order)
            elif tensor in kept:
                stay.append(heappop(order))
            else:
                size = min(here[tensor], self.filled_bytes - room_bytes)
                here[tensor] -= size
                self._away[tensor] += size
                self._left[tensor] = kernel
                self.filled_bytes -= size
                is_clean = tensor in self._frozen or tensor not in self.written
                (self.lent if is_clean else copies).append((self._idle[tensor], kernel, size))
                if self._keeps_copies and not here[tensor]:
                    self.written.discard(tensor)
        for entry in stay:
            heappush(order, entry)
        return copies
