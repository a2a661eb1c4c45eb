"""The figures that can be drawn: their names, what they show and which tables they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest


@dataclass(frozen=True)
class Entry:
    """A figure. Its module has its name and a function ``draw(results, TABLE, ...)``.

    ``results`` are the rows of results.csv; ``tables`` name the Parquet tables that follow, in order. With
    ``of_one_cell`` it shows one cell of a run, and ``draw`` takes its number as ``cell``; otherwise it
    is a figure of the G10 paper, with an experiment of the same name.
    """

    name: str
    title: str
    tables: tuple[str, ...] = ()
    of_one_cell: bool = False


ENTRIES: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (Entry("fig11", "performance of every policy against unlimited GPU memory"),)
}


def find(name: str) -> Entry:
    """Return the figure of a name. Raises ConfigError."""
    if name not in ENTRIES:
        raise ConfigError(
            f"found no figure '{name}'{nearest(name, ENTRIES)}; allowed: {choices_text(ENTRIES)}, or all"
        )
    return ENTRIES[name]


def paper_figures() -> tuple[str, ...]:
    """Names of the figures of the G10 paper, in its order."""
    return tuple(name for name, entry in ENTRIES.items() if not entry.of_one_cell)
