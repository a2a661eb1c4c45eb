"""How the reasons of stalls look and what figures call them."""

from __future__ import annotations

from collections.abc import Mapping

from g10sim.plots.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW, Look
from g10sim.stats.summary import STALL_COLUMNS

COMPUTE = Look("computing", GREEN)

_KNOWN: Mapping[str, Look] = {
    "fault_host": Look("page faults, host", SKY, "...."),
    "fault_flash": Look("page faults, SSD", BLUE, ""),
    "first_touch": Look("first touch", YELLOW, "\\\\\\\\"),
    "late_prefetch": Look("late prefetch", ORANGE, "////"),
    "eviction": Look("eviction", RED, ""),
    "allocation": Look("allocation", PINK, "xxxx"),
    "synchronization": Look("synchronization", GREY, "----"),
    "link_contention": Look("link contention", BLACK, ""),
    "barrier": Look("barrier", "#FFFFFF", "||||"),
    "compute_sharing": Look("compute sharing", "#BBCCEE", "++++"),
}


def stall_looks() -> dict[str, Look]:
    """Return a look for each column ``stall_REASON_cycles``."""
    reasons = {column: column.removeprefix("stall_").removesuffix("_cycles") for column in STALL_COLUMNS}
    return {
        column: _KNOWN.get(reason, Look(reason.replace("_", " "), "#666666", "oooo"))
        for column, reason in reasons.items()
    }
