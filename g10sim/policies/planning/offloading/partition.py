"""The trace of one of several replicas that partition weights, gradients and optimizer states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from g10sim.policies.planning.offloading.takeover import added_kernel, cpu_inputs, filled_buckets, numbered
from g10sim.policies.planning.offloading.windows import Window
from g10sim.trace.model import Device, Kernel, Phase, Tensor, Trace

_collective = partial(added_kernel, device=Device.LINKS)


def partitioned(trace: Trace, replicas: int, bucket_bytes: int, stays: Sequence[Window] = ()) -> Trace:
    """Return what one of several data-parallel replicas runs of a step whose optimizer the CPU runs.

    Each replica has an equal part of every gradient, state and weight that the CPU uses, rounded up to whole
    bytes and parameters. A full bucket of gradients is reduce-scattered before its part leaves (ZeRO stage
    2). What the CPU has updated is all-gathered, and the GPU keeps the rest of it. Weights that have
    ``stays`` are all-gathered for each of them instead, when they are fetched (stage 3).
    """
    return _Partitioning(trace, replicas, bucket_bytes, stays).trace()


def gathered(trace: Trace) -> tuple[Window, ...]:
    """Return the stays of the parts of weights that all-gathers begin: until the last use of the rest."""
    return tuple(
        Window(kernel.inputs[0], kernel.id, trace.uses[rest][1], trace.uses[rest][-1])
        for kernel in trace.collectives
        for rest in kernel.outputs[:1]
        if not trace.lasting[rest] and len(trace.uses[rest]) > 1
    )


class _Partitioning:
    def __init__(self, trace: Trace, replicas: int, bucket_bytes: int, stays: Sequence[Window]) -> None:
        self._given, self._replicas = trace, replicas
        self._tensors = list(trace.tensors)
        self._steps = [kernel for kernel in trace.cpu_kernels if kernel.phase is Phase.OPTIMIZER]
        self._before, self._behind = (defaultdict[int, list[Kernel]](list) for _ in range(2))
        """Collectives by the kernel that they come before, or behind."""
        self._parts: dict[int, int] = {}
        """For each gradient the part of its sum that the CPU reads."""
        self._rests = defaultdict[int, list[tuple[range, int]]](list)
        """For each weight of which the GPU has a part, the rests that it has, each for some kernels."""
        self._scatter(bucket_bytes)
        self._gather_for_stays(stays)
        self._gather_updates()
        self._shrink()

    def _part(self, size: int) -> int:
        return -(-size // self._replicas)

    def _add(self, tensor: int, words: str, size: int, *, persistent: bool) -> int:
        like = self._given.tensors[tensor]
        made = Tensor(len(self._tensors), f"{like.name} ({words})", size, like.kind, persistent)
        self._tensors.append(made)
        return made.id

    def _scatter(self, bucket_bytes: int) -> None:
        """Reduce-scatter gradients in buckets."""
        for bucket in filled_buckets(self._given, cpu_inputs(self._given), bucket_bytes):
            for tensor in bucket.tensors:
                size = self._part(self._tensors[tensor].size_bytes)
                self._parts[tensor] = self._add(tensor, "part", size, persistent=False)
            parts = [self._parts[tensor] for tensor in bucket.tensors]
            moved = self._bytes(bucket.tensors) - self._bytes(parts)
            made = _collective(
                "Reduce-scatter", bucket.tensors, parts, phase=Phase.BACKWARD, moved_bytes=moved
            )
            self._behind[bucket.ready].append(made)

    def _gather_for_stays(self, stays: Iterable[Window]) -> None:
        for stay in stays:
            kernels, phase = range(stay.first, stay.last + 1), self._given.kernels[stay.first].phase
            self._before[stay.fetched] += self._gather([stay.tensor], kernels, phase, persistent=False)

    def _gather_updates(self) -> None:
        """All-gather what the CPU has updated and the GPU keeps, behind the last step that updates it."""
        lasting, uses, kernels = self._given.lasting, self._given.uses, range(len(self._given.kernels))
        updated = ((tensor, step.id) for step in self._steps for tensor in step.outputs)
        last = {t: step for t, step in updated if lasting[t] and uses[t] and t not in self._rests}
        for step in self._steps:
            mine = [tensor for tensor in step.outputs if last.get(tensor) == step.id]
            self._behind[step.id] += self._gather(mine, kernels, Phase.OPTIMIZER, persistent=True)

    def _gather(
        self, weights: Sequence[int], kernels: range, phase: Phase, *, persistent: bool
    ) -> Iterator[Kernel]:
        """Add the rests of weights that some kernels use, and yield the collective that brings them."""
        found = dict[int, int]()
        for weight in weights:
            size = self._tensors[weight].size_bytes
            if rest := size - self._part(size):
                found[weight] = self._add(weight, "rest", rest, persistent=persistent)
                self._rests[weight].append((kernels, found[weight]))
        if found:
            moved = self._bytes(found.values())
            yield _collective("All-gather", found, found.values(), phase=phase, moved_bytes=moved)

    def _bytes(self, tensors: Iterable[int]) -> int:
        return sum(self._tensors[tensor].size_bytes for tensor in tensors)

    def _shrink(self) -> None:
        """Leave the replica its part of what has a rest, and of what only its steps use."""
        used = {tensor for step in self._steps for tensor in step.touched}
        for tensor in {*self._rests, *(used & self._given.only_on_cpu)}:
            given = self._tensors[tensor]
            self._tensors[tensor] = replace(given, size_bytes=self._part(given.size_bytes))

    def trace(self) -> Trace:
        """Return the trace."""
        kernels, steps = list[Kernel](), {step.id for step in self._steps}
        for kernel in self._given.kernels:
            mine = self._on_cpu(kernel) if kernel.id in steps else self._on_gpu(kernel)
            kernels += [*self._before[kernel.id], mine, *self._behind[kernel.id]]
        return replace(self._given, tensors=tuple(self._tensors), kernels=numbered(kernels))

    def _on_cpu(self, step: Kernel) -> Kernel:
        inputs = tuple(self._parts.get(tensor, tensor) for tensor in step.inputs)
        moved, parameters = self._part(step.moved_bytes), self._part(step.parameters)
        return replace(step, inputs=inputs, moved_bytes=moved, parameters=parameters)

    def _on_gpu(self, kernel: Kernel) -> Kernel:
        rests = {tensor: self._rest_at(tensor, kernel.id) for tensor in kernel.tensors}
        more = [(tensor, rest) for tensor, rest in rests.items() if rest is not None]
        if not more:
            return kernel
        inputs, outputs = ([rest for t, rest in more if t in ids] for ids in (kernel.inputs, kernel.outputs))
        reads = [kernel.reads_of(t) for t, _ in more if t in kernel.inputs] if kernel.reads else []
        return replace(
            kernel,
            inputs=(*kernel.inputs, *inputs),
            outputs=(*kernel.outputs, *outputs),
            reads=(*kernel.reads, *reads),
        )

    def _rest_at(self, tensor: int, kernel: int) -> int | None:
        """Return the rest of a tensor that a kernel uses next to the replica's part."""
        return next((rest for kernels, rest in self._rests.get(tensor, ()) if kernel in kernels), None)
