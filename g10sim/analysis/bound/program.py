"""The linear program of a bound: the least stall with which bytes can be away where memory is too small."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

from g10sim.analysis.bound.certificate import Prices
from g10sim.analysis.bound.demand import Checkpoints, PeriodGroup
from g10sim.analysis.bound.machine import BoundMachine, crossings
from g10sim.analysis.timeline import Floats, Integers

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Solution:
    """Optimum of the program as the solver reports it: the stall of every interval, in cycles, and prices."""

    stall_cycles: Floats
    prices: Prices


class _Rows:
    """Rows of a sparse matrix, put together from parts."""

    def __init__(self) -> None:
        self._parts: list[tuple[Integers, Integers, Floats]] = []

    def add(self, rows: Integers, columns: Integers, value: float) -> None:
        """Add one value in all of these positions."""
        self._parts.append((rows, columns, np.full(len(rows), value)))

    def matrix(self, rows: int, columns: int) -> csr_array:
        """Return the matrix."""
        if not self._parts:
            return csr_array((rows, columns))
        *places, values = map(np.concatenate, zip(*self._parts, strict=True))
        return csr_array(coo_array((values, tuple(places)), shape=(rows, columns)))


class LinearProgram:
    """Rows and columns of the program.

    Variables are the stall of every interval; for every group, place and state the bytes away there; the
    bytes that leave for and return from a place between two states; and the parts of pages that are carried
    from one interval to the next. Bytes count in units of the most bytes alive, time in the time that these
    take over the fastest limit.
    """

    def __init__(self, machine: BoundMachine, checkpoints: Checkpoints) -> None:
        self._machine, self._checkpoints = machine, checkpoints
        self._bytes = max(1.0, float(checkpoints.demand.peak_bytes))
        rate = max((limit.rate for limit in machine.limits), default=1) / machine.clock_hz
        self._cycles = self._bytes / rate
        self._states, self._intervals = len(checkpoints.states), len(checkpoints.cycles)
        self._variables = self._intervals
        self._upper: list[Floats] = [np.where(checkpoints.may_stall, np.inf, 0.0)]
        self._balance, self._balances = _Rows(), 0
        self._whole, self._whole_limits = _Rows(), list[Floats]()
        self._wholes = 0
        self._away, self._stored = _Rows(), [_Rows() for _ in machine.stores]
        self._crossed = [_Rows() for _ in machine.limits]
        self._rerun = _Rows()
        for number, rows in enumerate(self._crossed):
            self._carry(rows, machine.carried_bytes(number) / self._bytes)
        for group in checkpoints.groups:
            self._add(group)

    def solve(self) -> Solution | None:
        """Return an optimum, or None if the solver finds none."""
        machine, checkpoints = self._machine, self._checkpoints
        every, variables = np.arange(self._intervals), self._variables
        spare = machine.room_bytes - np.array(checkpoints.live_bytes)
        matrices = [self._away.matrix(self._states, variables) * -1.0]
        sides = [spare / self._bytes]
        for store, rows in zip(machine.stores, self._stored, strict=True):
            matrices.append(rows.matrix(self._states, variables))
            sides.append(np.full(self._states, machine.store_bytes(store) / self._bytes))
        for limit, rows in zip(machine.limits, self._crossed, strict=True):
            rate = limit.rate / machine.clock_hz / self._bytes
            rows.add(every, every, -rate * self._cycles)
            matrices.append(rows.matrix(self._intervals, variables))
            sides.append(rate * np.array(checkpoints.cycles))
        self._rerun.add(every, every, -1.0)
        matrices.append(self._rerun.matrix(self._intervals, variables))
        sides.append(np.zeros(self._intervals))
        return self._optimum(matrices, sides)

    def _optimum(self, matrices: list[csr_array], sides: list[Floats]) -> Solution | None:
        """Solve for these rows and those of the groups."""
        cost = np.zeros(self._variables)
        cost[: self._intervals] = 1.0
        found = linprog(
            cost,
            A_ub=vstack([*matrices, self._whole.matrix(self._wholes, self._variables)], format="csr"),
            b_ub=np.concatenate([*sides, *self._whole_limits]),
            A_eq=self._balance.matrix(self._balances, self._variables),
            b_eq=np.zeros(self._balances),
            bounds=np.column_stack([np.zeros(self._variables), np.concatenate(self._upper)]),
            method="highs-ds",
            options={"primal_feasibility_tolerance": _TOLERANCE, "dual_feasibility_tolerance": _TOLERANCE},
        )
        if not found.success:
            return None
        duals = np.split(-found.ineqlin.marginals, np.cumsum([len(side) for side in sides]))
        unit, stores = self._cycles / self._bytes, len(self._machine.stores)
        prices = Prices(
            crossing=np.array(duals[1 + stores : len(sides) - 1]).reshape(-1, self._intervals) * unit,
            space=duals[0] * unit,
            storing=np.array(duals[1 : 1 + stores]) * unit,
            rerun=duals[len(sides) - 1],
        )
        return Solution(found.x[: self._intervals] * self._cycles, prices)

    def _add(self, group: PeriodGroup) -> None:
        """Add the variables and rows of a group."""
        positions = np.arange(group.first, group.last + 1)
        states = positions % self._states
        before = positions % self._intervals
        after = self._checkpoints.after(int(states[-1]))
        size = group.size_bytes / self._bytes
        columns = []
        for number, store in enumerate(self._machine.stores):
            y, out, back = self._place(len(states), size)
            columns.append(y)
            self._stored[number].add(states, y, 1.0)
            self._cross(store.inward, before[1:], back)
            if not group.frozen:
                self._cross(store.outward, before[1:], out)
            if group.leaves and not group.frozen:
                self._cross(store.outward, before[:1], y[:1])
            if group.returns:
                self._cross(store.inward, np.array([after]), y[-1:])
        if group.price is not None:
            y, _, back = self._place(len(states), size)
            columns.append(y)
            price = group.price[0] / group.price[1] * self._bytes / self._cycles
            self._rerun.add(before[1:], back, price)
            self._rerun.add(np.array([after]), y[-1:], price)
        for y in columns:
            self._away.add(states, y, 1.0)
        if len(columns) > 1:
            rows = self._wholes + np.arange(len(states))
            for y in columns:
                self._whole.add(rows, y, 1.0)
            self._wholes += len(states)
            self._whole_limits.append(np.full(len(states), size))

    def _place(self, states: int, size: float) -> tuple[Integers, Integers, Integers]:
        """Add variables of one place: bytes there in every state, and leaving and returning between them."""
        y = self._variables + np.arange(states)
        out = y[-1] + 1 + np.arange(states - 1)
        back = out + states - 1
        self._variables += 3 * states - 2
        self._upper.append(np.full(3 * states - 2, size))
        rows = self._balances + np.arange(states - 1)
        for columns, sign in ((y[1:], 1.0), (y[:-1], -1.0), (out, -1.0), (back, 1.0)):
            self._balance.add(rows, columns, sign)
        self._balances += states - 1
        return y, out, back

    def _carry(self, rows: _Rows, most: float) -> None:
        """Add the bytes that have counted against a limit when an interval begins and arrive later."""
        every = np.arange(self._intervals)
        begun = self._variables + every
        self._variables += self._intervals
        self._upper.append(np.full(self._intervals, most))
        rows.add(every, begun, -1.0)
        if self._checkpoints.steady:
            rows.add(every, np.roll(begun, -1), 1.0)
        else:
            rows.add(every[:-1], begun[1:], 1.0)

    def _cross(self, way: tuple[int, ...], intervals: Integers, columns: Integers) -> None:
        for number, times in enumerate(crossings(way, len(self._crossed))):
            if times:
                self._crossed[number].add(intervals, columns, float(times))
