"""Reasons for which kernels wait, with the words and the looks that people see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from g10sim import looks
from g10sim.places import place


class StallReason(str):
    """Reason for which a kernel waited: equal to its value, with the words and the look that people see.

    There is one object for each value. ``fault_TIER`` stands for page faults served from a memory tier, by
    its word; :meth:`fault` makes it. ``words`` are for sentences, ``look`` (with a short label) for figures.
    """

    FAULT_HOST: ClassVar[StallReason]
    FAULT_FLASH: ClassVar[StallReason]
    FIRST_TOUCH: ClassVar[StallReason]
    LATE_PREFETCH: ClassVar[StallReason]
    EVICTION: ClassVar[StallReason]
    ALLOCATION: ClassVar[StallReason]
    SYNCHRONIZATION: ClassVar[StallReason]
    LINK_CONTENTION: ClassVar[StallReason]
    BARRIER: ClassVar[StallReason]
    COMPUTE_SHARING: ClassVar[StallReason]
    RECOMPUTATION: ClassVar[StallReason]
    IN_PLACE_ACCESS: ClassVar[StallReason]
    COPY_CONTENTION: ClassVar[StallReason]
    CPU: ClassVar[StallReason]
    MAPPING: ClassVar[StallReason]
    words: str
    look: looks.Look

    def __new__(cls, value: str, words: str = "", look: looks.Look | None = None) -> StallReason:
        """Return the reason of a value; ``words`` and ``look`` count the first time only."""
        if value in _REASONS:
            return _REASONS[value]
        made, label = super().__new__(cls, value), value.replace("_", " ")
        made.words = words or label
        if made.tier:
            label = f"page faults, {place(made.tier).label}"
            made.words = f"page faults served from {place(made.tier).words}"
        made.look = replace(look or looks.Look(), label=label)
        return _REASONS.setdefault(value, made)

    @classmethod
    def fault(cls, word: str) -> StallReason:
        """Return the reason of page faults served from a tier, by its word."""
        return cls(_FAULT + word)

    @classmethod
    def of_tiers(cls, words: Iterable[str]) -> list[StallReason]:
        """Return every reason that there is with tiers of these words, in the order of columns."""
        faults = [cls.FAULT_HOST, cls.FAULT_FLASH, *(cls.fault(word) for word in words)]
        return [*dict.fromkeys(faults), *(reason for reason in _FIXED if reason not in faults)]

    @property
    def name(self) -> str:
        """Name of the reason as a constant."""
        return self.upper()

    @property
    def value(self) -> str:
        """The reason as plain text."""
        return str.__str__(self)

    @property
    def tier(self) -> str:
        """Word of the tier that page faults were served from; empty for any other reason."""
        return self.removeprefix(_FAULT) if self.startswith(_FAULT) else ""

    @property
    def column(self) -> str:
        """Column of the cycles for which kernels waited."""
        return f"stall_{self}_cycles"

    def __repr__(self) -> str:
        """Return the reason as a constant with its value."""
        return f"<{type(self).__name__}.{self.name}: {str.__repr__(self)}>"

    def __reduce__(self) -> tuple[type[StallReason], tuple[str]]:
        """Keep one object for each value across processes."""
        return StallReason, (self.value,)


_FAULT = "fault_"
_REASONS: dict[str, StallReason] = {}
_FIXED = (
    StallReason("fault_host", look=looks.Look(looks.SKY, "....")),
    StallReason("fault_flash", look=looks.Look(looks.BLUE)),
    StallReason(
        "first_touch", "first touch: new pages mapped on demand", looks.Look(looks.YELLOW, "\\\\\\\\")
    ),
    StallReason("late_prefetch", "prefetches that had not arrived", looks.Look(looks.ORANGE, "////")),
    StallReason("eviction", "others had to leave the GPU first", looks.Look(looks.RED)),
    StallReason("allocation", "no consecutive room in GPU memory", looks.Look(looks.PINK, "xxxx")),
    StallReason("synchronization", "the policy waited for transfers", looks.Look(looks.GREY, "----")),
    StallReason("link_contention", "other GPUs used a shared link", looks.Look(looks.BLACK)),
    StallReason("barrier", "other replicas", looks.Look(looks.WHITE, "||||")),
    StallReason("compute_sharing", "other jobs computed on the GPU", looks.Look(looks.PALE, "++++")),
    StallReason("recomputation", "dropped tensors computed once more", looks.Look(looks.DARK_GREY, "oooo")),
    StallReason(
        "in_place_access", "tensors were used where they lie, over a link", looks.Look(looks.GREEN, "**")
    ),
    StallReason("copy_contention", "copies used the GPU's memory, too", looks.Look("#117733", "oo")),
    StallReason("mapping", "memory for new tensors was not mapped yet", looks.Look("#DDCC77", "\\\\..")),
)
for _reason in _FIXED:
    setattr(StallReason, _reason.name, _reason)
StallReason.CPU = StallReason("cpu", "kernels on the CPU had not ended", looks.Look("#882255", ".."))
