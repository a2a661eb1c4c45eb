"""Targets that the authors of the published simulator set by hand for single workloads.

Its planner aims at 99% of GPU memory times a factor. That is 1 for unified memory, and 1.060606 for the
designs that copy whole tensors, except what its source has for these workloads (repository platformxlab/G10:
``ast.cc``, end of ``transformer_parse``; ``analysis.cc``, ``scheduling_prefetch``).
"""

from __future__ import annotations

from g10sim.config.system import SystemSpec
from g10sim.trace.model import Trace

# Factors for SSDs above a bandwidth and below another one, in bytes/s.
_UNIFIED_MEMORY = {("BERT_Base", 512): (0, 6.3e9, 1.394), ("VIT", 1280): (6.3e9, 6.5e9, 1.1)}
_COPIES = 1.060606
_COPIES_WITH_HOST = {"VIT": 1.269366}


def unified_memory_factor(trace: Trace, system: SystemSpec) -> float:
    """Return the factor for G10, which depends on the SSD for the workloads set by hand."""
    above, below, factor = _UNIFIED_MEMORY.get((trace.model, trace.batch_size), (0, 0, 1.0))
    bandwidth = next((tier.read_bandwidth for tier in system.all_tiers if tier.kind == "ssd"), None) or 0
    return factor if above < bandwidth < below else 1.0


def copies_factor(trace: Trace, *, uses_host: bool) -> float:
    """Return the factor for G10-Host, which uses the host, or G10-GDS."""
    return _COPIES_WITH_HOST.get(trace.model, _COPIES) if uses_host else _COPIES
