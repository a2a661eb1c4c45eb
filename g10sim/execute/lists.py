"""Operators on lists of tensors, cut into the launches that the trace has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from g10sim.execute.script import Call

Launch = tuple[range, frozenset[int], tuple[Any, ...], Mapping[str, Any]]
"""Kernels, the tensors that they need, and the arguments that they work on."""


def launches_of(
    call: Call,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    number_of: Callable[[Any], int | None],
    needs: Sequence[frozenset[int]],
) -> Iterator[Launch]:
    """Cut an operator on lists at whole tensors: one belongs to the last launch of the trace that has it.

    Such operators work element by element, so the parts compute what the whole does. ``needs`` are the
    tensors of every kernel of the trace.
    """
    values = (*args, *kwargs.values())
    lists = [value for value in values if isinstance(value, (list, tuple)) and value]
    lists = [value for value in lists if isinstance(value[0], torch.Tensor)]
    count = len(lists[0])
    alike = [group for group in lists if len(group) == count]

    def known(tensors: Iterable[Any]) -> set[int]:
        found = map(number_of, tensors)
        return {number for number in found if number is not None}

    numbers = [known(group[place] for group in alike) for place in range(count)]
    singles = known(value for value in values if isinstance(value, torch.Tensor))
    last = [
        max((k for k in range(call.first, call.end) if not needs[k].isdisjoint(found)), default=call.first)
        for found in numbers
    ]
    first = call.first
    ends = sorted(set(last))
    for kernel in ends:
        chosen = [place for place in range(count) if last[place] == kernel]
        end = call.end if kernel == ends[-1] else kernel + 1
        needed = singles.union(*(numbers[place] for place in chosen), *needs[first:end])
        own = {name: _cut(value, count, chosen) for name, value in kwargs.items()}
        yield range(first, end), frozenset(needed), tuple(_cut(one, count, chosen) for one in args), own
        first = end


def _cut(value: Any, count: int, chosen: Sequence[int]) -> Any:
    if isinstance(value, (list, tuple)) and len(value) == count:
        return [value[place] for place in chosen]
    return value
