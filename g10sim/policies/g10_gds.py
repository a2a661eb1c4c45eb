"""G10-GDS: G10's plan over direct storage access, with the SSD only."""

from __future__ import annotations

from g10sim.policies.direct_storage import DirectStorage
from g10sim.policies.registry import register_policy


@register_policy
class G10Gds(DirectStorage):
    """G10's plan between GPU and SSD over GPUDirect Storage: no unified memory, no host memory.

    Whole tensors are copied, and need consecutive GPU memory.

    Parameters
    ----------
    plan_file
        Path of a plan to follow instead of an own one.
    method
        ``paced`` or ``published``: how the plan is made (see the policy g10).
    """

    name = "g10_gds"
    label = "G10-GDS"
    paper = "Zhang et al., G10 (MICRO 2023), section 7.1: G10 with GPUDirect Storage"
    uses_host = False
    reference_plan = "prefetch_guide.g10_gds.config.gz"
