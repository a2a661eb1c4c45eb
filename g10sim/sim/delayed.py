"""Planned moves that are due some time after their kernel has started."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from simpy.events import Event

from g10sim.hardware.memory import GpuMemory
from g10sim.policies.plan import PlannedMove
from g10sim.records import Location
from g10sim.sim.machine import Machine
from g10sim.sim.migrator import Migrator
from g10sim.sim.recomputation import Recomputation
from g10sim.trace.model import Trace


class DelayedMoves:
    """Keeps a job's planned moves until they are due.

    Where kernels take other times than planned, a move may be due too late: it is given up once a kernel has
    started that uses the tensor, because then what the move was to prepare is over.
    """

    def __init__(
        self,
        trace: Trace,
        memory: GpuMemory,
        migrator: Migrator,
        recomputation: Recomputation,
        machine: Machine,
    ) -> None:
        self._uses, self._kernels = trace.uses, len(trace.kernels)
        self._memory, self._migrator, self._machine = memory, migrator, machine
        self._recomputation = recomputation
        self._position = 0
        self._is_open = True

    def hold(self, iteration: int, kernel: int, moves: Iterable[PlannedMove]) -> list[PlannedMove]:
        """Keep the moves that are due later than at the start of this kernel; return the others."""
        self._position = iteration * self._kernels + kernel
        due = []
        for move in moves:
            if move.delay_cycles:
                self._set_timer(move, self._position)
            else:
                due.append(move)
        return due

    def close(self) -> None:
        """Give up what is not due yet: the job ends."""
        self._is_open = False

    def _set_timer(self, move: PlannedMove, since: int) -> None:
        timer = self._machine.env.timeout(move.delay_cycles)

        def ring(_: Event) -> None:
            if self._is_open and not self._is_void(move, since):
                self._issue(move)

        timer.callbacks.append(ring)

    def _issue(self, move: PlannedMove) -> None:
        machine = self._machine
        machine.transfers.advance(machine.now)
        self._migrator.issue(self._position % self._kernels, (move,))
        self._memory.settle()
        machine.transfers.changed()
        machine.clockwork.rearm()

    def _is_void(self, move: PlannedMove, since: int) -> bool:
        if self._uses_until(move.tensor, self._position) > self._uses_until(move.tensor, since):
            return True
        if move.target is Location.GPU:
            return move.tensor in self._recomputation.dropped
        return move.tensor in self._memory.needed

    def _uses_until(self, tensor: int, position: int) -> int:
        """Count the kernels that used a tensor, up to a kernel counted on over all iterations."""
        iteration, kernel = divmod(position, self._kernels)
        return iteration * len(self._uses[tensor]) + bisect_right(self._uses[tensor], kernel)
