"""Repeats the moves of an iteration once tensors lie where they did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.designs.pressure.steering import Steering
from g10sim.policies.interface import JobPolicy, Move, PlannedMachine, PolicyView

_DECIDED = 3
"""Iterations that are decided in any case: each finds tensors where the one before has left them."""
_ELSEWHERE = 0.03
"""Share of GPU memory up to which bytes may lie elsewhere than where the repeated iteration found them."""
_LOSS = 0.002
"""Share of its time by which an iteration may be slower than the one that it repeats."""
_TRIES = 2
"""Iterations that were slower than that, after which none is repeated."""


class Repeating(JobPolicy):
    """Decides the first iterations of a job, then repeats the last of them if the job ``is_alone``.

    Fresh decisions never settle: each iteration starts from where the one before has left tensors.
    What is repeated leaves them where it did before, so that the next iteration is the same. Where it is
    slower, decisions are made again, and those are repeated. Victims are named in any iteration.
    """

    def __init__(
        self,
        forecast: Forecast,
        machine: PlannedMachine,
        steering: Callable[[], Steering],
        *,
        is_alone: bool = True,
    ) -> None:
        self._forecast, self._new_steering, self._is_alone = forecast, steering, is_alone
        self._steering: Steering | None = steering()
        self._gpu_bytes = machine.gpu_bytes
        self._places = np.zeros(0, dtype=np.int64)
        self._starts: list[Sequence[Move]] = []
        self._ends: list[Sequence[Move]] = []
        self._decided = self._vain = self._cycles = self._began_at = 0

    def state(self, view: PolicyView) -> tuple[object, ...]:
        """Return what decides how the next iteration is decided, or repeated."""
        if self._steering is None:
            return self._vain, self._is_slower(view)
        return self._vain, min(self._decided, _DECIDED), self._steering.state(view)

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Return the moves of a kernel that is about to start."""
        if view.kernel == 0 and self._is_alone:
            self._begin_iteration(view)
        if self._steering is None:
            return self._starts[view.kernel]
        return self._noted(self._starts, self._steering.moves(view))

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Return the moves of a kernel that has computed."""
        if self._steering is None:
            return self._ends[view.kernel]
        return self._noted(self._ends, self._steering.waits(view))

    def choose_victims(self, view: PolicyView) -> Iterable[int]:
        """Return tensors for a full GPU to evict: those first that are needed last."""
        if self._steering is not None:
            return self._steering.victims(view)
        alive = self._forecast.alive_at(view.kernel)
        there = [tensor for tensor in alive if view.resident_bytes(tensor) and not view.is_needed(tensor)]
        return sorted(there, key=lambda tensor: -self._forecast.next_use(tensor, view.kernel))

    def _noted(self, found: list[Sequence[Move]], moves: Iterable[Move]) -> Sequence[Move]:
        """Return moves, and keep those of an iteration that may be repeated."""
        made = tuple(moves)
        if self._decided >= _DECIDED:
            found.append(made)
        return made

    def _begin_iteration(self, view: PolicyView) -> None:
        """Decide again, or repeat the last iteration that was decided."""
        is_slower, cycles = self._is_slower(view), view.now_cycles - self._began_at
        self._began_at = view.now_cycles
        if self._steering is None and not is_slower:
            return
        places = self._bytes_by_place(view) if self._decided >= _DECIDED - 1 else self._places
        if self._steering is None:
            self._vain += 1
            self._steering = self._new_steering()
        else:
            self._cycles = cycles
            if self._decided >= _DECIDED and self._vain < _TRIES:
                # What lies elsewhere is missing in one place and too much in another.
                elsewhere = int(np.abs(places - self._places).sum()) / 2
                if elsewhere <= _ELSEWHERE * self._gpu_bytes:
                    self._steering = None
                    return
        self._decided += 1
        self._places = places
        self._starts.clear()
        self._ends.clear()

    def _is_slower(self, view: PolicyView) -> bool:
        """Return whether the iteration that has ended took longer than the one that it repeated."""
        return view.now_cycles - self._began_at > (1 + _LOSS) * self._cycles

    def _bytes_by_place(self, view: PolicyView) -> Integers:
        """Return the bytes of each persistent tensor on the GPU and in each tier."""
        lasting = self._forecast.lasting
        found = [view.resident_bytes(tensor) for tensor in lasting]
        for tier in view.tiers:
            found += [view.bytes_in(tensor, tier) for tensor in lasting]
        return np.array(found, dtype=np.int64)
