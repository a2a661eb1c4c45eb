"""Finds tensors that can be computed again from what is still in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from operator import attrgetter

from g10sim.trace.model import Kernel, Trace
from g10sim.trace.repetition import named


class Recomputability:
    """Says which tensors of a trace can be dropped because the kernel that made them can run again.

    A kernel may run again when it would do the same as the first time: it changes nothing that it reads, what
    it reads is still there and unchanged, and what else it writes has not changed since. With ``chains`` what
    it reads may be gone, if it can be made again as well.
    """

    def __init__(self, trace: Trace, *, chains: bool = False) -> None:
        self._trace, self._chains, self._problems = trace, chains, dict[tuple[int, int], str]()

    @cached_property
    def writers(self) -> list[list[int]]:
        """For each tensor the kernels that write it, ascending; most runs drop nothing and never ask."""
        found: list[list[int]] = [[] for _ in range(len(self._trace.tensors))]
        for kernel, outputs in enumerate(named(self._trace.kernels, attrgetter("outputs"))):
            for tensor in dict.fromkeys(outputs):
                found[tensor].append(kernel)
        return found

    def producer(self, tensor: int, kernel: int) -> Kernel | None:
        """Return the last kernel before ``kernel`` that writes a tensor, or None."""
        writers = self.writers[tensor]
        before = bisect_left(writers, kernel)
        return self._trace.kernels[writers[before - 1]] if before else None

    def problem(self, tensor: int, kernel: int) -> str:
        """Say why a tensor cannot be dropped when ``kernel`` is about to start; empty where it can."""
        if (tensor, kernel) not in self._problems:
            self._problems[tensor, kernel] = self._found_problem(tensor, kernel)
        return self._problems[tensor, kernel]

    def _found_problem(self, tensor: int, kernel: int) -> str:
        trace = self._trace
        if trace.lasting[tensor]:
            return "lasts from iteration to iteration; allowed: what a kernel of the iteration makes"
        if tensor in trace.used_on_cpu:
            return "is used on the CPU; allowed: what kernels on the GPU make and read"
        writers = self.writers[tensor]
        made = writers[: bisect_left(writers, kernel)]
        if not made or not kernel < trace.deaths[tensor]:
            return "has no contents that will be read again; allowed: live tensors"
        if len(made) > 1:
            return f"{len(made)} kernels write; allowed: what one kernel makes"
        uses = trace.uses[tensor]
        use = uses[bisect_left(uses, kernel)]
        chain = self.each_of_chain(tensor, use)
        return next(filter(None, (self._obstacle(tensor, producer, use) for producer in chain)), "")

    def chain(self, tensor: int, use: int) -> tuple[Kernel, ...]:
        """Return the kernels that run again to make a tensor before kernel ``use``, its producer last."""
        return tuple(sorted(self.each_of_chain(tensor, use), key=attrgetter("id")))

    def each_of_chain(self, tensor: int, use: int) -> Iterator[Kernel]:
        """Yield the kernels of a chain, its producer first, each after one that reads what it makes."""
        found, sources = set[int](), [tensor]
        for source in sources:
            producer = self.producer(source, use)
            if producer is not None and producer.id not in found:
                found.add(producer.id)
                yield producer
                if self._chains:
                    sources += [other for other in producer.inputs if self.is_gone(other, use)]

    def is_gone(self, tensor: int, kernel: int) -> bool:
        """Return whether no kernel needs a tensor's contents any more when ``kernel`` is about to start."""
        return not self._trace.lasting[tensor] and self._trace.deaths[tensor] <= kernel

    def _obstacle(self, tensor: int, producer: Kernel, use: int) -> str:
        """Say what keeps a kernel from running again just before kernel ``use``, to make a tensor."""
        trace, where = self._trace, f"is made by kernel {producer.id} ({producer.name}), which"
        if tensor not in producer.outputs:
            where = f"is made from what kernel {producer.id} ({producer.name}) makes, which"
        if set(producer.inputs) & set(producer.outputs):
            return f"{where} changes what it reads; allowed: kernels that can run again"
        for source in producer.inputs:
            name = trace.tensors[source].name
            if self.is_gone(source, use) and not self._is_made_once(source):
                return f"{where} reads '{name}', gone before kernel {use}; allowed: what is there still"
            if self._changes(source, producer.id, use):
                return f"{where} reads '{name}', changed before kernel {use}; allowed: what stays as it is"
        for other in producer.outputs:
            if other != tensor and not self.is_gone(other, use) and self._changes(other, producer.id, use):
                name = trace.tensors[other].name
                return f"{where} also writes '{name}', changed before kernel {use}; allowed: what is not"
        return ""

    def _is_made_once(self, tensor: int) -> bool:
        """Return whether a tensor that is gone may be made again for another."""
        return self._chains and len(self.writers[tensor]) == 1 and tensor not in self._trace.used_on_cpu

    def _changes(self, tensor: int, after: int, before: int) -> bool:
        """Return True if a kernel between two others writes a tensor."""
        writers = self.writers[tensor]
        return bisect_left(writers, before) > bisect_left(writers, after + 1)
