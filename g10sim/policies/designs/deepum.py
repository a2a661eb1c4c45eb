"""DeepUM+: prefetch the tensors of the kernels to come, and drop dead pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, count, islice
from operator import attrgetter
from pathlib import Path

from g10sim.grouping import grouped
from g10sim.looks import SKY, Look
from g10sim.policies.interface import Fetch, Move, Policy, PolicyView, Protect, Requirements
from g10sim.policies.interface.parameters import Declared, PlanFile, parameter
from g10sim.policies.interface.plan_format import load_plan
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.hash_order import hash_order
from g10sim.trace.model import Trace
from g10sim.trace.repetition import named


@lru_cache(maxsize=8)
def _orders(path: str) -> dict[int, list[int]]:
    moves = load_plan(Path(path)).moves
    return grouped((planned.kernel, tensor) for planned in moves for tensor in planned.move.subjects())


def _windows(trace: Trace, look_ahead: int) -> Iterator[tuple[frozenset[int], tuple[int, ...]]]:
    """Yield for each kernel the tensors of that many from it on, and those of the next one after them."""
    later = chain.from_iterable(named(trace.kernels, attrgetter("tensors")) for _ in count())
    window = deque(islice(later, look_ahead), look_ahead)
    for following in later:
        yield frozenset(chain.from_iterable(window)), following
        window.append(following)


@register_policy
class DeepUm(Declared, Policy):
    """Correlation prefetching over a repeating kernel sequence, with unlimited look-up tables.

    When a kernel starts, the tensors of the kernel ``look_ahead`` later are prefetched (in the order of
    ``hash_order``), wrapping around the iteration; prefetches do not push out tensors of the kernels
    before that one. Pages of dead tensors are dropped instead of written out (``discard``). This is
    DeepUM as the G10 paper strengthened it: the kernel sequence is known exactly, so the correlation
    tables never miss.
    """

    name = "deepum"
    label = "DeepUM+"
    look = Look(SKY, "....", "v", "--")
    paper = "Jung et al., DeepUM, ASPLOS 2023; as DeepUM+ in the G10 paper (MICRO 2023), section 7.1"
    reference_plan = "prefetch_guide.deepum.config.gz"

    look_ahead: int = parameter(default=8, ge=1, published="8, DeepUM+ of the G10 paper")
    """Kernels between the running one and the one whose tensors are prefetched."""
    order_file: PlanFile | None = parameter(default=None)
    """A plan file that gives the order of prefetches at each kernel instead."""
    discard: bool = parameter(default=True, published="true, DeepUM")
    """Pages of dead tensors leave without being copied, as DeepUM invalidates them; otherwise they are
    written out like others."""

    @property
    def requirements(self) -> Requirements:
        """Dead pages are dropped, unless they are not told apart."""
        return Requirements(drops_dead_tensors=self.discard)

    @classmethod
    def with_reference_plan(cls, path: Path) -> Policy:
        """Return DeepUM+ with the published order of prefetches."""
        return cls(order_file=str(path))

    def _set_up(self) -> None:
        self._ahead: dict[int, Iterator[tuple[frozenset[int], tuple[int, ...]]]] = {}

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Prefetch for the kernel ``look_ahead`` later; protect those up to it."""
        if view.kernel == 0:
            self._ahead[view.job] = _windows(view.trace, self.look_ahead)
        window, following = next(self._ahead[view.job])
        if self.order_file is None:
            order = hash_order(following)
        else:
            given = _orders(self.order_file).get(view.kernel, ())
            order = tuple(map(view.trace.ids_of_given.__getitem__, given))
        return (Protect(window), *map(Fetch, order))
