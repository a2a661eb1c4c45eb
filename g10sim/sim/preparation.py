"""Steps before a simulation: refusals, designs chosen by trial, and kernels with other algorithms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from operator import attrgetter

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.analysis.reported import averaged, reported
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.system import SystemSpec
from g10sim.config.tiers import Tier
from g10sim.errors import CapacityError, ConfigError, PolicyError, UnsupportedError
from g10sim.policies.interface.policy import Policy
from g10sim.records import IterationRecord, RunRecords
from g10sim.sim.accounts.repetition import TooSlowError, are_replicas, shortened
from g10sim.sim.hooks import asked, kind_of
from g10sim.trace.check import first_on_cpu
from g10sim.trace.model import Device, Kernel, Phase, Trace
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
    place, found = "workload.sharing.compute", f"'{workload.sharing.compute}'"
    if policy.requirements.caching_pool is not None:
        found += f" under policy '{policy.name}', whose pool takes GPU memory in chunks for one job"
        raise UnsupportedError.at(place, found, "exclusive, or an allocator without a pool")
    if behaviour.transfers == "batched":
        found += " with compat.transfers 'batched'"
        raise ConfigError.at(place, found, "exclusive, or fluid transfers")


def check_processor(kernel: str, system: SystemSpec) -> None:
    """Refuse a kernel on a CPU that the system lacks, or on one without host memory. Raises ConfigError."""
    if system.cpu is None:
        found = f"nothing, and {kernel} runs on the CPU"
        raise ConfigError.at("system.cpu", found, "a mapping with optimizer_rate")
    if "host" not in system.kinds:
        raise ConfigError.at("system.tiers", f"no host, and {kernel} runs on the CPU", "host among them")


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
                raise ConfigError.at(f"compat.{key}", f"'{value}', and {found} runs on the CPU", allowed)
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
            raise ConfigError.at("system.ssd.model", f"'flash' with compat.{key} '{value}'", "'link' with it")
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


Group = frozenset[int]
TryOut = Callable[[Policy, Workload, Sequence[int]], RunRecords]


class _Trials:
    """Simulates a few iterations of a workload under the designs that a policy chooses among."""

    def __init__(self, workload: Workload, system: SystemSpec, try_out: TryOut) -> None:
        self._workload, self._try_out = workload, try_out
        self.workload, self.system = workload.as_planned(), system
        self._one_group = one_group(workload, system)
        self._groups = len(workload.jobs) // len(self._one_group.jobs)

    def __call__(self, design: Policy) -> str | None:
        try:
            self._try_out(design, shortened(self._workload, 1), ())
        except UnsupportedError as error:
            return str(error)
        return None

    def cycles(
        self, design: Policy, *, until_steady: bool = False, at_most: Sequence[int] = ()
    ) -> Sequence[int] | None:
        try:
            records = self._records(design, until_steady, at_most)
        except UnsupportedError:
            return None
        except TooSlowError:
            return [cycles + 1 for cycles in at_most]
        if any(job.refused for job in records.jobs):
            return None
        by_job: dict[int, list[IterationRecord]] = {}
        for iteration in records.iterations:
            by_job.setdefault(iteration.job, []).append(iteration)
        counted = (averaged(reported(by_job[job])) for job in sorted(by_job))
        return [iteration.end - iteration.start for iteration in counted]

    def _records(self, design: Policy, until_steady: bool, at_most: Sequence[int]) -> RunRecords:
        """Simulate one group of GPUs, or all of them if one does not stand for all."""
        if design.requirements.placement == "contiguous" and self._groups > 1:
            short = shortened(self._one_group, 2, keeps_auto=until_steady)
            records = self._try_out(design, short, at_most[: len(short.jobs)])
            if all(self._has_room(*pair) for pair in product(self.system.all_tiers, records.iterations)):
                return records
        return self._try_out(design, shortened(self._workload, 2, keeps_auto=until_steady), at_most)

    def _has_room(self, tier: Tier, record: IterationRecord) -> bool:
        """Return whether a memory is enough for all groups, so that none meets another at the SSD."""
        if tier.kind == "memory":
            return self._groups * record.peaks[f"peak_{tier.name}_bytes"] <= tier.capacity
        traffic, name = record.traffic, tier.name
        return not traffic[f"{name}_to_gpu_bytes"] and not traffic[f"gpu_to_{name}_bytes"]


def settled(policy: Policy, workload: Workload, system: SystemSpec, try_out: TryOut) -> Policy:
    """Return the policy that a policy settles on, after trials of some iterations where it asks for them.

    ``try_out`` simulates a workload under a policy; it may raise TooSlowError once the last iterations of all
    jobs have taken more cycles than it is given, if any. Raises UnsupportedError when nothing can run,
    PolicyError for a policy that fails.
    """
    trials = _Trials(workload, system, try_out)
    return asked(policy, "settle", lambda: kind_of(policy.settle(trials), Policy, "a policy"))


def one_group(workload: Workload, system: SystemSpec) -> Workload:
    """Return the workload on one group of GPUs, where groups are alike and copies of none delay another's.

    GPUs belong together when a link, or the memory of a socket, has less capacity than all that they could
    send through it at once. The workload comes back whole when groups differ, when jobs differ or vary, and
    when they share what is no link (a GPU, threads of the host) or links carry gradients between groups.
    Replicas of one group exchange gradients among themselves. The caller checks that host
    memory is enough for all.
    """
    is_alike = are_replicas(workload) and workload.variation is None
    if not (is_alike and _shares_only_links(workload, system)):
        return workload
    groups = _groups(system, frozenset(job.gpu for job in workload.jobs))
    if len({_shape(system, group) for group in groups}) > 1:
        return workload
    first = min(groups, key=min)
    return replace(workload, jobs=tuple(job for job in workload.jobs if job.gpu in first))


def _shares_only_links(workload: Workload, system: SystemSpec) -> bool:
    host, exchange = system.host, workload.exchange
    exchanges = exchange is not None and exchange.method != "none"
    ring = exchange is not None and exchange.method == "ring" and system.nvlink is not None
    pins_freely = host.pinned is None or host.pinned.is_free
    return pins_freely and host.compression is None and (ring or not exchanges)


def _groups(system: SystemSpec, busy: Group) -> list[Group]:
    """Join GPUs that share what they can fill, the lowest links first."""
    rates = {frozenset([gpu]): system.pcie.faster for gpu in busy}
    for members, bandwidth in _shared(system, busy):
        below = [group for group in rates if group & members]
        most = sum(rates[group] for group in below)
        if most > bandwidth:
            for group in below:
                del rates[group]
            joined = frozenset[int]().union(*below)
            rates[joined] = bandwidth if joined == members else most
    return list(rates)


def _shared(system: SystemSpec, busy: Group) -> Iterator[tuple[Group, int]]:
    """Yield what GPUs share, with its capacity in each direction: links from the lowest on, then memory."""
    for link in sorted(system.pcie.shared, key=lambda link: len(link.gpus)):
        yield frozenset(link.gpus) & busy, min(link.at_once)
    memory = system.host.memory_bandwidth
    if memory is not None:  # one capacity for both directions
        sockets: Iterable[Iterable[int]] = [socket.gpus for socket in system.host.sockets] or [busy]
        for gpus in sockets:
            yield frozenset(gpus) & busy, memory // 2


def _shape(system: SystemSpec, group: Group) -> tuple[object, ...]:
    """Describe the links within a group by the positions of its GPUs."""
    place = {gpu: position for position, gpu in enumerate(sorted(group))}
    links = [
        (tuple(sorted(place[gpu] for gpu in members)), bandwidth)
        for members, bandwidth in _shared(system, group)
        if members
    ]
    return len(group), tuple(sorted(links))


def with_chosen_kernels(workload: Workload, system: SystemSpec, policy: Policy) -> Workload:
    """Return the workload with the algorithms that a policy chooses for its kernels, and its partition.

    Raises PolicyError when it changes more than it may: see :meth:`Policy.choose_kernels`, ``partition``.
    """
    if policy.keeps_kernels:
        return workload
    chosen: dict[int, Trace] = {}
    for trace in {id(job.trace): job.trace for job in workload.jobs}.values():
        found = _trace_of(policy, "choose_kernels", trace, system)
        if workload.replicas > 1:
            found = _trace_of(policy, "partition", found, workload.replicas, system)
        _check(policy, trace, found)
        more = range(len(trace.tensors), len(found.tensors)) if trace.given_ids else ()
        chosen[id(trace)] = replace(found, given_ids=(*trace.given_ids, *more))
    return replace(workload, jobs=tuple(replace(job, trace=chosen[id(job.trace)]) for job in workload.jobs))


def _trace_of(policy: Policy, hook: str, *given: object) -> Trace:
    return asked(policy, hook, lambda: kind_of(getattr(policy, hook)(*given), Trace, "a Trace"))


def as_recorded(workload: Workload, system: SystemSpec, policy: Policy) -> Workload:
    """Return the workload whose kernels and tensors records count.

    It is the given one, unless kernels went to the CPU or there are collectives. Raises
    UnsupportedError when the policy cannot run it.
    """
    chosen = with_chosen_kernels(workload, system, policy)
    pairs = zip(workload.jobs, chosen.jobs, strict=True)
    changes = any(
        len(job.trace.cpu_kernels) < len(other.trace.cpu_kernels)
        or len(job.trace.link_kernels) < len(other.trace.link_kernels)
        for job, other in pairs
    )
    return chosen if changes else workload


def _check(policy: Policy, trace: Trace, chosen: Trace) -> None:
    """Raise PolicyError unless the GPU has the trace's work to do except for what the CPU takes over."""
    place = f"policy '{policy.name}': choose_kernels"
    takes_over = len(chosen.cpu_kernels) > len(trace.cpu_kernels)
    counts = tuple(len(one.kernels) - len(one.link_kernels) for one in (chosen, trace))
    if len(chosen.link_kernels) > len(trace.link_kernels) and policy.requirements.placement == "contiguous":
        raise PolicyError(
            f"policy '{policy.name}': partition adds collectives, and copies whole tensors; allowed: with "
            "paged memory"
        )
    if chosen.ticks_per_second != trace.ticks_per_second or (not takes_over and len(set(counts)) > 1):
        raise PolicyError(
            f"{place} returned {counts[0]} kernels; allowed: as many as the trace has, {counts[1]}, in its "
            "time base, unless the CPU takes some over"
        )
    others = filter(_takes_time, chosen.kernels)
    other = next(others, None)
    moved = Counter(map(_work, chosen.cpu_kernels))
    for kernel in filter(_takes_time, trace.kernels):
        if kernel.phase is Phase.FORWARD and moved[_work(kernel)]:
            moved[_work(kernel)] -= 1
            continue
        is_same = other is not None and _facts(other) == _facts(kernel)
        if other is not None and is_same and other.duration >= kernel.duration:
            other = next(others, None)
        elif not takes_over or kernel.phase is not Phase.OPTIMIZER:
            which = f"kernel {kernel.id} ({kernel.name})"
            if is_same:
                raise PolicyError(f"{place} makes {which} faster; allowed: at least the trace's duration")
            raise PolicyError(
                f"{place} leaves out {which}; allowed: to leave out kernels of the optimizer that the CPU "
                "takes over, and of a forward pass that it runs as they are"
            )
    if other is not None:
        raise PolicyError(
            f"{place} adds kernel {other.id} ({other.name}); allowed: kernels on the CPU, and on the GPU "
            "those of the trace in its order and others of duration 0"
        )


def _takes_time(kernel: Kernel) -> bool:
    return kernel.device is Device.GPU and kernel.duration > 0


_facts = attrgetter("name", "phase", "layer")
_work = attrgetter("name", "phase", "layer", "inputs", "outputs", "moved_bytes", "reads")
