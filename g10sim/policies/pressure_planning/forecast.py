"""Memory that the kernels to come need, and when each tensor is needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from g10sim.analysis.bound.demand import Demand
from g10sim.policies.planning.machine import PlannedMachine
from g10sim.policies.pressure_planning.dropping import Dropped
from g10sim.trace.model import Trace


class Forecast:
    """An iteration of a job, after which the next one comes.

    ``sizes`` are bytes in whole pages, ``cycles`` the durations of kernels. ``shortage`` is what is alive at
    a kernel beyond GPU memory (negative: room), for three iterations. For each kernel, ``born`` are the
    tensors that need pages from then on, ``dead`` those that do not any more, ``dropped`` those to be dropped
    when it is about to start. ``sources`` are read by kernels that run again before it, which write
    ``scratch`` besides: results that nobody needs any more.
    """

    def __init__(
        self, trace: Trace, machine: PlannedMachine, demand: Demand, drops: Sequence[Dropped] = ()
    ) -> None:
        self.kernels = kernels = len(trace.kernels)
        self.sizes = np.array(machine.sizes(trace), dtype=np.int64)
        self.cycles = demand.cycles
        room = machine.gpu_bytes // machine.page_bytes * machine.page_bytes
        live = demand.live_bytes.copy()
        for drop in drops:
            live[drop.start : drop.end] -= self.sizes[drop.tensor]
        self.shortage = np.tile(live - room, 3)
        self.lasting = np.array(
            [tensor.persistent and bool(trace.uses[tensor.id]) for tensor in trace.tensors]
        )
        self.never = 3 * kernels - 1
        self._uses = [uses[: bisect_left(uses, trace.deaths[i])] for i, uses in enumerate(trace.uses)]
        self.born, self.dropped, self.sources, self.scratch = (
            [list[int]() for _ in range(kernels)] for _ in range(4)
        )
        self.dead = [list[int]() for _ in range(kernels + 1)]
        for tensor in trace.tensors:
            if not tensor.persistent and trace.uses[tensor.id]:
                self.born[trace.births[tensor.id]].append(tensor.id)
                self.dead[trace.deaths[tensor.id]].append(tensor.id)

        for drop in drops:
            self._drop(trace, drop)

    def _drop(self, trace: Trace, drop: Dropped) -> None:
        """Note a tensor that is computed again, and what its producer needs for it."""
        self.dropped[drop.start].append(drop.tensor)
        self.born[drop.end].append(drop.tensor)
        for source in drop.producer.inputs:
            self.sources[drop.end].append(source)
            self._uses[source] = tuple(sorted({*self._uses[source], drop.end}))
        for result in drop.producer.outputs:
            if trace.deaths[result] <= drop.end and result not in trace.kernels[drop.end].tensors:
                self.scratch[drop.end].append(result)

    def next_use(self, tensor: int, kernel: int) -> int:
        """Return the first kernel from ``kernel`` on that needs a tensor's contents.

        Kernels of the next iteration count on; ``never`` if none does.
        """
        uses: Sequence[int] = self._uses[tensor]
        place = bisect_left(uses, kernel)
        if place < len(uses):
            return uses[place]
        return uses[0] + self.kernels if uses and self.lasting[tensor] else self.never
