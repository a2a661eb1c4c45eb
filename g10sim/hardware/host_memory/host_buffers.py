"""Buffers of whole tensors in host memory, pinned, pageable or compressed, and the workers that compress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from g10sim.config.host import CompressionSpec, HostSpec, PinnedSpec
from g10sim.errors import InvariantError
from g10sim.hardware.host_memory.pinned import PinnedMemory
from g10sim.hardware.links import Message
from g10sim.hardware.runs import Run


def packed_bytes(size_bytes: int, density: float, spec: CompressionSpec) -> int:
    """Bytes that a tensor takes when compressed, ``density`` of its elements not being zero.

    A bit for each element, and for each worker the pieces of its share that its packed elements fill and
    the one after them (public code of vDNN++, Shriram et al., IPDPS 2019, compression_test).
    """
    mask = ceil(size_bytes / (8 * spec.element))
    begun = min(spec.pieces, int(round(density * spec.pieces, 9)) + 1)
    return mask + ceil(size_bytes * begun / spec.pieces)


class Expanded(NamedTuple):
    """Pages that a tensor has on the GPU while it is there, if it moves in a compressed format.

    ``index_pages`` of them hold what it takes to expand it, and stay while it is away.
    """

    block_pages: int
    index_pages: int


def index_owner(tensor: int) -> int:
    """Return who owns the block with a compressed tensor's index, below -1; of an owner its tensor."""
    return -2 - tensor


@dataclass(slots=True, eq=False)
class Work:
    """One tensor for the workers, which read and write ``moved_bytes`` of the host memory at ``gpu`` for it.

    ``begin`` may refuse (None) or delay the start; ``finish`` is called with the cycle of the end.
    """

    gpu: int
    moved_bytes: int
    cycles: int
    begin: Callable[[int], int | None]
    finish: Callable[[int], None]
    may_be_dropped: bool
    is_running: bool = False


class Workers:
    """All workers together serve one tensor at a time, first come first served.

    ``carry``, if there is one, lets the bytes of a tensor share the bandwidth of host memory; the tensor is
    done when they have passed.
    """

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._current: Work | None = None
        self._due = 0
        self._carried: Message | None = None
        self.carry: Callable[[Work], Message] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a tensor is in work."""
        return self._current is not None

    @property
    def next_event(self) -> int | None:
        """Cycle at which the tensor in work is done, or its bytes begin to move; None: links say when."""
        return None if self._current is None or self._carried is not None else self._due

    def submit(self, work: Work, now: int) -> None:
        """Give the workers one more tensor."""
        self._waiting.append(work)
        self._start(now)

    def withdraw(self, work: Work) -> None:
        """Take a tensor back that no worker has begun with, if it still waits."""
        if work in self._waiting:
            self._waiting.remove(work)

    def drop_waiting(self) -> None:
        """Forget what has not begun and may be dropped."""
        self._waiting = deque(work for work in self._waiting if not work.may_be_dropped)

    def advance(self, now: int) -> None:
        """Carry out what is done by the cycle ``now``, in order of time."""
        while self._current is not None and self._is_done(self._current, now):
            work, end = self._current, now if self._carried is not None else self._due
            self._current, self._carried, work.is_running = None, None, False
            work.finish(end)
            self._start(end)

    def _is_done(self, work: Work, now: int) -> bool:
        if self._carried is None:
            if self._due > now:
                return False
            if self.carry is None:
                return True
            self._carried = self.carry(work)
        return self._carried.is_done

    def _start(self, now: int) -> None:
        while self._current is None and self._waiting:
            work = self._waiting.popleft()
            begin = work.begin(now)
            if begin is not None:
                self._current, work.is_running = work, True
                self._due = begin if self.carry is not None else begin + work.cycles


class StagedRun(Run):
    """A copy that may begin at the cycle ``ready_at``; None: not known yet."""

    __slots__ = ("ready_at",)

    def __init__(self, tensor: int, count: int, rate: int) -> None:
        super().__init__(tensor, count, rate)
        self.ready_at: int | None = 0

    def state(self, now: int) -> tuple[object, ...]:
        """Return what sets it apart from other runs in its place at the cycle ``now``."""
        left = None if self.ready_at is None else max(0, self.ready_at - now)
        return (*super().state(now), left)

    def is_ready(self, now: int) -> bool:
        """Return whether the copy may move."""
        return self.ready_at is not None and self.ready_at <= now


class ReadyBuffer(NamedTuple):
    """A buffer for a copy: usable from a cycle on, no faster than ``limit`` bytes/second (0: any)."""

    ready_at: int
    limit: int


@dataclass(slots=True, eq=False)
class _Buffer:
    """One tensor in host memory.

    ``raw_bytes`` and ``packed_bytes`` are pinned. ``work`` is compression that has not ended, ``waiter`` a
    copy that waits for the raw contents.
    """

    size_bytes: int
    density: float | None
    raw_bytes: int = 0
    packed_bytes: int = 0
    work: Work | None = None
    waiter: StagedRun | None = None
    gone: bool = False


class HostMemory:
    """The host's pinned memory and its workers, shared by all jobs."""

    def __init__(self, spec: HostSpec, clock_hz: int) -> None:
        self.spec = spec.pinned or PinnedSpec()
        self.compression = spec.compression
        self.pinned = PinnedMemory(self.spec, clock_hz)
        self.workers = Workers()
        self.clock_hz = clock_hz
        self.now = 0

    def advance(self, now: int) -> None:
        """Carry out what the workers have done by the cycle ``now``."""
        self.workers.advance(now)
        self.pinned.settle(now)
        self.now = now

    def cycles_of_work(self, size_bytes: int, rate: int) -> int:
        """Cycles that all workers take for that many bytes at their ``rate`` together."""
        return -(-size_bytes * self.clock_hz // rate)


class HostBuffers:
    """The buffers of one job's tensors.

    A tensor that is copied out gets a pinned buffer, beyond the limit a pageable one, or it is refused. When
    it has come back its buffer is given up, or (``keeps``) stays pinned for the next time. A tensor
    with a density is compressed when the workers come to it: what it takes then is pinned, too, and its raw
    buffer is given up. To be fetched it is expanded into a new one first.
    """

    def __init__(self, host: HostMemory, page_bytes: int, *, keeps: bool, job: int = 0, gpu: int = 0) -> None:
        self._host, self._page_bytes, self._keeps, self._job, self._gpu = host, page_bytes, keeps, job, gpu
        self._buffers: dict[int, _Buffer] = {}
        self.watch()

    def watch(self) -> None:
        """Begin to look for the most pinned host memory again."""
        self._host.pinned.watch(self._job)

    @property
    def now(self) -> int:
        """Cycle that copies and the host's workers have come to."""
        return self._host.now

    @property
    def peak_bytes(self) -> int:
        """Most host memory pinned, by all jobs, since this job began to watch."""
        return self._host.pinned.peak(self._job)

    def state(self) -> tuple[object, ...] | None:
        """Return all on which later copies depend; None, not known, while the workers are busy."""
        host = self._host
        if host.workers.is_busy:
            return None
        buffers = [
            (tensor, buffer.size_bytes, buffer.density, buffer.raw_bytes, buffer.packed_bytes)
            for tensor, buffer in sorted(self._buffers.items())
        ]
        return host.pinned.state(host.now), tuple(buffers)

    def drop_waiting(self) -> None:
        """Leave tensors uncompressed if the workers have not begun with them."""
        self._host.workers.drop_waiting()

    def admit(self, tensor: int, pages: int, density: float | None) -> ReadyBuffer | None:
        """Provide a buffer for a tensor that leaves the GPU; None where it has to stay."""
        host = self._host
        buffer = self._buffers.get(tensor)
        if buffer is not None:  # kept from the last time
            buffer.density = density
            return ReadyBuffer(host.now, self._limit(buffer))
        buffer = _Buffer(pages * self._page_bytes, density)
        admission = self._pin_raw(buffer, self._host.now)
        if not buffer.raw_bytes and host.spec.beyond_limit == "stays":
            return None
        self._buffers[tensor] = buffer
        return admission

    def stored(self, tensor: int, pages: int) -> None:
        """Note the arrival of pages of a tensor; they are compressed if that was asked for.

        A tensor that was to leave for flash and found it full is in memory that nobody pinned.
        """
        host, spec = self._host, self._host.compression
        buffer = self._buffers.setdefault(tensor, _Buffer(pages * self._page_bytes, None))
        if buffer.density is None or spec is None or not buffer.raw_bytes:
            return
        packed = packed_bytes(buffer.size_bytes, buffer.density, spec)
        if packed >= buffer.size_bytes:
            return

        def begin(now: int) -> int | None:
            if not host.pinned.fits(packed, now):
                return None
            buffer.packed_bytes = packed
            return host.pinned.pin(packed, now)

        def finish(now: int) -> None:
            host.pinned.unpin(buffer.raw_bytes, now)
            buffer.raw_bytes = 0
            if buffer.gone:
                self._give_up(buffer, now)
            elif buffer.waiter is not None:
                self._expand(buffer, buffer.waiter, now)

        cycles = host.cycles_of_work(buffer.size_bytes, spec.workers * spec.compression_rate)
        moved = buffer.size_bytes + packed
        buffer.work = Work(self._gpu, moved, cycles, begin, finish, may_be_dropped=True)
        host.workers.submit(buffer.work, host.now)

    def fetch(self, tensor: int, count: int, rate: int) -> StagedRun:
        """Return a tensor's copy to the GPU, which begins as soon as its raw contents are there."""
        run = StagedRun(tensor, count, rate)
        buffer, host = self._buffers.get(tensor), self._host
        if buffer is None:
            return run
        run.rate = slower(rate, self._limit(buffer))
        if self._is_being_packed(buffer):
            run.ready_at, buffer.waiter = None, run
        elif buffer.packed_bytes and not buffer.raw_bytes:
            self._expand(buffer, run, host.now)
        return run

    def release(self, tensor: int) -> None:
        """Give up the buffer of a tensor that is back on the GPU or dead.

        Where buffers are kept it stays pinned, unless it was to be compressed.
        """
        buffer = self._buffers.get(tensor)
        if buffer is None or (self._keeps and buffer.raw_bytes and buffer.density is None):
            return
        self._discard(tensor, buffer)

    def close(self) -> None:
        """Give up all buffers: the job has ended."""
        for tensor, buffer in list(self._buffers.items()):
            self._discard(tensor, buffer)

    def _discard(self, tensor: int, buffer: _Buffer) -> None:
        del self._buffers[tensor]
        if self._is_being_packed(buffer):
            buffer.gone = True
        else:
            self._give_up(buffer, self._host.now)

    def _give_up(self, buffer: _Buffer, now: int) -> None:
        self._host.pinned.unpin(buffer.raw_bytes, now)
        self._host.pinned.unpin(buffer.packed_bytes, now)
        buffer.raw_bytes = buffer.packed_bytes = 0

    def _is_being_packed(self, buffer: _Buffer) -> bool:
        """Return whether workers compress a buffer right now; if they have not begun, they no longer will."""
        if buffer.work is None or buffer.work.is_running:
            return buffer.work is not None
        self._host.workers.withdraw(buffer.work)
        buffer.work = None
        return False

    def _expand(self, buffer: _Buffer, run: StagedRun, now: int) -> None:
        """Decompress a buffer for the copy that waits for it."""
        host, spec = self._host, self._host.compression
        if spec is None:
            raise InvariantError(f"tensor {run.tensor} is compressed on a host without workers")
        run.ready_at, buffer.waiter = None, run
        admission = self._pin_raw(buffer, now)
        run.rate = slower(run.rate, admission.limit)

        def begin(now: int) -> int | None:
            return max(now, admission.ready_at)

        def finish(now: int) -> None:
            run.ready_at, buffer.waiter = now, None
            host.pinned.unpin(buffer.packed_bytes, now)
            buffer.packed_bytes = 0

        cycles = host.cycles_of_work(buffer.size_bytes, spec.workers * spec.decompression_rate)
        moved = buffer.size_bytes + buffer.packed_bytes
        host.workers.submit(Work(self._gpu, moved, cycles, begin, finish, may_be_dropped=False), now)

    def _pin_raw(self, buffer: _Buffer, now: int) -> ReadyBuffer:
        """Pin a buffer's raw size if it may be; otherwise it is pageable."""
        pinned = self._host.pinned
        if pinned.fits(buffer.size_bytes, now):
            buffer.raw_bytes = buffer.size_bytes
            return ReadyBuffer(pinned.pin(buffer.size_bytes, now), 0)
        return ReadyBuffer(now, self._host.spec.pageable_bandwidth or 0)

    def _limit(self, buffer: _Buffer) -> int:
        """Limit of copies from and to a buffer as it is: pinned, or to be expanded into a pinned one."""
        if buffer.raw_bytes or buffer.packed_bytes:
            return 0
        return self._host.spec.pageable_bandwidth or 0


def slower(rate: int, limit: int) -> int:
    """Return the lower of two limits, 0 standing for none."""
    return min(rate, limit) if rate and limit else rate or limit
