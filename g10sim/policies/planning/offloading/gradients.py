"""Traffic of steps on the CPU: gradients leave in buckets, and return to add up; weights return."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from heapq import nlargest

from g10sim.policies.interface import Await, Evict, Fetch, Move
from g10sim.policies.planning.moves import births
from g10sim.policies.planning.offloading.takeover import Bucket, cpu_inputs, filled_buckets, partial_sums
from g10sim.policies.planning.offloading.windows import Window
from g10sim.trace.model import Device, Trace


class Gradients:
    """Moves of one job: buckets of gradients leave, what the CPU has updated comes back.

    A bucket waits until the one before it has left, if there are two buffers. What a reduce-scatter makes is
    a bucket, and leaves when that has ended. Otherwise gradients that add up over micro-batches leave after
    each one, and come back for the next one as many kernels ahead as their bucket takes to fill. New tensors
    of the next ``births`` kernels are mapped while a kernel runs. What is ``left`` where the CPU updates it
    stays there. Source: ``partition_grads`` in DeepSpeed's stage3.py, which adds up on the GPU what it keeps
    in host memory.
    """

    def __init__(
        self,
        trace: Trace,
        bucket_bytes: int,
        births: int,
        left: Container[int] = frozenset(),
        *,
        has_two_buffers: bool = True,
    ) -> None:
        self._trace, self._ahead, self._left = trace, births, left
        self._has_two_buffers = has_two_buffers
        inputs = cpu_inputs(trace)
        made = {tensor for tensor, _ in inputs}
        reduced = (Bucket(one.outputs, one.id) for one in trace.collectives if one.outputs[0] in made)
        self._buckets = tuple(reduced) or filled_buckets(trace, partial_sums(trace, inputs), bucket_bytes)
        self._ends = [*(self._waits_for_last(bucket) for bucket in self._buckets[1:]), len(trace.kernels) - 1]

    @cached_property
    def departures(self) -> dict[int, int]:
        """For each gradient that leaves the last kernel during which it is on the GPU."""
        pairs = zip(self._buckets, self._ends, strict=False)
        return {tensor: ready for bucket, ready in pairs for tensor in self._emptied(bucket)}

    @cached_property
    def stays(self) -> tuple[Window, ...]:
        """The stays on the GPU of gradients that leave it more than once."""
        found, left = list[Window](), dict[int, int]()
        several = Counter(tensor for bucket in self._buckets for tensor in bucket.tensors)
        for bucket, end in zip(self._buckets, self._ends, strict=False):
            every = [(tensor, self._trace.uses[tensor], left.get(tensor, -1)) for tensor in bucket.tensors]
            uses = {tensor: mine[bisect_right(mine, before)] for tensor, mine, before in every}
            ahead = bucket.ready - min(uses.values()) + 1
            for tensor, first in uses.items():
                if several[tensor] > 1:
                    since = max(first - ahead, left[tensor] + 1) if tensor in left else first - self._ahead
                    found.append(Window(tensor, max(0, since), first, end))
                left[tensor] = bucket.ready
        return tuple(found)

    def _waits_for_last(self, bucket: Bucket) -> int:
        """Return the last kernel that starts to map tensors before the bucket before this one has left."""
        kernels, last = self._trace.kernels, bucket.ready
        if kernels[last].device is Device.LINKS:  # which nothing waits for until a kernel on the GPU does
            while last < len(kernels) and kernels[last].device is not Device.GPU:
                last += 1
        return last

    def _emptied(self, bucket: Bucket) -> tuple[int, ...]:
        """Return what is gone when a bucket has left: with it, the gradients that were reduce-scattered."""
        last = self._trace.kernels[bucket.ready]
        return last.touched if last.device is Device.LINKS else bucket.tensors

    def before(self) -> Iterator[tuple[int, Move]]:
        """Yield the moves of kernels that are about to start."""
        yield from births(self._trace, self._ahead)
        returns = (stay for stay in self.stays if stay.fetched > self._trace.births[stay.tensor])
        yield from ((stay.fetched, Fetch(stay.tensor)) for stay in returns)

    def after(self) -> Iterator[tuple[int, Move]]:
        """Yield the moves of kernels that have ended, or were launched."""
        for kernel in self._trace.cpu_kernels:
            back = (tensor for tensor in kernel.outputs if self._trace.uses[tensor])
            yield from ((kernel.id, Fetch(tensor)) for tensor in back if tensor not in self._left)
        for number, bucket in enumerate(self._buckets):
            if number and self._has_two_buffers:
                yield bucket.ready, Await(frozenset(self._buckets[number - 1].tensors))
            yield from ((bucket.ready, Evict(tensor)) for tensor in bucket.tensors)


def host_bytes(
    trace: Trace, sizes: Sequence[int], away: Container[int] = frozenset(), buffers: int = 0
) -> int:
    """Return the bytes that lie in host memory during steps on the CPU.

    All at once, except for what is ``away``, of which it has that of ``buffers`` steps at a time.
    """
    staying = sum(sizes[tensor] for tensor in trace.used_on_cpu if tensor not in away)
    passing = (sum(sizes[t] for t in kernel.touched if t in away) for kernel in trace.cpu_kernels)
    return staying + sum(nlargest(buffers, passing))
