"""Choice of the activations that are swapped, and of the tiers they go to; the others are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.planning.offloading.saved import Saved, saved_tensors
from g10sim.trace.model import Trace


@dataclass
class Budget:
    """Bytes that may still leave: over the link, into host memory, and to the SSD."""

    link: float
    host: float
    ssd: float

    def take(self, size: int, *, must: bool) -> str:
        """Return the tier that takes in some bytes, host memory first; none does that ``must`` not."""
        tier = "host" if size <= self.host else "ssd"
        if not must and (size > self.link or (tier == "ssd" and size > self.ssd)):
            return ""
        self.link -= size
        if tier == "host":
            self.host -= size
        else:
            self.ssd -= size
        return tier


@dataclass(frozen=True)
class Choice:
    """Activations that are swapped, each with its tier, and those that are computed again."""

    swapped: Sequence[tuple[Saved, str]]
    dropped: Sequence[Saved]

    def note(self, sizes: Sequence[int]) -> str:
        """Say how much is swapped, and how much computed again."""
        swapped, on_ssd, dropped = (
            sum(sizes[one.tensor] for one in some) / 1e9
            for some in (
                [one for one, _ in self.swapped],
                [one for one, tier in self.swapped if tier == "ssd"],
                self.dropped,
            )
        )
        return (
            f"swaps {swapped:.3g} GB of activations, {on_ssd:.3g} GB of them to the SSD, "
            f"and computes {dropped:.3g} GB again"
        )


def chosen(trace: Trace, sizes: Sequence[int], cycles: Sequence[int], budget: Budget) -> Choice:
    """Swap what cannot be computed again within a layer, then what takes longest to compute for its size."""
    rules, swapped, dropped = Recomputability(trace), list[tuple[Saved, str]](), list[Saved]()
    inner = list[tuple[float, Saved]]()
    for one in saved_tensors(trace):
        producer = rules.producer(one.tensor, one.since + 1)
        crosses = len({trace.kernels[use].block for use in trace.uses[one.tensor]}) > 1
        if producer is None or crosses or rules.problem(one.tensor, one.since + 1):
            swapped.append((one, budget.take(sizes[one.tensor], must=True)))
        else:
            inner.append((cycles[producer.id] / sizes[one.tensor], one))
    for _, one in sorted(inner, key=lambda pair: (-pair[0], pair[1].tensor)):
        if tier := budget.take(sizes[one.tensor], must=False):
            swapped.append((one, tier))
        else:
            dropped.append(one)
    return Choice(sorted(swapped, key=lambda pair: (pair[0].since, pair[0].tensor)), dropped)
