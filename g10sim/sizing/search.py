"""Bisection for the least amount that reaches a target; the judge is whoever answers its questions."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from g10sim.errors import InvariantError

Judged = Generator[tuple[int, ...], tuple[bool, ...], "Found"]
"""Asks whether amounts reach the target, gets the answers in the same order, and returns what it found."""

TENTH = Fraction(1, 10)
"""Share of an answer, above and below it, that is asked for in the end."""

AROUND = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(3, 2), Fraction(2), Fraction(4))
"""Multiples of an answer that are asked for in the end, to see what lies around it."""

MOST_STEPS = 128
"""More than any loop takes: amounts are below 2^60 (``units``), strides double at each step, and a bisection
leaves at most five eighths of its gap."""


@dataclass(frozen=True)
class Span:
    """Range and steps of a search, in whole numbers.

    Amounts from ``least`` to ``most`` can be asked for; ``failed`` is one that is known not to reach the
    target, and nothing below it does. The search begins at ``start`` with a step of ``stride``; ``grain`` is
    the smallest difference that counts, and ``rounded`` shortens an amount, given the coarsest step.
    """

    least: int
    failed: int | None
    most: int
    start: int
    stride: int
    grain: int
    rounded: Callable[[int, int], int]


@dataclass(frozen=True)
class Found:
    """Result of a search: ``answer`` reaches the target, None if nothing does.

    ``below`` and ``above`` are a tenth less and more; None outside the range.
    """

    answer: int | None
    below: int | None = None
    above: int | None = None


def least_amount(span: Span, precision: Fraction) -> Judged:
    """Search for the least amount that reaches the target.

    The search doubles its stride until one amount reaches it and one does not, and bisects between them up
    to the precision, a share of the answer. Then a tenth more and less are asked for; where less reaches the
    target, too, the search goes on below. Raises InvariantError where amounts do not close in on an answer.
    """
    high, failed = yield from _upwards(span)
    if high is None:
        return Found(None)
    while True:
        if failed is None:
            high, failed = yield from _downwards(span, high)
        answer = yield from _bisected(span, failed, high, precision)
        below, above, *around = (_near(answer, times, span) for times in (1 - TENTH, 1 + TENTH, *AROUND))
        asked = tuple(sorted({amount for amount in (below, above, *around) if amount is not None}))
        reached = dict(zip(asked, (yield asked), strict=True))
        if below is None or not reached[below]:
            return Found(answer, below, above)
        if below >= answer:
            raise InvariantError(f"a search goes on at {below}, not below {answer}")
        high, failed = below, None


def _upwards(span: Span) -> Generator[tuple[int, ...], tuple[bool, ...], tuple[int | None, int | None]]:
    """Return the first amount from the start upwards that reaches the target, and the last that does not."""
    here, failed = span.start, span.failed
    for doubling in range(MOST_STEPS):
        if (yield (here,))[0]:
            return here, failed
        failed = here
        if here == span.most:
            return None, failed
        stride = span.stride << doubling
        here = min(span.most, max(here + span.grain, span.rounded(here + stride, stride // 4)))
    raise _endless(span)


def _downwards(span: Span, high: int) -> Generator[tuple[int, ...], tuple[bool, ...], tuple[int, int | None]]:
    """Return the last amount from ``high`` downwards that reaches the target, and the first that does not."""
    known = -1 if span.failed is None else span.failed
    lowest = max(span.least, known + 1)
    for doubling in range(MOST_STEPS):
        if high <= lowest:
            return high, span.failed
        stride = span.stride << doubling
        here = max(lowest, min(high - span.grain, span.rounded(high - stride, stride // 4)))
        if not (yield (here,))[0]:
            return high, here
        high = here
    raise _endless(span)


def _bisected(
    span: Span, failed: int | None, high: int, precision: Fraction
) -> Generator[tuple[int, ...], tuple[bool, ...], int]:
    """Return an amount that reaches the target, no further from one that does not than the precision."""
    for _ in range(MOST_STEPS):
        if failed is None or high - failed <= max(span.grain, int(precision * high)):
            return high
        middle = span.rounded((failed + high) // 2, (high - failed) // 4)
        if (yield (middle,))[0]:
            high = middle
        else:
            failed = middle
    raise _endless(span)


def _endless(span: Span) -> InvariantError:
    return InvariantError(f"a search from {span.least} to {span.most} does not end")


def _near(answer: int, times: Fraction, span: Span) -> int | None:
    """Return a multiple of an answer, in whole grains away from it; None outside of what can be asked for."""
    grains = answer * times / span.grain
    found = (ceil(grains) if times > 1 else floor(grains)) * span.grain
    return found if max(span.grain, span.least) <= found <= span.most else None
