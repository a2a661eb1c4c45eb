"""Stays on the GPU of what lies below it: for all batches of a layer, or for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from g10sim.grouping import grouped
from g10sim.policies.planning.blocks.homes import GPU
from g10sim.policies.planning.blocks.parts import Kind, Part, kinds_of, part_numbers
from g10sim.policies.planning.offloading.windows import Window, near_uses
from g10sim.trace.model import Trace

Overlap = Literal["all", "batches", "none"]

_PARTS_APART = 2
"""Parts between two uses of a tensor that stays meanwhile: it would have to return before it has left."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A stay on the GPU for the parts from ``first`` to ``last``.

    It is ``loaded`` when that part begins, in the iteration before if that is after ``first``; None: it is
    there, or made. It ``leaves`` after its last part, or else dies there or stays for the next iteration. If
    it ``is_clean``, the copy that it came from is still good then.
    """

    tensor: int
    loaded: int | None
    first: int
    last: int
    leaves: bool
    is_clean: bool


def visits_of(
    trace: Trace, parts: Sequence[Part], homes: Mapping[int, str], overlap: Overlap
) -> tuple[Visit, ...]:
    """Return the visits of all tensors that lie below the GPU and that its kernels use.

    Weights come for all batches of a layer, while the layer before computes, or before the first batch unless
    ``overlap`` is all. Keys, values and states come for a batch while the one before computes, with ``none``
    before their own.
    """
    kinds, numbers = kinds_of(trace, parts), part_numbers(parts)
    groups, found = [part.group for part in parts], list[Visit]()
    layers = grouped((group, number) for number, group in enumerate(groups)).values()
    whole, single = [(run[0], run[-1]) for run in layers], [(number, number) for number in range(len(parts))]
    for tensor, kernels in enumerate(trace.uses):
        if homes.get(tensor, GPU) == GPU or not kernels:
            continue
        used = dict.fromkeys(numbers[kernel] for kernel in kernels)
        if kinds[tensor] is Kind.WEIGHTS:
            used = dict.fromkeys(groups[part] for part in used)
            found += _visits(trace, tensor, [*used], whole, 1, ahead=overlap == "all")
        else:
            found += _visits(trace, tensor, [*used], single, _PARTS_APART, ahead=overlap != "none")
    return tuple(found)


def _visits(
    trace: Trace,
    tensor: int,
    uses: Sequence[int],
    places: Sequence[tuple[int, int]],
    apart: int,
    *,
    ahead: bool,
) -> Iterator[Visit]:
    """Yield the visits of a tensor that is used in some places; these are the first and last part of each.

    It stays from use to use that are no more than ``apart``, the last one and the first of the next iteration
    as well. After the last one, too, it leaves if it is alive: the CPU may need it.
    """
    spans = near_uses(uses, lambda before, after: after - before > apart)
    wraps, lasts = uses[0] + len(places) - uses[-1] <= apart, trace.lasting[tensor]
    is_needed = lasts or trace.deaths[tensor] > trace.uses[tensor][-1] + 1
    for number, (first, last) in enumerate(spans):
        is_there = not number and (wraps or not lasts)
        loaded = None if is_there else places[first - 1 if ahead else first][0]
        leaves = number < len(spans) - 1 or (is_needed and not (lasts and wraps))
        is_clean = tensor not in trace.rewritten and (lasts or loaded is not None)
        yield Visit(tensor, loaded, places[first][0], places[last][1], leaves, is_clean)


def windows_of(
    trace: Trace, parts: Sequence[Part], visits: Sequence[Visit], *, leave_later: bool
) -> tuple[Window, ...]:
    """Return the kernels during which visits take memory; those over the iteration's end are two.

    What has to be copied leaves until the part after has ended, with ``leave_later``.
    """
    found, end = list[Window](), len(trace.kernels) - 1
    for visit in visits:
        lasts, is_copied = trace.lasting[visit.tensor], visit.leaves and not visit.is_clean
        last = min(visit.last + (leave_later and is_copied), len(parts) - 1)
        until = parts[last].last if visit.leaves or not lasts else end
        since = visit.first if visit.loaded is None else visit.loaded
        start = 0 if visit.loaded is None and lasts else parts[since].first
        if since > visit.first:
            found.append(Window(visit.tensor, start, start, end))
            start = 0
        found.append(Window(visit.tensor, start, start, until))
    return tuple(found)
