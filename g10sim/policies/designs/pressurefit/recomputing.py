"""Blocks of a model that are computed again, some evenly spread share of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.designs.pressure.dropping import chained
from g10sim.policies.designs.pressure.forecast import Dropped
from g10sim.policies.planning.channel import NEVER
from g10sim.trace.model import Phase, Trace


class Blocks:
    """Blocks of a model, and data of each that only its own backward pass reads and that can be made again.

    Kernel k belongs to task ``tasks[k]``. A block whose backward pass comes before the next forward pass is
    not one of them.
    """

    def __init__(self, trace: Trace, tasks: Sequence[int]) -> None:
        self._rules = Recomputability(trace, chains=True)
        self._drops = self._found(trace, tasks)

    def drops(self, share: float) -> tuple[Dropped, ...]:
        """Return what is dropped where a share of the blocks is computed again."""
        count, blocks = round(share * len(self._drops)), len(self._drops)
        chosen = [self._drops[(2 * place + 1) * blocks // (2 * count)] for place in range(count)]
        return chained(self._rules, [drop for block in chosen for drop in block])

    def _found(self, trace: Trace, numbers: Sequence[int]) -> list[list[Dropped]]:
        found = defaultdict[int, list[Dropped]](list)
        for tensor, uses in enumerate(trace.uses):
            tasks = [numbers[use] for use in uses]
            blocks = {trace.kernels[use].block for use in uses}
            is_own = len(blocks) == 1 and not trace.lasting[tensor] and tasks[0] < tasks[-1]
            if not is_own or trace.kernels[uses[0]].phase is not Phase.FORWARD:
                continue
            end = next(use for use, task in zip(uses, tasks, strict=True) if task > tasks[0])
            start = max(use for use in uses if use < end) + 1
            if start < end < trace.deaths[tensor] and not self._rules.problem(tensor, start):
                drop = Dropped(tensor, start, end, self._rules.chain(tensor, end))
                found[tasks[0]].append(drop)
        ends = {task: max(numbers[drop.end] for drop in drops) for task, drops in found.items()}
        following = pairwise((*sorted(found), NEVER))
        return [found[task] for task, later in following if later < ends[task]]
