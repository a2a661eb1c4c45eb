"""What can be chosen about planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Method: TypeAlias = Literal["paced", "published"]


@dataclass(frozen=True, slots=True)
class PlanningParameters:
    """Parameters of the planner; the defaults are the paper's where it has the parameter.

    ``method`` is ``paced`` (see :mod:`.paced`) or ``published``, the published simulator's planner with
    its peculiarities (see :mod:`.published`). ``safety_margin`` is how many times the transfer time an
    inactive period must last (published simulator: 2.5). ``memory_target`` is the share of GPU memory that
    estimated occupancy may reach (published simulator: 0.99). ``eager_prefetch`` moves prefetches into
    memory that is free earlier (G10 paper, section 4.4). ``pacing_rounds`` is how often the paced method
    plans again with the stalls that it then expects.

    ``tensor_hints`` adds the moves that allocate tensors before their birth and free them at their death;
    designs whose machine does both by itself leave them out. ``memory_factor`` multiplies the target, and
    with the paced method GPU memory too. ``demand_evictions`` adds evictions without prefetch where the
    initial estimate is highest (see :func:`.demand.demand_evictions`); both serve the direct-storage
    designs.
    """

    method: Method = "paced"
    safety_margin: float = 2.5
    memory_target: float = 0.99
    eager_prefetch: bool = True
    pacing_rounds: int = 5
    tensor_hints: bool = True
    memory_factor: float = 1.0
    demand_evictions: bool = False

    def __post_init__(self) -> None:
        """Check values. Raises ValueError naming parameter, value and what is allowed."""
        if self.method not in ("paced", "published"):
            raise ValueError(f"method: found {self.method!r}; allowed: 'paced' or 'published'")
        self._check_number("safety_margin", self.safety_margin, 1.0, 1000.0)
        self._check_number("memory_target", self.memory_target, 0.01, 1.0)
        self._check_number("memory_factor", self.memory_factor, 0.01, 1000.0)
        for name in ("eager_prefetch", "tensor_hints", "demand_evictions"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: found {getattr(self, name)!r}; allowed: true or false")
        rounds = self.pacing_rounds
        if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= 100:
            raise ValueError(f"pacing_rounds: found {rounds!r}; allowed: a whole number from 1 to 100")

    @staticmethod
    def _check_number(name: str, value: object, least: float, most: float) -> None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not least <= value <= most:  # type: ignore[operator]
            raise ValueError(f"{name}: found {value!r}; allowed: a number from {least:g} to {most:g}")
