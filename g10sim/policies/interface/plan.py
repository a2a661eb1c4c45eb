"""Migration plans: which moves happen before which kernel, and how two plans differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from g10sim.grouping import grouped
from g10sim.policies.interface.contract import Move
from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Planned:
    """A move at the start of ``kernel``, or ``delay_cycles`` later.

    ``kernel`` equal to the number of kernels means the start of the next iteration, before its own moves. A
    delayed move is dropped once a kernel that uses one of its tensors has started: it is then too late.
    """

    kernel: int
    move: Move
    delay_cycles: int = 0

    def flaw(self, trace: Trace | None, tiers: Collection[str] | None) -> str | None:
        """Say what of it does not fit the trace and the tiers of a system, as far as they are known."""
        for name in ("kernel", "delay_cycles"):
            if type(getattr(self, name)) is not int:
                return f"found {name} {getattr(self, name)!r}; allowed: an int"
        last = self.kernel if trace is None else len(trace.kernels)
        if not 0 <= self.kernel <= last:
            end = " or more" if trace is None else f" to {last} (the trace has {last} kernels)"
            return f"found kernel {self.kernel}; allowed: 0{end}"
        if self.delay_cycles < 0:
            return f"found delay_cycles {self.delay_cycles}; allowed: 0 or more"
        if self.delay_cycles and not self.move.may_be_delayed:
            return f"found delay_cycles {self.delay_cycles} of move '{self.move.name}'; allowed: 0"
        return self.move.flaw(trace, tiers)


@dataclass(frozen=True)
class MigrationPlan:
    """Moves in issue order (kernels ascending; within a kernel in this order)."""

    moves: tuple[Planned, ...]
    planner: str = ""

    @classmethod
    def ordered(cls, moves: Iterable[Planned], planner: str = "") -> MigrationPlan:
        """Build a plan from moves in any order of kernels; the order within a kernel is kept.

        Raises TypeError for what is no planned move.
        """
        given = tuple(moves)
        other = [planned for planned in given if not isinstance(planned, Planned)]
        if other:
            raise TypeError(f"found {other[0]!r}; allowed: Planned(kernel, move)")
        return cls(tuple(sorted(given, key=lambda planned: planned.kernel)), planner)

    def with_ids(self, ids: Sequence[int]) -> MigrationPlan:
        """Return the plan with ``ids[tensor]`` for every tensor; raises PolicyError as moves do."""
        moves = (replace(entry, move=entry.move.with_ids(ids)) for entry in self.moves)
        return replace(self, moves=tuple(moves))

    def tensors(self, *kinds: type[Move]) -> set[int]:
        """Return the tensors of all moves, or of those of some kinds."""
        chosen = (planned.move for planned in self.moves if isinstance(planned.move, kinds or Move))
        return {tensor for move in chosen for tensor in move.subjects()}


@dataclass(frozen=True)
class PlanComparison:
    """Moves of two plans: in both at the same time, in both at another kernel or delay, in one only.

    ``same_order`` is True if the moves in both come in the same order, kernel by kernel.
    """

    same: tuple[Planned, ...]
    shifted: tuple[tuple[Planned, Planned], ...]
    only_first: tuple[Planned, ...]
    only_second: tuple[Planned, ...]
    same_order: bool


def compare_plans(first: MigrationPlan, second: MigrationPlan) -> PlanComparison:
    """Match the moves of two plans: those at the same time, then the others in order.

    Everything is listed in ascending order of kernels.
    """
    common = Counter(first.moves) & Counter(second.moves)
    same, rest_first = _split(first.moves, common)
    same_second, rest_second = _split(second.moves, common)
    waiting = grouped((planned.move, planned) for planned in reversed(rest_second))
    shifted, only_first = [], []
    for planned in rest_first:
        if candidates := waiting.get(planned.move):
            shifted.append((planned, candidates.pop()))
        else:
            only_first.append(planned)
    only_second, _ = _split(rest_second, Counter(chain.from_iterable(waiting.values())))
    return PlanComparison(same, tuple(shifted), tuple(only_first), only_second, same == same_second)


def _split(moves: Iterable[Planned], wanted: Counter[Planned]) -> tuple[tuple[Planned, ...], ...]:
    """Return the wanted ones of some moves, as many as are wanted, and the others."""
    remaining = Counter(wanted)
    taken, left = [], []
    for planned in moves:
        if remaining[planned]:
            remaining[planned] -= 1
            taken.append(planned)
        else:
            left.append(planned)
    return tuple(taken), tuple(left)
