"""Closed form of a bound: one kernel at a time, its excess has to leave before it and return after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import compress, count

import numpy as np

from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.bound.machine import BoundMachine
from g10sim.analysis.timeline import Floats, Integers

_KERNELS_AT_ONCE = 2**16


@dataclass(frozen=True)
class Curve:
    """Least cycles in which bytes cross, as far as one resource decides.

    ``segments`` are (bytes, cycles/byte) with rising slopes; the last one goes on. ``allowance`` cycles
    may have been spent before.
    """

    resource: str
    segments: tuple[tuple[int, Fraction], ...]
    allowance: Fraction

    def cycles(self, size_bytes: int) -> Fraction:
        """Return the cycles that a number of bytes takes."""
        total, left = -self.allowance, size_bytes
        for place, (width, slope) in enumerate(self.segments):
            part = left if place == len(self.segments) - 1 else min(left, width)
            total += part * slope
            left -= part
        return max(Fraction(0), total)

    def cycles_of_all(self, sizes: Integers) -> Floats:
        """Return the cycles of many sizes, as floats."""
        total = np.full(len(sizes), -float(self.allowance))
        left = sizes.astype(np.float64)
        for place, (width, slope) in enumerate(self.segments):
            part = left if place == len(self.segments) - 1 else np.minimum(left, width)
            total += part * float(slope)
            left = left - part
        return np.asarray(np.maximum(0.0, total))


@lru_cache(maxsize=64)
def curves(machine: BoundMachine, *, inward: bool, outward: bool) -> tuple[Curve, ...]:
    """Return what decides how fast bytes come in, go out, or (both) go out and come back."""
    ways = [(store.inward if inward else ()) + (store.outward if outward else ()) for store in machine.stores]
    sizes = [machine.store_bytes(store) for store in machine.stores]
    found = []
    for number, limit in enumerate(machine.limits):
        cost = Fraction(machine.clock_hz, limit.rate)
        filled = sorted((way.count(number), size) for way, size in zip(ways, sizes, strict=True))
        segments = tuple((size, times * cost) for times, size in filled)
        if segments[-1][1]:
            found.append(Curve(limit.name, segments, machine.carried_bytes(number) * cost))
    if len(ways) > 1 and all(ways):
        found.append(_together(machine, ways, sizes))
    return tuple(found)


def _together(machine: BoundMachine, ways: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> Curve:
    """Return the curve of all tiers at once, each as fast as its own way allows until it is full."""
    rates = [
        min(Fraction(machine.limits[number].rate, machine.clock_hz * way.count(number)) for number in way)
        for way in ways
    ]
    filling = sorted((Fraction(size) / rate, rate) for size, rate in zip(sizes, rates, strict=True))
    segments: list[tuple[int, Fraction]] = []
    now, total = Fraction(0), sum(rates, Fraction(0))
    for end, rate in filling:
        segments.append((int((end - now) * total), 1 / total))
        now, total = end, total - rate
    carried = len(ways) * max(machine.carried_bytes(number) for number in range(len(machine.limits)))
    resource = " and ".join(store.name for store in machine.stores)
    return Curve(resource, tuple(segments), carried * segments[-1][1])


@dataclass(frozen=True)
class _Leg:
    """Bytes that leave before a kernel, return after it, or both.

    ``spared`` are the bytes of each kernel's excess that need not, ``cover`` the cycles of other kernels.
    """

    inward: bool
    outward: bool
    spared: Integers
    cover: Integers


def closed_form(
    demand: Demand, machine: BoundMachine, *, steady: bool
) -> tuple[int, dict[str, float], dict[str, float]]:
    """Return the highest bound of all kernels, rounded down, with its stalls and savings.

    Stalls are cycles by the resource that causes them. Savings are the cycles by which the bound of the same
    kernel falls if a resource gets a percent better.

    With E bytes more alive at a kernel than the GPU holds, those of E that the iteration has used before have
    left by then, and those that it uses later return afterwards. If iterations repeat, all of E leaves and
    returns between two runs of the kernel. What is frozen leaves without a transfer.
    """
    ways = [_once(demand)]
    if steady:
        others = demand.ideal_cycles - demand.cycles
        ways.append([_Leg(True, True, np.broadcast_to(demand.frozen_bytes, others.shape), others)])
        if demand.frozen_bytes:
            ways.append([_Leg(True, False, np.broadcast_to(0, others.shape), others)])
    worst = [_worst(demand, machine, legs) for legs in ways]
    place = max(range(len(ways)), key=lambda number: worst[number][0])
    kernel, legs = worst[place][1], ways[place]
    cycles, stalls = _one(demand, machine, legs, kernel)
    savings = {
        resource: float(cycles - _one(demand, better, legs, kernel)[0])
        for resource, better in machine.bettered()
    }
    return int(cycles), stalls, savings


def least_cycles(demand: Demand, machine: BoundMachine) -> float:
    """Return the cycles of ``closed_form`` for an iteration that is not repeated, as a float."""
    return _worst(demand, machine, _once(demand))[0]


def _once(demand: Demand) -> list[_Leg]:
    """Return what leaves before each kernel, and returns after it, in an iteration by itself."""
    before = np.cumsum(demand.cycles) - demand.cycles
    early, late = _unused(demand)
    return [
        _Leg(False, True, early, before),
        _Leg(True, False, late, demand.ideal_cycles - before - demand.cycles),
    ]


def _worst(demand: Demand, machine: BoundMachine, legs: Sequence[_Leg]) -> tuple[float, int]:
    """Return the highest bound of all kernels, and the first kernel that has it."""
    highest, kernel = 0.0, 0
    for first in range(0, len(demand.cycles), _KERNELS_AT_ONCE):
        part = slice(first, first + _KERNELS_AT_ONCE)
        excess = demand.live_bytes[part] - machine.room_bytes
        total = demand.cycles[part].astype(np.float64)
        for leg in legs:
            sizes = np.maximum(0, excess - leg.spared[part])
            longest = leg.cover[part].astype(np.float64)
            for curve in curves(machine, inward=leg.inward, outward=leg.outward):
                np.maximum(longest, curve.cycles_of_all(sizes), out=longest)
            total += longest
        place = int(total.argmax())
        if total[place] > highest:
            highest, kernel = float(total[place]), first + place
    return highest, kernel


def _one(
    demand: Demand, machine: BoundMachine, legs: Sequence[_Leg], kernel: int
) -> tuple[Fraction, dict[str, float]]:
    """Return the bound of one kernel, exactly, and its waiting by resource."""
    excess = int(demand.live_bytes[kernel]) - machine.room_bytes
    cycles = Fraction(int(demand.cycles[kernel]))
    stalls: dict[str, float] = {}
    for leg in legs:
        size_bytes = max(0, excess - int(leg.spared[kernel]))
        found = curves(machine, inward=leg.inward, outward=leg.outward)
        times = {curve.resource: curve.cycles(size_bytes) for curve in found}
        resource = max(times, key=lambda name: times[name], default="")
        longest, covered = times.get(resource, Fraction(0)), Fraction(int(leg.cover[kernel]))
        cycles += max(longest, covered)
        if longest > covered:
            stalls[resource] = stalls.get(resource, 0.0) + float(longest - covered)
    return cycles, stalls


def _unused(demand: Demand) -> tuple[Integers, Integers]:
    """Return for every kernel the bytes that need not leave before it, and not return after it.

    The iteration uses them only later, or they are frozen; it uses them only earlier.
    """
    trace, kernels = demand.trace, len(demand.cycles)
    later, earlier = np.zeros(kernels, dtype=np.int64), np.zeros(kernels + 1, dtype=np.int64)
    later[0] = demand.lasting_bytes
    for tensor in compress(count(), trace.lasting):
        if uses := trace.uses[tensor]:
            earlier[uses[-1] + 1] += demand.sizes[tensor]
            if tensor not in trace.frozen:
                later[uses[0]] -= demand.sizes[tensor]
    return np.cumsum(later), np.cumsum(earlier[:-1])
