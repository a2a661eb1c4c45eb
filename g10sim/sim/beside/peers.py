"""GPUs that talk to each other while they compute: data-parallel replicas, or the stages of a pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from simpy import Event

from g10sim.analysis.gradients import gradient_buckets
from g10sim.config.sharing import ExchangeSpec
from g10sim.errors import ConfigError
from g10sim.hardware.links import Link, Message
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.sim.fabric import Fabric, Process
from g10sim.trace.model import Kernel, Trace
from g10sim.trace.workload import Job

_NO_GRADIENTS = "an exchange of gradients waits indefinitely: nothing moves any more"
_NO_TRANSFER = "a transfer between stages waits indefinitely: nothing moves any more"

_Round = list[tuple[list[Link], int]]


def _have_arrived(messages: Sequence[Message]) -> bool:
    return all(message.is_done for message in messages)


class Peers(Protocol):
    """The GPUs that a job has collectives or transfers with."""

    sent_bytes: dict[int, int]

    def join(self, iteration: int, kernel: Kernel) -> Event:
        """Note that a GPU is ready for a kernel on LINKS; returns its end, an event with its beginning."""


class GradientExchange:
    """Sends a bucket of gradients once all replicas have it, one bucket after the other.

    Around a ring of N GPUs each sends 2 (N - 1) / N of a bucket to the next (Patarasuk and Yuan, Bandwidth
    optimal all-reduce algorithms, JPDC 2009). By way of the host each GPU sends the bucket up, and when all
    have, the sum comes down to each; adding up takes the host no time beyond that of its memory. Gradients
    are sent from their own buffers, as frameworks do, which do not count as GPU memory.

    All-gathers and reduce-scatters of designs that partition the training are sent in the same way: by way of
    the host what they read goes up, and what they write comes down. What all replicas have data for is sent
    in that order, one after the other, as on one communicator.
    """

    def __init__(
        self, trace: Trace, gpus: Sequence[int], spec: ExchangeSpec, fabric: Fabric, transfers: FluidTransfers
    ) -> None:
        self._gpus, self._spec, self._trace, self._transfers = tuple(gpus), spec, trace, transfers
        self._fabric, self._clock = fabric, fabric.clock
        talks = len(gpus) > 1 and spec.method != "none"
        self._buckets = gradient_buckets(trace, spec.bucket) if talks else ()
        self._readied: dict[int, list[int]] = {}
        self._used: dict[int, list[int]] = {}
        for number, bucket in enumerate(self._buckets):
            self._readied.setdefault(bucket.ready, []).append(number)
            for kernel in bucket.users:
                self._used.setdefault(kernel, []).append(number)
        self._missing: dict[tuple[int, int], int] = {}
        self._done = [0] * len(self._buckets)
        self._joined: dict[tuple[int, int], tuple[int, Event]] = {}
        self._queue: deque[tuple[list[_Round], Callable[[int], object]]] = deque()
        self.sent_bytes = dict.fromkeys(gpus, 0)
        """Bytes that each GPU has sent, to another or to the host."""
        self._idle: Event | None = None
        self._waiting: list[tuple[Event, int, int]] = []

    def kernel_ended(self, iteration: int, kernel: int) -> None:
        """Note that a replica has run a kernel."""
        for bucket in self._readied.get(kernel, ()):
            key = iteration, bucket
            left = self._missing[key] = self._missing.get(key, len(self._gpus)) - 1
            if not left:
                del self._missing[key]
                rounds = self._all_reduce(self._buckets[bucket].size_bytes)
                self._enqueue(rounds, partial(self._finish, bucket))

    def join(self, iteration: int, kernel: Kernel) -> Event:
        """Note that a replica has its data for a collective; returns its end, an event with its beginning."""
        key = iteration, kernel.id
        joined, ended = self._joined.pop(key) if key in self._joined else (0, self._clock.event())
        if joined + 1 < len(self._gpus):
            self._joined[key] = joined + 1, ended
        else:
            self._enqueue(self._collective(kernel), ended.succeed)
        return ended

    def _enqueue(self, rounds: list[_Round], finish: Callable[[int], object]) -> None:
        self._queue.append((rounds, finish))
        if self._idle is not None and not self._idle.triggered:
            self._idle.succeed()

    def arrival(self, iteration: int, kernel: int) -> Event:
        """Return an event that happens, or has happened, when all gradients that a kernel reads are there."""
        if self._is_complete(iteration, kernel):
            return self._clock.past
        event = self._clock.event()
        self._waiting.append((event, iteration, kernel))
        return event

    def _is_complete(self, iteration: int, kernel: int) -> bool:
        return all(self._done[bucket] > iteration for bucket in self._used.get(kernel, ()))

    def run(self) -> Process[None]:
        """SimPy process: send bucket after bucket."""
        while True:
            if not self._queue:
                self._idle = self._clock.event()
                yield self._idle
            (rounds, finish), start = self._queue.popleft(), self._fabric.clock.cycle
            for links_and_sizes in rounds:
                with self._fabric.alter():
                    sent = [self._transfers.send(links, size) for links, size in links_and_sizes]
                yield self._fabric.until(partial(_have_arrived, sent), lambda: _NO_GRADIENTS)
            for gpu, (_, size) in zip(self._gpus, rounds[0], strict=True):
                self.sent_bytes[gpu] += size
            finish(start)

    def _finish(self, bucket: int, start: int) -> None:
        """Wake the kernels that wait for a bucket."""
        self._done[bucket] += 1
        waiting, self._waiting = self._waiting, []
        for event, iteration, kernel in waiting:
            if self._is_complete(iteration, kernel):
                event.succeed()
            else:
                self._waiting.append((event, iteration, kernel))

    def _all_reduce(self, size_bytes: int) -> list[_Round]:
        around = -(-2 * (len(self._gpus) - 1) * size_bytes // len(self._gpus))
        return self._rounds(around, size_bytes, size_bytes)

    def _collective(self, kernel: Kernel) -> list[_Round]:
        """Return the transfers of an all-gather or a reduce-scatter, from what it reads to what it writes."""
        sizes = [tensor.size_bytes for tensor in map(self._trace.tensors.__getitem__, kernel.tensors)]
        read = len(kernel.inputs)
        return self._rounds(kernel.moved_bytes, sum(sizes[:read]), sum(sizes[read:]))

    def _rounds(self, around: int, up: int, down: int) -> list[_Round]:
        """Return the transfers of that many bytes around the ring, or up to the host and down from it."""
        topology, gpus = self._transfers.topology, self._gpus
        if self._spec.method == "host":
            return [
                [(topology.to_root(gpu, inward=inward), size) for gpu in gpus]
                for inward, size in ((False, up), (True, down))
            ]
        ring = zip(gpus, (*gpus[1:], gpus[0]), strict=True)
        return [[(topology.between(source, target), around) for source, target in ring]]


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

    def _send(self, ends: _Ends, ended: Event) -> Process[None]:
        start, links = self._fabric.clock.cycle, self._transfers.topology.between(ends.source, ends.target)
        with self._fabric.alter():
            message = self._transfers.send(links, ends.size_bytes)
        yield self._fabric.until(lambda: message.is_done, lambda: _NO_TRANSFER)
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
    allowed = "all stages of a pipeline, each on a GPU of its own, with equal iterations"
    return ConfigError.at("workload.jobs", found, allowed)
