"""How memory management behaves: the hardware's way, or the published simulator's.

Every departure of the published G10 simulator from the hardware is one parameter here; ``compat: gpg``
sets them all (``docs/deviations.md`` numbers them).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from g10sim.config.quantities import Spec


class BehaviourSpec(Spec):
    """Parameters whose defaults model the hardware."""

    transfers: Literal["fluid", "batched"] = Field(
        default="fluid",
        description="fluid: constant rates between changes; batched: DMA batches with integer quotas",
    )
    batch_pages: int = Field(
        default=50, strict=True, ge=1, description="pages of one DMA batch (batched transfers)"
    )
    recency: Literal["use", "arrival"] = Field(
        default="use", description="what moves a page to the recent end of the eviction order"
    )
    dead_tensors: Literal["released", "kept"] = Field(
        default="released",
        description="released: freed at death; kept: stay until evicted, and are written out like live ones",
    )
    running_tensors: Literal["pinned", "evictable"] = Field(
        default="pinned", description="whether the running kernel's pages may be evicted"
    )
    flash_capacity: Literal["limited", "unlimited"] = Field(
        default="limited", description="whether the SSD can fill up"
    )
    fault_cost: Literal["latency", "profiled"] = Field(
        default="latency",
        description="latency: each group of faults waits; profiled: closed form over profiled durations",
    )
    compute_overlap: Literal["after_arrival", "while_arriving"] = Field(
        default="after_arrival",
        description="whether a kernel computes while the pages it waits for are still arriving",
    )
    reported_iteration: Literal["last", "fastest"] = Field(
        default="last", description="iteration that results report"
    )
    breakdown: Literal["computing", "in_flight"] = Field(
        default="computing",
        description="what overlaps: transfers while a kernel computes, or time in flight beyond its stall",
    )
    planner_gigabyte: Literal["decimal", "binary"] = Field(
        default="decimal", description="what planners take GB/s for: 1e9 or 2^30 bytes/s"
    )


GPG = BehaviourSpec(
    transfers="batched",
    recency="arrival",
    dead_tensors="kept",
    running_tensors="evictable",
    flash_capacity="unlimited",
    fault_cost="profiled",
    compute_overlap="while_arriving",
    reported_iteration="fastest",
    breakdown="in_flight",
    planner_gigabyte="binary",
)

PRESETS = {"gpg": GPG}
