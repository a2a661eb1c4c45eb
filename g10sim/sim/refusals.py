"""Refusals before time starts: what a policy, a behaviour or a machine cannot do with a workload."""

from __future__ import annotations

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, ConfigError, UnsupportedError
from g10sim.policies.interface.policy import Policy
from g10sim.trace.check import first_on_cpu
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload
from g10sim.units import format_bytes

_BESIDE_CPU = {"transfers": "fluid", "compute_overlap": "after_arrival"}
"""Behaviours that kernels on the CPU need."""
_LINK_ONLY = {
    "transfers": "batched",
    "flash_capacity": "unlimited",
    "copy_gigabyte": "binary",
    "copy_host_path": "split",
}
"""Behaviours of the published simulator that take the SSD for a rate."""


def check_sharing(workload: Workload, policy: Policy, behaviour: BehaviourSpec) -> None:
    """Refuse what serves one job per GPU at a time where jobs share one.

    Raises UnsupportedError for a policy, ConfigError for a behaviour.
    """
    if workload.sharing.compute == "exclusive":
        return
    found = f"workload.sharing.compute: found '{workload.sharing.compute}'"
    if policy.requirements.caching_pool is not None:
        raise UnsupportedError(
            f"{found} under policy '{policy.name}', whose pool takes GPU memory in chunks for one job; "
            "allowed: exclusive, or an allocator without a pool"
        )
    if behaviour.transfers == "batched":
        raise ConfigError(f"{found} with compat.transfers 'batched'; allowed: exclusive, or fluid transfers")


def check_processor(kernel: str, system: SystemSpec) -> None:
    """Refuse a kernel on a CPU that the system lacks, or on one without host memory. Raises ConfigError."""
    if system.cpu is None:
        raise ConfigError(
            f"system.cpu: found nothing, and {kernel} runs on the CPU; allowed: a mapping with optimizer_rate"
        )
    if "host" not in system.kinds:
        raise ConfigError(
            f"system.tiers: found no host, and {kernel} runs on the CPU; allowed: host among them"
        )


def check_cpu(workload: Workload, system: SystemSpec, policy: Policy, behaviour: BehaviourSpec) -> None:
    """Refuse kernels on a CPU that the system lacks, and what cannot serve any.

    Raises ConfigError for a system or behaviour, UnsupportedError for a policy, CapacityError for host memory
    that a kernel's data do not fit into.
    """
    for trace in (job.trace for job in workload.jobs if job.trace.cpu_kernels):
        found = first_on_cpu(trace)
        check_processor(found, system)
        for key, allowed in _BESIDE_CPU.items():
            value = getattr(behaviour, key)
            if value != allowed:
                raise ConfigError(
                    f"compat.{key}: found '{value}', and {found} runs on the CPU; allowed: {allowed}"
                )
        if policy.requirements.placement == "contiguous":
            raise UnsupportedError(
                f"policy '{policy.name}' copies whole tensors, and {found} runs on the CPU; "
                "allowed: policies that move pages"
            )
        if not policy.requirements.unlimited_memory:
            _check_room(trace, system)


def _check_room(trace: Trace, system: SystemSpec) -> None:
    page, (host,) = system.gpu.page_size, [tier for tier in system.all_tiers if tier.name == "host"]
    for kernel in trace.cpu_kernels:
        needed = sum(-(-trace.tensors[tensor].size_bytes // page) * page for tensor in kernel.touched)
        if needed > host.capacity // page * page:
            raise CapacityError(
                f"kernel {kernel.id} ({kernel.name}) of '{trace.model}' uses {format_bytes(needed)} on the "
                f"CPU; allowed: at most the host memory, {format_bytes(host.capacity)}"
            )


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


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 10**8 else format_bytes(size_bytes)
