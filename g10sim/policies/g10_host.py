"""G10-Host: G10's plan over explicit copies, with host memory and SSD."""

from __future__ import annotations

from g10sim.policies.direct_storage import DirectStorage
from g10sim.policies.registry import register_policy


@register_policy
class G10Host(DirectStorage):
    """G10's plan between GPU, host memory and SSD by explicit copies: no unified memory.

    Whole tensors are copied, and need consecutive GPU memory.

    Parameters
    ----------
    plan_file
        Path of a plan to follow instead of an own one.
    method
        ``paced`` or ``published``: how the plan is made (see the policy g10).
    """

    name = "g10_host"
    label = "G10-Host"
    paper = "Zhang et al., G10 (MICRO 2023), section 7.1: G10 with host memory and without unified memory"
    uses_host = True
    reference_plan = "prefetch_guide.g10_host.config.gz"
