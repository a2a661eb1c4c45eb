"""Places where pages are, as people read them: words, short labels, and looks in figures.

Tables and columns name the tier ``ssd`` by the historic word ``flash``, except in columns of traffic
(``ssd_to_gpu_bytes``). Other tiers have one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from g10sim.looks import BLUE, GREY, ORANGE, RED, SKY, Look

_WORDS = {"ssd": "flash"}
"""Historic words, by the name of the tier."""


@dataclass(frozen=True)
class Place:
    """A place as a short ``label``, in ``words``, and ``where`` pages in it are, with its looks in figures.

    ``arriving`` is for pages that come to the GPU from there, ``leaving`` for those that go there, ``level``
    for the bytes in use.
    """

    label: str
    words: str
    where: str
    arriving: Look = field(default_factory=Look)
    leaving: Look = field(default_factory=Look)
    level: Look = field(default_factory=Look)


_KNOWN: Mapping[str, Place] = {
    "none": Place("nowhere", "nowhere (new pages)", "nowhere", arriving=Look(GREY, label="new pages")),
    "gpu": Place("GPU", "the GPU", "on the GPU", level=Look(BLUE)),
    "host": Place(
        "host", "host memory", "in host memory", Look(RED, "////"), Look(ORANGE, "\\\\\\\\"), Look(ORANGE)
    ),
    "ssd": Place("SSD", "the SSD", "on the SSD", Look(BLUE), Look(SKY, "...."), Look(GREY, line="--")),
}


def tier_word(name: str) -> str:
    """Return the word for a tier in tables, reasons and locations: ``flash`` for ``ssd``."""
    return _WORDS.get(name, name)


def tier_name(word: str) -> str:
    """Return the name of the tier that a word stands for: ``ssd`` for ``flash``."""
    return next((name for name, known in _WORDS.items() if known == word), word)


def place(name: str) -> Place:
    """Return a place by its word or name, in any case, such as ``FLASH``, ``ssd`` or ``cxl``."""
    name = tier_name(name.lower())
    words = name.replace("_", " ")
    return _KNOWN.get(name, Place(words, words, f"in {words}"))


def level(name: str) -> Look:
    """Return the look of how full a place is; its label is that of the place."""
    found = place(name)
    return replace(found.level, label=found.label)


def direction(source: str, target: str) -> Look:
    """Return the look of pages that move from one place to another; its label names both."""
    if target.lower() == "none":
        return Look(label="dropped pages")
    start, end = place(source), place(target)
    look = start.arriving if target.lower() == "gpu" else end.leaving
    return replace(look, label=look.label or f"{start.label} to {end.label}")
