"""The ladder of designs, and the search by trial for the fastest plan that its ingredients make up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from g10sim.policies.planning.limit import TimeLimit

Step = Literal["K0", "K1", "K2", "K3", "K4"]
Offload = Literal["none", "conv", "contention_aware"]
Arbitration = Literal["machine", "fair", "first_come", "deadline"]
Prefetching = Literal["window", "planned"]


@dataclass(frozen=True)
class Plan:
    """Ingredients: offloading layers, joins at layer ends, service of links, prefetching.

    ``headroom`` is the share of memory that the offload set leaves free.
    """

    offload: Offload
    layer_end_join: bool
    arbitration: Arbitration
    prefetch: Prefetching
    headroom: float = 0.0


LADDER: dict[Step, Plan] = {
    "K0": Plan("none", False, "fair", "window"),
    "K1": Plan("conv", True, "fair", "window"),
    "K2": Plan("conv", False, "fair", "window"),
    "K3": Plan("contention_aware", False, "deadline", "window"),
    "K4": Plan("contention_aware", False, "deadline", "planned"),
}
CHOSEN_BY_TRIAL: tuple[Step, ...] = ("K3", "K4")
"""Steps that are free to offload what they need, so that memory in pieces does not stop them."""


Change = Mapping[str, object]

HEADROOMS = (0.0, 0.05, 0.1, 0.2)
_BELOW: Mapping[Step, tuple[Step, ...]] = {"K3": ("K2", "K1"), "K4": ("K3",)}
_GOOD_ENOUGH = 0.995
_SETS = (*(("contention_aware", headroom) for headroom in HEADROOMS), ("conv", 0.0))
_JOINED: tuple[Change, ...] = tuple(
    {"offload": offload, "headroom": headroom, "layer_end_join": join}
    for join in (False, True)
    for offload, headroom in _SETS
)
_ARBITRATIONS: tuple[Change, ...] = ({"arbitration": "fair"}, {"arbitration": "deadline"})
_PREFETCHES: tuple[Change, ...] = ({"prefetch": "window"}, {"prefetch": "planned"})
_EXCHANGES: Mapping[Step, tuple[tuple[Change, ...], ...]] = {
    "K3": (_ARBITRATIONS, _JOINED),
    "K4": (_ARBITRATIONS, _PREFETCHES, _JOINED),
}


class Search:
    """Looks for the fastest plan of a step.

    A step starts from its own ingredients at several headrooms and from what is found for the steps below
    it, so that it is never slower than these. From the fastest one on, one ingredient at a time is exchanged
    for what the step and those below it have, until no exchange is faster. Of equals the first one stays, and
    a plan that hardly waits ends the search. What is ``given`` is never exchanged.

    ``speed`` tries a plan out: ideal over actual time, 0 when it cannot be run. It is given a speed to beat,
    and may answer with less than that where the truth is even less. Of plans with the same ``key`` one is
    tried. No other is tried after ``trials`` trials of plans that can be run, or when ``time`` is over.
    """

    def __init__(
        self,
        speed: Callable[[Plan, float], float],
        given: Change,
        key: Callable[[Plan], Hashable] = lambda plan: plan,
        trials: float = inf,
        time: TimeLimit | None = None,
    ) -> None:
        self._speed, self._given, self._key, self._left = speed, given, key, trials
        self._found: dict[Hashable, tuple[float, bool]] = {}
        """Speeds of plans, and whether each is sure: one that did not beat another may be less."""
        self._time = time or TimeLimit()

    @property
    def trials(self) -> int:
        """Plans that were tried."""
        return len(self._found)

    def best(self, step: Step) -> Plan:
        """Return the fastest plan that is found for a step."""
        plan = self._fastest(self._starts(step))
        return self._improved(plan, _EXCHANGES[step]) if step in CHOSEN_BY_TRIAL else plan

    def _starts(self, step: Step) -> Iterator[Plan]:
        for headroom in HEADROOMS:
            yield self._plan(step, headroom)
        for below in _BELOW.get(step, ()):
            yield self.best(below) if below in CHOSEN_BY_TRIAL else self._plan(below, 0.0)

    def _plan(self, step: Step, headroom: float) -> Plan:
        return replace(LADDER[step], headroom=headroom, **self._given)  # type: ignore[arg-type]

    def _fastest(self, plans: Iterable[Plan]) -> Plan:
        best: Plan | None = None
        fastest = 0.0
        for plan in plans:
            speed = self._tried(plan, fastest)
            if best is None or speed > fastest:
                best, fastest = plan, speed
            if fastest >= _GOOD_ENOUGH:
                break
        assert best is not None
        return best

    def _improved(self, plan: Plan, exchanges: Sequence[Sequence[Change]]) -> Plan:
        before = None
        while plan != before and self._tried(plan) < _GOOD_ENOUGH:
            before = plan
            for changes in exchanges:
                wanted = [{**change, **self._given} for change in changes]
                plan = self._fastest([plan, *(replace(plan, **one) for one in wanted)])  # type: ignore[arg-type]
        return plan

    def _tried(self, plan: Plan, to_beat: float = 0.0) -> float:
        key = self._key(plan)
        is_new = key not in self._found
        known, is_sure = self._found.get(key, (inf, False))
        if is_sure or known <= to_beat:
            return known
        if (is_new and self._left <= 0) or (self._found and self._time.is_over()):
            return 0.0
        speed = self._speed(plan, to_beat)
        self._found[key] = speed, speed >= to_beat
        self._left -= is_new and speed > 0
        return speed
