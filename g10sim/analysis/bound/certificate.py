"""Certificates: a bound from any prices whatever, in integers, so that no solver has to be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from g10sim.analysis.bound.demand import Checkpoints
from g10sim.analysis.bound.machine import BoundMachine, crossings
from g10sim.analysis.timeline import Floats, Integers

_HIGHEST = 1e6
_MOST_BITS = 36
_RERUN_BITS = 20
_WORD = 60
_FORBIDDEN = 1 << 60
_UNREACHED = 1 << 61


@dataclass(frozen=True)
class Prices:
    """Multipliers of the limits, in cycles per byte; all of them at least 0.

    ``crossing[limit, interval]`` is the price of a byte that counts against a limit, ``space[state]`` what a
    byte that is away earns, ``storing[store, state]`` the price of a byte in a tier, and ``rerun[interval]``
    that of a cycle of rerun kernels (in cycles).
    """

    crossing: Floats
    space: Floats
    storing: Floats
    rerun: Floats


class _Whole:
    """Prices in units of 2^-``bits`` cycles, so that no cycle of waiting pays for more than itself."""

    def __init__(self, prices: Prices, machine: BoundMachine, checkpoints: Checkpoints) -> None:
        self.machine, self.checkpoints = machine, checkpoints
        crossing, space, storing = map(_sane, (prices.crossing, prices.space, prices.storing))
        top = max(1.0, float(space.sum() + storing.sum() + 2 * crossing.sum()))
        self.bits = min(_MOST_BITS, _WORD - ceil(log2(top)) - 1)
        self.crossing, self.space, self.storing = map(self._rounded, (crossing, space, storing))
        rerun = np.minimum(1.0, _sane(prices.rerun)) * (1 << _RERUN_BITS)
        self.rerun: Integers = rerun.astype(np.int64)
        for interval, waits in enumerate(checkpoints.may_stall):
            if waits:
                self._repair(interval)

    def _rounded(self, values: Floats) -> Integers:
        return np.rint(values * 2.0**self.bits).astype(np.int64)

    def _repair(self, interval: int) -> None:
        """Scale the prices of an interval down until a cycle of waiting pays for no more than itself."""
        whole = self.machine.clock_hz << self.bits
        rates = [limit.rate for limit in self.machine.limits]
        column = [int(price) for price in self.crossing[:, interval]]
        worth = sum(price * rate for price, rate in zip(column, rates, strict=True))
        rerun = int(self.rerun[interval])
        total = worth + -(-rerun * whole >> _RERUN_BITS)
        if total > whole:
            column = [price * whole // total for price in column]
            worth = sum(price * rate for price, rate in zip(column, rates, strict=True))
            self.crossing[:, interval] = column
            self.rerun[interval] = min(rerun, ((whole - worth) << _RERUN_BITS) // whole)


def _sane(values: Floats) -> Floats:
    """Return prices that are numbers, and neither negative nor without end."""
    return np.clip(np.nan_to_num(values), 0.0, _HIGHEST)


def certified_stall(prices: Prices, machine: BoundMachine, checkpoints: Checkpoints) -> int:
    """Return the cycles of stall that no run can avoid, as far as these prices prove it; rounded down.

    A cycle of waiting costs 1 and pays for what can cross meanwhile; what crosses during computation is free
    but scarce. Every byte then goes the cheapest way through the states that it may be away in
    (``_cheapest``), and the sum is a bound for any prices: Lagrange's.
    """
    whole = _Whole(prices, machine, checkpoints)
    clock, bits = machine.clock_hz, whole.bits
    total = 0  # in 2^-bits cycles times hertz
    for number, limit in enumerate(machine.limits):
        row = whole.crossing[number].tolist()
        total -= limit.rate * sum(map(int.__mul__, row, checkpoints.cycles))
        before = row[-1:] if checkpoints.steady else [0]
        rises = (after - earlier for earlier, after in zip([*before, *row[:-1]], row, strict=True))
        total -= clock * machine.carried_bytes(number) * sum(rise for rise in rises if rise > 0)
    for price, live in zip(whole.space.tolist(), checkpoints.live_bytes, strict=True):
        total += clock * price * (live - machine.room_bytes)
    for store, row in zip(machine.stores, whole.storing.tolist(), strict=True):
        total -= clock * sum(row) * machine.store_bytes(store)
    total += clock * _ways(whole)
    return max(0, total // (clock << bits))


def _ways(whole: _Whole) -> int:
    """Return what all bytes cost that may be away, each on its cheapest way; at most 0."""
    tables: dict[tuple[int | None, bool], tuple[Integers, Integers]] = {}
    total = 0
    for group in whole.checkpoints.groups:
        price = None
        if group.price is not None:
            cycles, size_bytes = group.price
            price = min((cycles << whole.bits) // size_bytes, 1 << (_WORD - _RERUN_BITS - 1))
        key = price, group.frozen
        if key not in tables:
            tables[key] = _cheapest(whole, price, frozen=group.frozen)
        returning, staying = tables[key]
        row = group.first if group.leaves else -1
        total += group.size_bytes * int((returning if group.returns else staying)[row, group.last])
    return total


def _cheapest(whole: _Whole, rerun: int | None, *, frozen: bool) -> tuple[Integers, Integers]:
    """Return the price of the cheapest way of a byte from every first to every last state (rows, columns).

    The last row is that of bytes that are away from the beginning. Bytes of the first array return to the
    GPU, those of the second stay where they are. Dynamic programming over the states; place 0 is the GPU.
    """
    inward, outward = _crossing_prices(whole, rerun)
    if frozen:
        outward = np.zeros_like(outward)
    checkpoints, stores = whole.checkpoints, len(whole.machine.stores)
    states = len(checkpoints.states)
    laps = 2 if checkpoints.steady else 1
    places = stores + 1 + (rerun is not None)
    kept = np.zeros((states, places), dtype=np.int64)
    kept[:, 1:] -= whole.space[:, None]
    kept[:, 1 : stores + 1] += whole.storing.T
    cost = np.full((states + 1, places), _UNREACHED, dtype=np.int64)
    cost[:, 0] = 0
    cost[-1] = 0
    returning = np.zeros((states + 1, laps * states), dtype=np.int64)
    staying = np.zeros_like(returning)
    for position in range(laps * states):
        state = position % states
        begun = np.append(np.arange(states) <= position, position > 0)
        onto_gpu = (cost + inward[state]).min(axis=1)
        moved = np.minimum(cost, onto_gpu[:, None] + outward[state])
        cost = np.where(begun[:, None], moved, cost)
        cost = np.where((begun | (np.arange(states + 1) == states))[:, None], cost + kept[state], cost)
        returning[:, position] = (cost + inward[checkpoints.after(state)]).min(axis=1)
        staying[:, position] = cost.min(axis=1)
    return returning, staying


def _crossing_prices(whole: _Whole, rerun: int | None) -> tuple[Integers, Integers]:
    """Return the price of a move onto the GPU and off it, for every interval (rows) and place (columns).

    No kernel runs again while another one computes.
    """
    stores, limits = whole.machine.stores, len(whole.machine.limits)
    none = np.zeros(whole.crossing.shape[1], dtype=np.int64)
    ways = [
        [none, *(np.array(crossings(way, limits), dtype=np.int64) @ whole.crossing for way in side)]
        for side in ([store.inward for store in stores], [store.outward for store in stores])
    ]
    inward, outward = (np.stack(side, axis=1) for side in ways)
    if rerun is None:
        return inward, outward
    again = np.array([int(share) * rerun >> _RERUN_BITS for share in whole.rerun], dtype=np.int64)
    again[~np.array(whole.checkpoints.may_stall)] = _FORBIDDEN
    return np.column_stack([inward, again]), np.column_stack([outward, none])
