"""The memory of a CUDA device: copies on two streams, ordered by events; the host waits for nothing else."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from g10sim.execute.memory import Memory, null, swap

AHEAD = 8
"""Kernels that the host is ahead of the device at most: it has time for many moves at once."""
LEAST_BYTES = 2**20
"""Size below which the host takes longer to send (80 us, on an H200) than a link of 50 GB/s to carry."""


@dataclass(eq=False)
class HostCopy:
    """A pinned buffer; ``filled`` and ``emptied`` are the events of the last copies into it and out of it."""

    storage: Any
    filled: Any = None
    emptied: Any = None


class CudaMemory(Memory):
    """A block that a copy out still reads belongs to ``_leaving`` and to nothing else."""

    def __init__(self, streams: TorchStreams) -> None:
        """Make the two streams for copies."""
        self.leaving_bytes = 0
        self.least_bytes = LEAST_BYTES
        self._handed: Any = None
        self._streams = streams
        self._compute, self._out, self._in = streams.current(), streams.stream(), streams.stream()
        self._leaving: deque[tuple[Any, Any]] = deque()
        self._coming: dict[int, Any] = {}
        self._launched: deque[Any] = deque()
        self._idle: defaultdict[int, list[HostCopy]] = defaultdict(list)

    def evict(self, tensor: int, storage: Any) -> HostCopy:
        """Copy a storage out after the kernels launched so far; ``reclaim`` gives its block back."""
        streams, block = self._streams, null(storage)
        self.arrive(tensor)
        streams.swap(storage, block)
        size = block.nbytes()
        host = self._idle[size].pop() if self._idle[size] else streams.host(size)
        if host.emptied is not None:
            streams.wait(self._out, host.emptied)
        streams.wait(self._out, streams.event(self._compute))
        streams.copy(self._out, host.storage, block)
        host.filled = streams.event(self._out)
        self._leaving.append((host.filled, block))
        self.leaving_bytes += size
        return host

    def reclaim(self, *, waits: bool) -> bool:
        """Give back the block of the oldest copy out, once it has ended or behind a wait for it."""
        if not self._leaving or not (waits or self._streams.has_ended(self._leaving[0][0])):
            return False
        done, block = self._leaving.popleft()
        self._streams.wait(self._compute, done)
        self.leaving_bytes -= block.nbytes()
        self._streams.free(block)
        return True

    def hand_over(self, size_bytes: int, *, waits: bool) -> bool:
        """Keep the block of the oldest copy out of that size for the next copy in, which comes behind it.

        No kernel that is launched already is waited for.
        """
        for place, (done, block) in enumerate(self._leaving):
            if block.nbytes() == size_bytes and (waits or self._streams.has_ended(done)):
                del self._leaving[place]
                self._streams.wait(self._in, done)
                self.leaving_bytes -= size_bytes
                self._handed = block
                return True
        return False

    def fetch(self, tensor: int, storage: Any, host: HostCopy) -> None:
        """Copy a storage in alongside the kernels; ``arrive`` comes before a kernel that needs it."""
        streams, block, self._handed = self._streams, self._handed, None
        if block is None:
            block = streams.allocate(storage)
            streams.wait(self._in, streams.event(self._compute))  # whoever had the block before has ended
        streams.wait(self._in, host.filled)
        streams.copy(self._in, block, host.storage)
        streams.swap(storage, block)
        self._coming[tensor] = host.emptied = streams.event(self._in)
        self._idle[host.storage.nbytes()].append(host)

    @property
    def awaits_copies(self) -> bool:
        """True while any tensor is on its way in."""
        return bool(self._coming)

    def arrive(self, tensor: int) -> None:
        """Let the compute stream wait until a tensor is there."""
        event = self._coming.pop(tensor, None)
        if event is not None:
            self._streams.wait(self._compute, event)

    def drop(self, tensor: int, storage: Any) -> None:
        """Give back the block of a dead tensor that something still refers to."""
        self.arrive(tensor)
        block = null(storage)
        self._streams.swap(storage, block)
        self._streams.free(block)

    def pace(self) -> Any:
        """Keep the host a few kernels ahead: decisions are made when it is known what has ended."""
        self._launched.append(self.mark())
        if len(self._launched) > AHEAD:
            self._streams.synchronize(self._launched.popleft())
        return self._launched[-1]

    def mark(self) -> Any:
        """Record an event after the kernels launched so far."""
        return self._streams.event(self._compute)

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Wait for the last event, and return the seconds from the first to each."""
        self._streams.synchronize(marks[-1])
        return [self._streams.seconds_between(marks[0], mark) for mark in marks]

    def allocated_bytes(self) -> int:
        """Return the most bytes that PyTorch's allocator gave out since it was asked last."""
        found: int = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return found

    def finish(self) -> None:
        """Give all blocks back and wait: buffers may be used again when this object is gone."""
        while self.reclaim(waits=True):
            pass
        self._streams.synchronize(self.mark())

    def gone(self, tensor: int) -> None:
        """Keep a dead block from being used again before the copy into it has ended."""
        self.arrive(tensor)


_SLAB = 2**30
"""Bytes that are pinned at a time: PyTorch pins powers of two, and keeps what it has pinned."""
_ALIGNMENT = 512
"""Of blocks of PyTorch's allocator, in bytes."""


class TorchStreams:
    """The streams of the current CUDA device, and pinned memory, which is cut from slabs.

    ``allocate`` and ``free`` are those of the compute stream's pool: whoever takes a block from it runs after
    what that stream was told before, so that no block needs to be recorded for a stream.
    """

    def __init__(self) -> None:
        """Begin without pinned memory."""
        self._slab: Any = torch.UntypedStorage(0)
        self._taken_bytes = 0

    def current(self) -> Any:
        """Return the stream that kernels are launched on."""
        return torch.cuda.current_stream()

    def stream(self) -> Any:
        """Make a stream."""
        return torch.cuda.Stream()

    def event(self, stream: Any) -> Any:
        """Record an event after what a stream was told so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """Let what a stream is told next wait for an event."""
        stream.wait_event(event)

    def has_ended(self, event: Any) -> bool:
        """Return whether an event has happened."""
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """Let the host wait for an event."""
        event.synchronize()

    def seconds_between(self, first: Any, second: Any) -> float:
        """Return the seconds between two events that have happened."""
        milliseconds: float = first.elapsed_time(second)
        return milliseconds / 1e3

    def allocate(self, storage: Any) -> Any:
        """Allocate a block as large as a storage."""
        return torch.UntypedStorage(storage.nbytes(), device=storage.device)

    def host(self, size_bytes: int) -> HostCopy:
        """Cut a buffer from a pinned slab."""
        start = self._taken_bytes
        if start + size_bytes > self._slab.nbytes():
            slab = torch.empty(max(size_bytes, _SLAB), dtype=torch.uint8, device="cpu", pin_memory=True)
            self._slab, start = slab.untyped_storage(), 0
        self._taken_bytes = start + -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        return HostCopy(self._slab[start : start + size_bytes])

    def copy(self, stream: Any, to: Any, source: Any) -> None:
        """Copy between storages on a stream."""
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def swap(self, storage: Any, block: Any) -> None:
        """Exchange the memory of two storages."""
        swap(storage, block)

    def free(self, block: Any) -> None:
        """Do nothing: PyTorch takes the block back when the caller's reference, the last one, is gone."""
