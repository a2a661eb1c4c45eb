"""GPUs that stand for all of a machine: one of several groups that are alike and far apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from g10sim.config.system import SystemSpec
from g10sim.sim.accounts.iterations import are_replicas
from g10sim.trace.workload import Workload

Group = frozenset[int]


def one_group(workload: Workload, system: SystemSpec) -> Workload:
    """Return the workload on one group of GPUs, where groups are alike and copies of none delay another's.

    GPUs belong together when a link, or the memory of a socket, has less capacity than all that they could
    send through it at once. The workload comes back whole when groups differ, when jobs differ or vary, and
    when they share what is no link (a GPU, threads of the host) or links carry gradients between groups.
    Replicas of one group exchange gradients among themselves. The caller checks that host
    memory is enough for all.
    """
    gpus = [job.gpu for job in workload.jobs]
    is_alike = are_replicas(workload) and workload.variation is None
    if not (is_alike and _shares_only_links(workload, system)):
        return workload
    groups = _groups(system, frozenset(gpus))
    if len({_shape(system, group) for group in groups}) > 1:
        return workload
    first = min(groups, key=min)
    return replace(workload, jobs=tuple(job for job in workload.jobs if job.gpu in first))


def _shares_only_links(workload: Workload, system: SystemSpec) -> bool:
    host, exchange = system.host, workload.exchange
    exchanges = exchange is not None and exchange.method != "none"
    ring = exchange is not None and exchange.method == "ring" and system.nvlink is not None
    return host.pinned is None and host.compression is None and (ring or not exchanges)


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
