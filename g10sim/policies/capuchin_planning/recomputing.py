"""Recomputation of several tensors, some from others that are recomputed, too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.capuchin_planning.pairs import AccessPair
from g10sim.policies.swap_planning.schedule import Recomputed


def collective(entries: Iterable[Recomputed], rules: Recomputability) -> list[Recomputed]:
    """Return the recomputations as they happen: what is made on the way to another tensor stays.

    A tensor that was dropped and that another's producer reads is back when that one is recomputed, so that
    each is made again once (Capuchin's collective recomputation).
    """
    found = {entry.tensor: entry for entry in entries}

    def restore_sources(tensor: int, use: int) -> None:
        for source in sources(found[tensor], rules):
            other = found.get(source)
            if other is not None and other.drop <= use < other.use:
                found[source] = replace(other, use=use)
                restore_sources(source, use)

    for entry in sorted(found.values(), key=lambda entry: (entry.use, entry.tensor)):
        restore_sources(entry.tensor, entry.use)
    return list(found.values())


def sources(entry: Recomputed, rules: Recomputability) -> tuple[int, ...]:
    """Return what the kernel reads that makes a dropped tensor."""
    producer = rules.producer(entry.tensor, entry.drop)
    return () if producer is None else producer.inputs


def reads_what_is_away(
    entries: Iterable[Recomputed], pairs: Iterable[AccessPair], rules: Recomputability
) -> bool:
    """Whether a recomputation needs a tensor between the accesses of a pair that it is swapped for."""
    away: dict[int, list[AccessPair]] = {}
    for pair in pairs:
        away.setdefault(pair.tensor, []).append(pair)
    return any(
        pair.evicted < entry.use < pair.use
        for entry in entries
        for source in sources(entry, rules)
        for pair in away.get(source, ())
    )
