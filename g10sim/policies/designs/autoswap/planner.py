"""From a trace to swaps, their moves and a pool: candidates, scores, selection, schedule, addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from g10sim.analysis.pools.operations import stays_of
from g10sim.analysis.pools.placement import Block, search_placement
from g10sim.analysis.timeline import Floats
from g10sim.policies.designs.autoswap.schedule import Schedule, stick_to_limit, without_overhead
from g10sim.policies.designs.autoswap.scores import (
    SINGLE_SCORES,
    best_combination,
    in_order,
    majority_vote,
    weighted_sum,
)
from g10sim.policies.designs.autoswap.timeline import (
    Swap,
    find_candidates,
    least_peak_bytes,
    select,
    timeline_of,
)
from g10sim.policies.interface import Evict, Fetch, MigrationPlan, Planned, PlannedTier
from g10sim.policies.planning.timeline import Absence
from g10sim.trace.model import Trace


@dataclass(frozen=True)
class SwappedPool:
    """For each tensor the addresses of its blocks, in the order in which an iteration allocates them."""

    addresses_bytes: tuple[tuple[int, ...], ...]
    footprint_bytes: int


def plan_swapped_pool(
    trace: Trace, swaps: Sequence[Swap], page_bytes: int, target_bytes: int = 0, rounds: int = 0
) -> SwappedPool:
    """Place all blocks of an iteration; a swapped tensor has one until it has left, and one from its return.

    Tensors that never leave lie at the bottom, all others above by size, best fit. Lifetimes are in
    kernels, and those of persistent tensors cross the border of the iteration. Swaps make the load flat, and
    packing harder: as long as the footprint is above the target, ``rounds`` rounds of local search follow.
    """
    absences = {swap.candidate.tensor: swap for swap in swaps}
    bottom = 0
    addresses: list[list[int]] = [[] for _ in trace.tensors]
    owners: list[int] = []
    blocks: list[Block] = []
    for tensor in trace.tensors:
        if tensor.persistent and tensor.id not in absences:
            addresses[tensor.id].append(bottom)
            bottom += -(-tensor.size_bytes // page_bytes) * page_bytes
            continue
        for start, end in _stays(trace, tensor.id, absences):
            owners.append(tensor.id)
            blocks.append(Block(start, end, tensor.size_bytes))
    target, period = target_bytes - bottom, len(trace.kernels)
    placement = search_placement(blocks, target, period=period, alignment_bytes=page_bytes, rounds=rounds)
    for tensor_id, offsets in zip(owners, placement.offsets, strict=True):
        addresses[tensor_id].append(bottom + offsets[0])
    return SwappedPool(tuple(map(tuple, addresses)), bottom + placement.footprint_bytes)


def _stays(trace: Trace, tensor: int, absences: Mapping[int, Swap]) -> list[tuple[int, int]]:
    """Ranges of kernels in which a tensor has memory, in the order of their starts."""
    swap = absences.get(tensor)
    if swap is None:
        return stays_of(trace, tensor)
    if trace.lasting[tensor]:
        return [(swap.back, swap.gone + len(trace.kernels))]
    (birth, death), *in_vain = stays_of(trace, tensor)
    return [(birth, swap.gone), (swap.back, death), *in_vain]


ScoreName: TypeAlias = Literal["combined", "doa", "aoa", "wdoa", "swdoa", "vote"]
Mode: TypeAlias = Literal["stick_to_limit", "no_overhead"]

SCORES: tuple[ScoreName, ...] = get_args(ScoreName)
MODES: tuple[Mode, ...] = get_args(Mode)

_LONGER_SELECTIONS = 16


@dataclass(frozen=True)
class SwapPlan:
    """The planner's decisions and the outcome that it expects.

    ``weights`` are those of the scores; ``least_peak_bytes`` is the load peak with all candidates away, were
    copies free; ``schedule`` holds the expected overhead and peak.
    """

    candidates: tuple[Absence, ...]
    weights: Mapping[str, float]
    least_peak_bytes: int
    schedule: Schedule


class SwapPlanner:
    """Plans the swaps of a trace whose sizes are whole pages.

    ``least_bytes`` is the smallest tensor that is swapped (the authors': 1 MiB), ``seed`` that of the search
    for the combined score.
    """

    def __init__(
        self,
        trace: Trace,
        clock_hz: int,
        copies: PlannedTier,
        *,
        mode: Mode = "stick_to_limit",
        least_bytes: int = 2**20,
        seed: int = 0,
    ) -> None:
        self.trace, self._copies, self._mode, self._seed = trace, copies, mode, seed
        self._timeline = timeline = timeline_of(trace, clock_hz)
        # Only an absence that is long enough for the first copy out makes later ones needless.
        self._candidates = tuple(
            replace(one, frozen=one.frozen and one.cycles(timeline) >= copies.both_cycles(one.size_bytes))
            for one in find_candidates(trace, timeline.peak, least_bytes)
        )

    def plan(
        self, limit_bytes: int, score: ScoreName = "swdoa", weights: Mapping[str, float] | None = None
    ) -> SwapPlan:
        """Plan to a limit; with ``weights`` found before, the combined score is not searched for.

        Where the limit is kept, the costs that orders are compared by are waits; without overhead, the load
        beyond the limit.
        """
        timeline, candidates, copies = self._timeline, self._candidates, self._copies

        def evaluate(scores: Floats) -> Schedule:
            return self._schedule(limit_bytes, in_order(scores))

        def cost(schedule: Schedule) -> float:
            excess = max(0, schedule.peak_bytes - limit_bytes)
            if self._mode == "no_overhead":
                return excess / timeline.peak_bytes
            return schedule.overhead_cycles / timeline.period

        if timeline.peak_bytes <= limit_bytes or not candidates:
            used: Mapping[str, float] = {}
            schedule = Schedule((), 0, 0, timeline.peak_bytes)
        elif score == "combined":
            scores: dict[str, Floats] = {
                name: found(timeline, candidates, copies) for name, found in SINGLE_SCORES.items()
            }
            if weights:
                used, schedule = weights, evaluate(weighted_sum(scores, weights))
            else:
                best = best_combination(scores, evaluate, cost, seed=self._seed)
                used, schedule = best.weights, best.outcome
        else:
            used = {score: 1.0}
            rank = majority_vote if score == "vote" else SINGLE_SCORES[score]
            schedule = evaluate(rank(timeline, candidates, copies))
        return SwapPlan(candidates, used, least_peak_bytes(timeline, candidates), schedule)

    def _schedule(self, limit_bytes: int, order: Sequence[int]) -> Schedule:
        """Schedule the first candidates of an order: as many as bring the load within the limit.

        Without overhead, copies leave less time to be away than the selection counts on: where that keeps the
        load above the limit, more candidates are tried, and the schedule with the least load is taken.
        """
        timeline, copies = self._timeline, self._copies
        chosen = select(timeline, self._candidates, order, limit_bytes)
        if self._mode == "stick_to_limit":
            return stick_to_limit(timeline, chosen, limit_bytes, copies)
        best = without_overhead(timeline, chosen, copies)
        lengths = np.linspace(len(chosen), len(order), _LONGER_SELECTIONS + 1).astype(int)[1:]
        for length in sorted(set(lengths.tolist()) - {len(chosen)}):
            if best.peak_bytes <= limit_bytes:
                break
            other = without_overhead(timeline, [self._candidates[one] for one in order[:length]], copies)
            best = min(best, other, key=lambda schedule: schedule.peak_bytes)
        return best


def plan_of(swaps: Sequence[Swap], num_kernels: int, target: str) -> MigrationPlan:
    """Return the moves of an iteration in issue order: of one kernel, those out first.

    A swap that begins before the iteration is issued late in the one before. What has left, or is leaving,
    at its start is also sent away there: that changes nothing but in the first iteration, which nothing
    comes before.
    """
    out = [(swap.candidate.start % num_kernels, swap.candidate.tensor) for swap in swaps]
    issued = set(out)
    borders = 0, num_kernels
    away = (swap for swap in swaps if any(swap.candidate.start <= at < swap.back for at in borders))
    first = [(0, swap.candidate.tensor) for swap in away if (0, swap.candidate.tensor) not in issued]
    back = sorted((swap.back % num_kernels, swap.in_time, swap.candidate.tensor) for swap in swaps)
    moves = [Planned(kernel, Evict(tensor, target)) for kernel, tensor in (*first, *out)]
    moves += [Planned(kernel, Fetch(tensor)) for kernel, _, tensor in back]
    return MigrationPlan.ordered(moves, "autoswap")
