"""Kernels of the optimizer that the CPU takes over, what they share with the GPU, and the trace with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter

from g10sim.grouping import grouped
from g10sim.trace.model import Device, Kernel, Phase, Tensor, TensorKind, TimeSource, Trace

_KEPT_TOGETHER = TensorKind.WEIGHT, TensorKind.OPTIMIZER_STATE
_BYTES = {"float64": 8, "float32": 4}


def parameter_bytes(trace: Trace, given: int | None) -> int:
    """Return the bytes of a gradient of one parameter: those given, or of captured weights; else 2."""
    return given or _BYTES.get(trace.origin.get("dtype", ""), 2)


def gradient_bytes(trace: Trace, kernels: Collection[int]) -> int:
    """Return the bytes that kernels read of tensors that live within the iteration: gradients, mostly."""
    read = {tensor for kernel in kernels for tensor in trace.kernels[kernel].inputs}
    return sum(trace.tensors[tensor].size_bytes for tensor in read if not trace.lasting[tensor])


@dataclass(frozen=True)
class Takeover:
    """The kernels that the CPU ``takes`` over from the GPU; no other kernel reads what these alone make.

    The trace says of no kernel how many parameters it updates: together they are the bytes of the gradients
    that come from the GPU over ``bytes_per_gradient``, and each kernel that updates a persistent tensor has
    its share by the bytes that it moves; where some kernel does not say these, by the bytes of gradients that
    it reads.
    """

    trace: Trace
    takes: frozenset[int]
    bytes_per_gradient: int

    @classmethod
    def of(cls, trace: Trace, share: float, bytes_per_gradient: int) -> Takeover:
        """Let the CPU take over the last part of the optimizer: ``share`` of the gradients' bytes."""
        movable = _movable(trace, frozenset())
        updates = [kernel for kernel in sorted(movable) if _updates(trace, trace.kernels[kernel])]
        left = (1 - share) * gradient_bytes(trace, updates)
        kept = set[int]()
        for kernel in updates:
            left -= gradient_bytes(trace, [kernel])
            if left < 0:
                break
            kept.add(kernel)
        return cls(trace, _movable(trace, frozenset(kept)) if kept else movable, bytes_per_gradient)

    @cached_property
    def on_gpu(self) -> tuple[Kernel, ...]:
        """The kernels that the GPU keeps."""
        kernels = self.trace.kernels
        return tuple(one for one in kernels if one.device is Device.GPU and one.id not in self.takes)

    @cached_property
    def weights(self) -> frozenset[int]:
        """Persistent tensors that the CPU updates, and that the GPU reads only."""
        written = {tensor for kernel in self.on_gpu for tensor in kernel.outputs}
        found = {tensor for kernel in self.takes for tensor in self.trace.kernels[kernel].outputs}
        shared = found.intersection(tensor for kernel in self.on_gpu for tensor in kernel.touched) - written
        return frozenset(tensor for tensor in shared if self.trace.lasting[tensor])

    @cached_property
    def parameters(self) -> dict[int, int]:
        """Numbers of parameters of the kernels that update any."""
        trace = self.trace
        updates = [one for one in self.takes if _updates(trace, trace.kernels[one])]
        made = {tensor for kernel in self.on_gpu for tensor in kernel.outputs}
        read = {tensor for kernel in self.takes for tensor in trace.kernels[kernel].inputs}
        gradients = [tensor for tensor in read & made if not trace.lasting[tensor]]
        total = sum(trace.tensors[tensor].size_bytes for tensor in gradients) // self.bytes_per_gradient
        moved = {kernel: trace.kernels[kernel].moved_bytes for kernel in sorted(updates)}
        shares = moved if all(moved.values()) else {one: gradient_bytes(trace, [one]) for one in moved}
        whole = max(1, sum(shares.values()))
        return {kernel: total * share // whole for kernel, share in shares.items() if total * share >= whole}


def _updates(trace: Trace, kernel: Kernel) -> bool:
    """Return whether a kernel updates a persistent tensor by one that lives within the iteration."""
    tensors = trace.tensors
    writes = any(tensors[tensor].persistent for tensor in kernel.outputs)
    return writes and any(not tensors[tensor].persistent for tensor in kernel.inputs)


def _movable(trace: Trace, kept: frozenset[int]) -> frozenset[int]:
    """Return the kernels of the optimizer whose results no kernel on the GPU reads in this iteration.

    Those that use weights and states of the ``kept`` ones stay with them.
    """
    kernels, found = trace.kernels, set[int]()
    lasting = (t for kernel in kept for t in kernels[kernel].touched if trace.lasting[t])
    near = {tensor for tensor in lasting if trace.tensors[tensor].kind in _KEPT_TOGETHER}
    needed = {tensor for kernel in kept for tensor in kernels[kernel].inputs}
    for kernel in reversed(kernels):
        makes = [tensor for tensor in kernel.outputs if not trace.lasting[tensor]]
        may = kernel.phase is Phase.OPTIMIZER and kernel.device is Device.GPU and kernel.id not in kept
        if may and near.isdisjoint(kernel.touched) and needed.isdisjoint(makes):
            found.add(kernel.id)
        else:
            needed.update(kernel.touched)
    return frozenset(found)


class CpuLaunches:
    """Positions at which the CPU can be told to run the kernels that it takes over.

    Position p is that before the GPU's kernel p of the trace. Kernels that use a tensor which one of them
    writes stay in order, unless they are launches of one operator, which update different parts of it.
    ``arrivals`` are positions before which tensors are not in host memory.
    """

    def __init__(self, takeover: Takeover, arrivals: Mapping[int, int]) -> None:
        self._takes, end = takeover.takes, len(takeover.trace.kernels)
        calls = _calls(takeover.trace.kernels, self._takes)
        self.earliest = self._positions(calls, max, 0, arrivals, after=1)
        self.latest = self._positions(reversed(calls), min, end, {}, after=0)
        others = (kernel.id for kernel in takeover.on_gpu if kernel.phase is not Phase.OPTIMIZER)
        self.end = max(others, default=-1) + 1
        """Position after the last kernel on the GPU that is not part of the optimizer."""

    def _positions(
        self,
        calls: Iterable[Sequence[Kernel]],
        choose: Callable[[Iterable[int]], int],
        border: int,
        arrivals: Mapping[int, int],
        *,
        after: int,
    ) -> dict[int, int]:
        """Return the positions next to the ``border`` that the calls which come first leave for the others.

        Each kernel of the GPU is so much ``after`` its position.
        """
        used, written = defaultdict[int, int](lambda: border), defaultdict(lambda: border, arrivals)
        found = dict[int, int]()
        for call in calls:
            for kernel in call:
                found[kernel.id] = kernel.id + after
                if kernel.id in self._takes:
                    reads = (written[tensor] for tensor in kernel.inputs)
                    found[kernel.id] = choose([border, *reads, *(used[tensor] for tensor in kernel.outputs)])
            for kernel in call:
                for noted, tensors in ((used, kernel.touched), (written, kernel.outputs)):
                    for tensor in tensors:
                        noted[tensor] = choose((noted[tensor], found[kernel.id]))
        return {kernel: found[kernel] for kernel in sorted(self._takes)}


def _calls(kernels: Sequence[Kernel], takes: frozenset[int]) -> list[list[Kernel]]:
    """Group kernels: the launches of one operator on lists of tensors are together, each other is alone.

    Such launches follow each other under one name, and update different parts of a tensor that they share:
    it is input of all of them or of none. Their order is free.
    """
    calls, roles = list[list[Kernel]](), dict[int, tuple[bool, bool]]()
    for kernel in kernels:
        mine = {t: (t in kernel.inputs, t in kernel.outputs) for t in kernel.touched}
        alike = all(roles.get(t, role) == role or not (role[1] or roles[t][1]) for t, role in mine.items())
        last = calls[-1][-1] if calls else kernel
        are_taken = kernel.id in takes and last.id in takes
        if calls and are_taken and last.name == kernel.name and alike:
            calls[-1].append(kernel)
        else:
            calls.append([kernel])
            roles = {}
        roles |= mine
    return calls


def cpu_inputs(trace: Trace, takes: Collection[int] = ()) -> tuple[tuple[int, int], ...]:
    """Return the tensors of the iteration that the GPU makes for the CPU, in the order of completion.

    Each with the last kernel that writes it before one on the CPU, or one that the CPU ``takes``, reads it.
    """
    writers, found = dict[int, int](), dict[int, int]()
    for kernel in trace.kernels:
        if kernel.device is not Device.CPU and kernel.id not in takes:
            writers.update(dict.fromkeys(kernel.outputs, kernel.id))
        else:
            for tensor in kernel.inputs:
                if tensor in writers and not trace.lasting[tensor]:
                    found.setdefault(tensor, writers[tensor])
    return tuple(sorted(found.items(), key=itemgetter(1)))


def partial_sums(trace: Trace, gradients: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return gradients with their last writers in every micro-batch, in the order of these.

    ``gradients`` have the last writers of all.
    """
    lasts, found = dict(gradients), dict[tuple[int, int], int]()
    for kernel in trace.kernels:
        for tensor in kernel.outputs:
            if kernel.id <= lasts.get(tensor, -1):
                found[tensor, kernel.micro_batch] = kernel.id
    return tuple(sorted(((tensor, last) for (tensor, _), last in found.items()), key=itemgetter(1)))


@dataclass(frozen=True)
class Bucket:
    """Gradients that leave the GPU together once kernel ``ready`` has ended."""

    tensors: tuple[int, ...]
    ready: int


def filled_buckets(
    trace: Trace, gradients: Sequence[tuple[int, int]], bucket_bytes: int
) -> tuple[Bucket, ...]:
    """Group gradients with their writers, in order of completion: a bucket leaves when it is full.

    It also leaves when the next gradient does not fit into it, and with the last one of a micro-batch. What
    fills a bucket alone leaves with what waits. Source: DeepSpeed's stage_1_and_2.py,
    ``reduce_independent_p_g_buckets_and_remove_grads``.
    """
    buckets, filling, size = list[Bucket](), dict[int, None](), 0
    ends = set({trace.kernels[ready].micro_batch: ready for _, ready in gradients}.values())
    for ready, group in groupby(gradients, itemgetter(1)):
        more = dict.fromkeys(tensor for tensor, _ in group)
        added = sum(trace.tensors[tensor].size_bytes for tensor in more)
        if filling and size + added > bucket_bytes > added and ready not in ends:
            buckets.append(Bucket(tuple(filling), ready))
            filling, size = {}, 0
        filling, size = filling | more, size + added
        if size >= bucket_bytes or ready in ends:
            buckets.append(Bucket(tuple(filling), ready))
            filling, size = {}, 0
    return tuple(buckets)


def added_kernel(
    name: str,
    inputs: Iterable[int],
    outputs: Iterable[int],
    *,
    phase: Phase = Phase.OPTIMIZER,
    device: Device = Device.GPU,
    duration: int = 0,
    moved_bytes: int = 0,
) -> Kernel:
    """Return a kernel that the given trace does not have; it is numbered with all others."""
    facts = tuple(inputs), tuple(outputs), phase
    source = TimeSource.SYNTHETIC
    return Kernel(0, name, duration, *facts, moved_bytes=moved_bytes, time_source=source, device=device)


def numbered(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels of a trace, each with its place in their order as its id."""
    return tuple(one.with_tensors(one.inputs, one.outputs, place) for place, one in enumerate(kernels))


@dataclass(frozen=True)
class Schedule:
    """Times at which steps on the CPU run.

    ``overlap``: each once the bucket with the last of its gradients has left; otherwise all of them after the
    last gradient. Buckets have ``bucket_bytes``; with 1, what one kernel makes is a bucket. ``delayed``:
    during the next iteration, whose weights are those of one step before. Without ``returns`` an iteration
    ends with the last step, otherwise when its weights are back. Before a step the CPU passes over
    ``pass_bytes`` for each of its parameters, and is busy for ``call_seconds`` for each weight. Before the
    first one it is busy for ``launch_seconds`` for each kernel of the GPU.
    """

    overlap: bool
    bucket_bytes: int = 1
    delayed: bool = False
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
        read = {tensor for _, kernel in self._steps for tensor in kernel.inputs}
        self._last = {tensor: kernel.id for _, kernel in self._steps for tensor in kernel.outputs}
        weights = [tensor for tensor in self._last if tensor in takeover.weights]
        self._copies = {tensor: self._added(tensor, "host copy") for tensor in weights if tensor in read}
        self._next = {t: self._added(t, "next") for t in weights} if schedule.delayed else {}
        self._signal = [] if schedule.returns or schedule.delayed else [len(self._tensors)]
        """A tensor that the last step writes, if the end of the iteration waits for it."""
        self._tensors += [Tensor(t, "signal", 1, TensorKind.OTHER, persistent=False) for t in self._signal]

    def _added(self, tensor: int, words: str) -> int:
        like = self._tensors[tensor]
        number, kind = len(self._tensors), TensorKind.OPTIMIZER_STATE
        self._tensors.append(Tensor(number, f"{like.name} ({words})", like.size_bytes, kind, persistent=True))
        return number

    def _placed(self) -> list[tuple[int, Kernel]]:
        """Return position and kernel of every step on the CPU, in order."""
        arrivals = dict[int, int]()
        if self._schedule.overlap:
            for bucket in filled_buckets(self._given, self._gradients, self._schedule.bucket_bytes):
                arrivals.update(dict.fromkeys(bucket.tensors, bucket.ready + 1))
        launches = CpuLaunches(self._takeover, arrivals)
        wanted = 0 if self._schedule.overlap else launches.end
        latest = launches.latest.items()
        places = ((min(last, max(wanted, launches.earliest[kernel])), kernel) for kernel, last in latest)
        return [(position, self._given.kernels[kernel]) for position, kernel in sorted(places)]

    def trace(self) -> Trace:
        """Return the trace."""
        launched = len(self._given.kernels) - len(self._takeover.takes)
        kernels = list(self._busy("Launch kernels", self._schedule.launch_seconds * launched, []))
        first, steps = self._steps[0][0], grouped(self._steps)
        for position in range(len(self._given.kernels) + 1):
            if position == first:
                kernels += self._before_the_steps(first)
            for taken in steps.get(position, ()):
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
        outputs += self._signal if kernel.id == self._steps[-1][1].id else []
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
        steps, weights = reversed(self._steps), self._takeover.weights
        updated = ([tensor for tensor in step.outputs if tensor in weights] for _, step in steps)
        awaited = self._signal or next(filter(None, updated), [])
        if awaited and not self._schedule.delayed:
            yield added_kernel("Step has ended", awaited, [])
