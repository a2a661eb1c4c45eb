"""The trace of a step of training whose optimizer the CPU has taken over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from g10sim.grouping import grouped
from g10sim.policies.planning.offloading.takeover import (
    Launches,
    Takeover,
    added_kernel,
    cpu_inputs,
    filled_buckets,
    numbered,
)
from g10sim.trace.model import Device, Kernel, Tensor, TensorKind, Trace


@dataclass(frozen=True)
class Schedule:
    """Times at which steps on the CPU run.

    ``overlap``: each once the bucket with the last of its gradients has left; otherwise all of them after the
    last gradient. ``delayed``: during the next iteration, whose weights are those of one step before.
    Buckets have ``bucket_bytes``. Without ``returns`` an iteration ends with the last step, otherwise when
    its weights are back. Before a step the CPU passes over ``pass_bytes`` for each of its parameters, and
    is busy for ``call_seconds`` for each weight. Before the first one it is busy for ``launch_seconds`` for
    each kernel of the GPU.
    """

    overlap: bool
    delayed: bool
    bucket_bytes: int
    returns: bool = True
    pass_bytes: int = 0
    call_seconds: float = 0.0
    launch_seconds: float = 0.0


def taken_over(takeover: Takeover, schedule: Schedule) -> Trace:
    """Return the trace in which the CPU runs the kernels that it takes over.

    Weights that these read have a copy in host memory, which is read instead. A kernel on the CPU without
    duration sees all gradients before the first step, unless steps ``overlap``. A kernel on the GPU without
    duration waits at the end for the weights of the last step; with ``delayed`` steps such kernels put the
    weights of the step before in place.
    """
    return _Rewriting(takeover, schedule).trace() if takeover.takes else takeover.trace


class _Rewriting:
    def __init__(self, takeover: Takeover, schedule: Schedule) -> None:
        self._takeover, self._schedule, self._given = takeover, schedule, takeover.trace
        self._tensors = list(self._given.tensors)
        self._gradients = cpu_inputs(self._given, takeover.takes)
        self._steps = self._placed()
        taken = [self._given.kernels[kernel] for _, kernel in self._steps]
        read = {tensor for kernel in taken for tensor in kernel.inputs}
        weights = dict.fromkeys(t for kernel in taken for t in kernel.outputs if t in takeover.weights)
        self._last = {tensor: kernel.id for kernel in taken for tensor in kernel.outputs}
        self._copies = {tensor: self._added(tensor, "host copy") for tensor in weights if tensor in read}
        self._next = {t: self._added(t, "next") for t in weights} if schedule.delayed else {}
        self._signal = [] if schedule.returns or schedule.delayed else [len(self._tensors)]
        """A tensor that the last step writes, if the end of the iteration waits for it."""
        signals = (Tensor(one, "signal", 1, TensorKind.OTHER, persistent=False) for one in self._signal)
        self._tensors.extend(signals)

    def _added(self, tensor: int, words: str) -> int:
        like = self._tensors[tensor]
        number, kind = len(self._tensors), TensorKind.OPTIMIZER_STATE
        self._tensors.append(Tensor(number, f"{like.name} ({words})", like.size_bytes, kind, persistent=True))
        return number

    def _placed(self) -> list[tuple[int, int]]:
        """Return position and number of every kernel for the CPU, in order."""
        arrivals = dict[int, int]()
        if self._schedule.overlap:
            for bucket in filled_buckets(self._given, self._gradients, self._schedule.bucket_bytes):
                arrivals.update(dict.fromkeys(bucket.tensors, bucket.ready + 1))
        launches = Launches(self._takeover, arrivals)
        wanted = 0 if self._schedule.overlap else launches.end
        return sorted(
            (min(latest, max(wanted, launches.earliest[kernel])), kernel)
            for kernel, latest in launches.latest.items()
        )

    def trace(self) -> Trace:
        """Return the trace."""
        launched = len(self._given.kernels) - len(self._takeover.takes)
        kernels = list(self._busy("Launch kernels", self._schedule.launch_seconds * launched, []))
        first, steps = self._steps[0][0], grouped(self._steps)
        for position in range(len(self._given.kernels) + 1):
            if position == first:
                kernels += self._before_the_steps(first)
            for taken in map(self._given.kernels.__getitem__, steps.get(position, ())):
                kernels += [*self._before_step(taken), self._step(taken)]
            if position < len(self._given.kernels) and position not in self._takeover.takes:
                kernels.append(self._given.kernels[position])
        kernels += self._at_the_end()
        return replace(self._given, tensors=tuple(self._tensors), kernels=numbered(kernels))

    def _step(self, kernel: Kernel) -> Kernel:
        inputs = [self._copies.get(tensor, tensor) for tensor in kernel.inputs]
        outputs = list[int]()
        for tensor in kernel.outputs:
            outputs += [self._copies[tensor]] if tensor in self._copies else []
            if tensor not in self._copies or self._last[tensor] == kernel.id:
                outputs.append(self._next.get(tensor, tensor))
        outputs += self._signal if kernel.id == self._steps[-1][1] else []
        return replace(
            kernel,
            duration=0,
            inputs=tuple(dict.fromkeys(inputs)),
            outputs=tuple(dict.fromkeys(outputs)),
            fault_profile=None,
            reads=(),
            device=Device.CPU,
            parameters=self._takeover.parameters.get(kernel.id, 0),
        )

    def _before_step(self, kernel: Kernel) -> Iterable[Kernel]:
        weights = [t for t in kernel.outputs if t in self._takeover.weights and self._last[t] == kernel.id]
        gradients = [tensor for tensor in kernel.inputs if not self._given.lasting[tensor]]
        yield from self._busy("Call the optimizer", self._schedule.call_seconds * len(weights), gradients)
        moved = self._schedule.pass_bytes * self._takeover.parameters.get(kernel.id, 0)
        if moved:
            yield added_kernel("Scale and round", gradients, [], device=Device.CPU, moved_bytes=moved)

    def _busy(self, name: str, seconds: float, inputs: Sequence[int]) -> Iterable[Kernel]:
        ticks = round(seconds * self._given.ticks_per_second)
        if ticks:
            yield added_kernel(name, inputs, [], device=Device.CPU, duration=ticks)

    def _before_the_steps(self, position: int) -> Iterable[Kernel]:
        for tensor, source in self._next.items():
            yield added_kernel("Replace weights", [source], [tensor])
        is_complete = all(ready < position for _, ready in self._gradients)
        if is_complete and self._gradients and not self._schedule.overlap:
            # What crosses is known when it has left; that is one number for each gradient.
            gradients = [tensor for tensor, _ in self._gradients]
            yield added_kernel("All gradients", gradients, [], device=Device.CPU, moved_bytes=len(gradients))

    def _at_the_end(self) -> Iterable[Kernel]:
        steps = [self._given.kernels[kernel] for _, kernel in reversed(self._steps)]
        updated = ([t for t in step.outputs if t in self._takeover.weights] for step in steps)
        awaited = self._signal or next(filter(None, updated), [])
        if awaited and not self._schedule.delayed:
            yield added_kernel("Step has ended", awaited, [])
