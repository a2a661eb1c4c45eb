"""Victims on a full GPU: the least recent pages, unless the policy names others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import PolicyError
from g10sim.hardware.memory import Residency
from g10sim.hardware.recency import Run
from g10sim.policies.base import Policy
from g10sim.trace.model import Trace


class RecencyVictims:
    """Oldest pages first; prefetches spare protected tensors, and the running kernel's where pinned."""

    def __init__(self, trace: Trace, policy: Policy, behaviour: BehaviourSpec) -> None:
        self._births, self._deaths = trace.births, trace.deaths
        self._persistent = tuple(tensor.persistent for tensor in trace.tensors)
        self._pinned = behaviour.running_tensors == "pinned"
        self._drops_dead = policy.requirements.drops_dead_tensors or behaviour.dead_tensors == "released"
        self.kernel = 0

    def restart(self) -> None:
        """Forget earlier choices: a kernel starts."""

    def choose(self, memory: Residency, demanded: bool) -> Run | None:
        """Return the run that makes room next, or None."""
        if not demanded and memory.protected:
            return memory.recency.scan_outside(memory.protected)
        run = memory.recency.oldest()
        if self._pinned and run is not None and run.tensor in memory.needed:
            return memory.recency.oldest_outside(memory.needed)
        return run

    def is_worthless(self, tensor: int) -> bool:
        """Tell whether a tensor is dead and its pages are dropped instead of written out."""
        if not self._drops_dead or self._persistent[tensor]:
            return False
        return not self._births[tensor] <= self.kernel < self._deaths[tensor]


class NominatedVictims(RecencyVictims):
    """Pages of the tensors that a policy names, in its order; recency once it names none."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        behaviour: BehaviourSpec,
        nominate: Callable[[], Iterable[int]],
    ) -> None:
        super().__init__(trace, policy, behaviour)
        self._nominate = nominate
        self._policy = policy.name
        self._names = tuple(tensor.name for tensor in trace.tensors)
        self._waiting: list[int] = []
        self._current: Run | None = None

    def restart(self) -> None:
        """Ask the policy again when the next victim is needed."""
        self._waiting = []
        self._current = None

    def choose(self, memory: Residency, demanded: bool) -> Run | None:
        """Return the run that makes room next, or None."""
        for attempt in range(2):
            run = self._next(memory)
            if run is not None:
                return run
            if attempt == 0:
                self._waiting = list(self._nominate())[::-1]
        return super().choose(memory, demanded)

    def _next(self, memory: Residency) -> Run | None:
        if self._current is not None and self._current.count:
            return self._current
        while self._waiting:
            tensor = self._waiting.pop()
            if not isinstance(tensor, int) or not 0 <= tensor < len(self._names):
                raise PolicyError(
                    f"policy '{self._policy}', kernel {self.kernel}: victim {tensor!r} is no tensor of the "
                    f"trace; allowed: 0 to {len(self._names) - 1}"
                )
            if tensor in memory.needed:
                raise PolicyError(
                    f"policy '{self._policy}', kernel {self.kernel}: victim '{self._names[tensor]}' is in "
                    "the running kernel's working set; allowed: tensors that it does not need"
                )
            self._current = memory.recency.oldest_of(tensor)
            if self._current is not None:
                return self._current
        return None
