"""Needs of a modelled SSD besides transfers: checks before time starts, and lifetimes that jobs know."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, ConfigError
from g10sim.hardware.flash.pool import FlashPool
from g10sim.hardware.pools import Pool
from g10sim.policies.interface.policy import Policy
from g10sim.sim.executor import JobRun
from g10sim.sim.view import kernels_to_next_use
from g10sim.trace.workload import Workload
from g10sim.units import format_bytes

_LINK_ONLY = {
    "transfers": "batched",
    "flash_capacity": "unlimited",
    "copy_gigabyte": "binary",
    "copy_host_path": "split",
}
"""Behaviours of the published simulator that take the SSD for a rate."""


def check_flash(workload: Workload, system: SystemSpec, policy: Policy, behaviour: BehaviourSpec) -> None:
    """Refuse what modelled SSDs cannot do.

    Raises ConfigError for behaviours that take the SSD for a rate, CapacityError when all memory together
    cannot hold what is alive.
    """
    drives = [tier.drive for tier in system.all_tiers if isinstance(tier.drive, FlashSsdSpec)]
    if not drives or policy.requirements.unlimited_memory:
        return
    for key, value in _LINK_ONLY.items():
        if getattr(behaviour, key) == value:
            raise ConfigError(
                f"system.ssd.model: found 'flash' with compat.{key} '{value}'; allowed: 'link' with it"
            )
    if workload.sharing.compute == "exclusive" and len({job.gpu for job in workload.jobs}) == 1:
        alive = max(peak_live_bytes(job.trace) for job in workload.jobs)
        room = system.gpu.memory + sum(tier.capacity for tier in system.all_tiers)
        if alive > room:
            *others, last = (f"{tier.title} ({_gigabytes(tier.capacity)})" for tier in system.all_tiers)
            parts = ", ".join([f"GPU ({_gigabytes(system.gpu.memory)})", *others])
            raise CapacityError(
                f"system.ssd: the workload has {_gigabytes(alive)} alive at a time; {parts} and {last} hold "
                f"{_gigabytes(room)} together"
            )


def tell_deaths(pools: Iterable[Pool], jobs: Collection[JobRun]) -> None:
    """Let the pools of modelled SSDs know when what jobs write will be dead."""
    for pool in pools:
        if isinstance(pool, FlashPool):
            for job in jobs:
                pool.expect_deaths(job.memory, partial(_expected_death, job))


def _expected_death(job: JobRun, place: int) -> float:
    """Tell when a copy of what lies at a range, made now, will not be needed any more: when it is used.

    A position in the iteration from 0 to 1; what is written together and has the same one dies together.
    """
    kernels, now = len(job.job.trace.kernels), job.kernel
    return (now + kernels_to_next_use(job.addresses.trace, place, now)) % kernels / kernels


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 10**8 else format_bytes(size_bytes)
