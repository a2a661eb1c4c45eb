"""Transfers between the stages of a pipeline, which are jobs on their own GPUs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from simpy import Event

from g10sim.errors import ConfigError
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.sim.fabric import Fabric
from g10sim.trace.model import Kernel
from g10sim.trace.workload import Job

_ENDLESS = "a transfer between stages waits indefinitely: nothing moves any more"


class _Ends(NamedTuple):
    """GPUs of a transfer and its bytes."""

    source: int
    target: int
    size_bytes: int


class StageTransfers:
    """Sends what one stage has and another has room for: both have joined the transfer of that name.

    Transfers do not wait for each other; those on one link share it.
    """

    def __init__(self, jobs: Sequence[Job], fabric: Fabric, transfers: FluidTransfers) -> None:
        self._fabric, self._transfers = fabric, transfers
        self._ends = _paired(jobs)
        self._joined: dict[tuple[int, str], Event] = {}
        self.sent_bytes = dict.fromkeys((job.gpu for job in jobs), 0)
        """Bytes that each GPU has sent to another."""

    def join(self, iteration: int, kernel: Kernel) -> Event:
        """Note that one side of a transfer is ready; returns its end, an event with its beginning."""
        key, clock = (iteration, kernel.name), self._fabric.clock
        ended = self._joined.pop(key, None)
        if ended is None:
            ended = self._joined[key] = clock.event()
        else:
            clock.process(self._send(self._ends[kernel.name], ended))
        return ended

    def _send(self, ends: _Ends, ended: Event) -> Generator[Event, Any, None]:
        start, links = self._fabric.now, self._transfers.topology.between(ends.source, ends.target)
        with self._fabric.alter():
            message = self._transfers.send(links, ends.size_bytes)
        yield self._fabric.until(lambda: message.is_done, lambda: _ENDLESS)
        self.sent_bytes[ends.source] += ends.size_bytes
        ended.succeed(start)


def _paired(jobs: Sequence[Job]) -> dict[str, _Ends]:
    """Return the ends of every transfer. Raises ConfigError unless one job sends it and one receives it."""
    sent, received = dict[str, Job](), dict[str, Job]()
    sizes: dict[str, set[int]] = {}
    for job in jobs:
        for kernel in job.trace.link_kernels:
            side = sent if kernel.inputs else received
            if kernel.name in side:
                raise _refusal(f"two jobs that {'send' if kernel.inputs else 'receive'} '{kernel.name}'")
            side[kernel.name] = job
            moved = sum(job.trace.tensors[tensor].size_bytes for tensor in kernel.tensors)
            sizes.setdefault(kernel.name, set()).add(moved)
    for name, found in sizes.items():
        if name not in sent or name not in received or len(found) > 1:
            raise _refusal(f"no job that {'receives' if name in sent else 'sends'} '{name}'")
    stages = [job for job in jobs if job.trace.link_kernels]
    if len({job.gpu for job in stages}) < len(stages) or len({job.iterations for job in stages}) > 1:
        raise _refusal("stages that share a GPU, or run different numbers of iterations")
    return {name: _Ends(job.gpu, received[name].gpu, sizes[name].pop()) for name, job in sent.items()}


def _refusal(found: str) -> ConfigError:
    return ConfigError(
        f"workload.jobs: found {found}; allowed: all stages of a pipeline, each on a GPU of its own, with "
        "equal iterations"
    )
