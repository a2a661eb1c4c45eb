"""Stages of a pipeline: a training step cut by layers, each stage with its micro-batches in 1F1B order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, zip_longest
from typing import NamedTuple

from g10sim.errors import TraceError, shown
from g10sim.trace.model import Device, Kernel, Phase, TimeSource, Trace
from g10sim.trace.order import check_data


class _Pass(NamedTuple):
    """The forward or the backward pass of a micro-batch, or what runs between micro-batches.

    ``stretch`` counts kernels of micro-batches, and of none, that follow each other in the step.
    """

    stretch: int
    phase: Phase
    micro_batch: int


class _Crossing(NamedTuple):
    """A transfer from the pass of one stage that makes tensors to the pass of another that reads them."""

    source: int
    made: _Pass
    target: int
    read: _Pass


def pipeline_stages(trace: Trace, begin: Sequence[str], place: str = "trace") -> tuple[Trace, ...]:
    """Return the trace of every stage of a pipeline, each for its own GPU.

    ``begin`` names the blocks with which the stages after the first begin. A stage runs the forward pass up
    to the next stage's block, the backward pass from there, and what else uses its tensors. Forward and
    backward passes take turns, after as many forward passes as stages follow: 1F1B, the order of
    PipeDream-Flush (Narayanan et al., ICML 2021) and Megatron-LM. What a stage makes and another one reads
    crosses at the end of the pass that makes it, into a tensor of the reader's, which is mapped one pass
    ahead. Kernels on LINKS send and receive; those of one transfer have one name. What no kernel writes is
    in every stage that reads it.

    Raises TraceError, its message begun with ``place``, if the trace has no micro-batches, if blocks do not
    cut it, or if a tensor would have to cross more than once, such as a weight that two stages share.
    """
    stages = _Stages(trace, tuple(begin), place)
    return tuple(map(stages.trace_of, range(len(begin) + 1)))


def _passes(trace: Trace) -> dict[_Pass, list[Kernel]]:
    """Return the kernels of every pass. A backward pass begins with its first kernel of that phase."""
    found: dict[_Pass, list[Kernel]] = {}
    stretches = groupby(trace.kernels, lambda kernel: kernel.micro_batch > 0)
    for number, (_, kernels) in enumerate(stretches):
        turned = set[int]()
        for kernel in kernels:
            if kernel.micro_batch and kernel.phase is Phase.BACKWARD:
                turned.add(kernel.micro_batch)
            phase = Phase.BACKWARD if kernel.micro_batch in turned else Phase.FORWARD
            found.setdefault(_Pass(number, phase, kernel.micro_batch), []).append(kernel)
    return found


def _without_held(trace: Trace) -> tuple[Trace, tuple[int, ...]]:
    """Return a trace whose last kernel has no inputs that it moves no bytes of, and these inputs.

    In captures they are what the step leaves behind, such as gradients that the next one drops.
    """
    *others, last = trace.kernels
    ends = accumulate(trace.tensors[tensor].size_bytes for tensor in (*last.outputs, *last.inputs))
    count = sum(end <= last.moved_bytes for end in ends) - len(last.outputs)
    if last.reads or not last.moved_bytes or count < 0:
        return trace, ()
    kept = replace(last, inputs=last.inputs[:count])
    return replace(trace, kernels=(*others, kept)), last.inputs[count:]


@dataclass
class _Copies:
    """Stages that have the present contents of a tensor, those that ever had any, and those that sent it."""

    current: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)
    senders: set[int] = field(default_factory=set)
    writer: tuple[int, _Pass] | None = None


class _Stages:
    def __init__(self, trace: Trace, begin: tuple[str, ...], place: str) -> None:
        self._begin, self._place = begin, place
        self._trace, self._held = _without_held(trace)
        self._passes = _passes(self._trace)
        self._homes: dict[int, set[int]] = {}
        """For each tensor the stages that use it."""
        self._stages: dict[int, int] = {}
        """For each kernel its stage."""
        self._cut_passes()
        self._check_lasting()
        self._share_out_rest()
        self._crossings: dict[_Crossing, list[int]] = {}
        self._connect()

    def _error(self, found: str, allowed: str) -> TraceError:
        return TraceError.at(self._place, found, allowed)

    def _put(self, kernel: Kernel, stage: int) -> None:
        self._stages[kernel.id] = stage
        for tensor in kernel.touched:
            self._homes.setdefault(tensor, set()).add(stage)

    def _cut_passes(self) -> None:
        """Give every kernel of a micro-batch its stage."""
        passes = [one for one in self._passes if one.micro_batch]
        if not passes:
            raise self._error("no micro-batches", "kernels with micro_batch")
        for one in passes:
            is_backward = one.phase is Phase.BACKWARD
            cuts = [self._boundary(block, one) for block in self._begin]
            if sorted(set(cuts), reverse=is_backward) != cuts:
                raise self._error(
                    f"stages that begin with {', '.join(map(shown, self._begin))}",
                    "blocks in the order of the forward pass, which the backward pass runs the other way",
                )
            for number, kernel in enumerate(self._passes[one]):
                beyond = [number < cut if is_backward else number >= cut for cut in cuts]
                self._put(kernel, sum(beyond))

    def _boundary(self, block: str, one: _Pass) -> int:
        """Return where a block begins in a forward pass, or ends in a backward pass."""
        blocks = [kernel.block for kernel in self._passes[one]]
        if block not in blocks:
            raise self._error(
                f"no block {shown(block)} in the {one.phase} pass of micro-batch {one.micro_batch}",
                ", ".join(dict.fromkeys(filter(None, blocks))) or "kernels with layers",
            )
        is_backward = one.phase is Phase.BACKWARD
        return len(blocks) - blocks[::-1].index(block) if is_backward else blocks.index(block)

    def _share_out_rest(self) -> None:
        """Give kernels of no micro-batch the stage that has their data, those without any the first one."""
        rest = [kernel for kernel in self._trace.kernels if kernel.id not in self._stages]
        while rest:
            waiting = list[Kernel]()
            for kernel in rest:
                stage = self._home(kernel)
                if stage is None:
                    waiting.append(kernel)
                else:
                    self._put(kernel, stage)
            if len(waiting) == len(rest):
                self._put(waiting.pop(0), 0)
            rest = waiting

    def _home(self, kernel: Kernel) -> int | None:
        """Return the stage that has a kernel's data, or None where none has any yet."""
        written, homes = self._trace.written, self._homes
        found = {stage for tensor in kernel.touched if tensor in written for stage in homes.get(tensor, ())}
        if len(found) > 1:
            raise self._error(
                f"kernel {kernel.id} ({kernel.name}), of no micro-batch, with tensors of {len(found)} stages",
                "an optimizer that updates one weight at a time (foreach=False), nothing over all weights",
            )
        return next(iter(found), None)

    def _check_lasting(self) -> None:
        written = self._trace.written
        for tensor, stages in self._homes.items():
            given = self._trace.tensors[tensor]
            if given.persistent and tensor in written and len(stages) > 1:
                raise self._error(
                    f"{shown(given.name)}, which lasts, is written, and is used by {len(stages)} stages",
                    "weights that one stage uses",
                )

    def _connect(self) -> None:
        """Find what crosses between stages."""
        copies: dict[int, _Copies] = {}
        for one, kernels in self._passes.items():
            for kernel in kernels:
                stage = self._stages[kernel.id]
                for tensor in kernel.inputs:
                    self._read(tensor, copies.setdefault(tensor, _Copies()), stage, one)
                for tensor in kernel.outputs:
                    self._write(tensor, copies.setdefault(tensor, _Copies()), stage, one)

    def _read(self, tensor: int, copies: _Copies, stage: int, one: _Pass) -> None:
        if stage in copies.current:
            return
        if copies.writer is not None:
            source, made = copies.writer
            if stage in copies.ever:
                raise self._crosses_again(tensor)
            self._crossings.setdefault(_Crossing(source, made, stage, one), []).append(tensor)
            copies.senders.add(source)
        copies.current.add(stage)
        copies.ever.add(stage)

    def _write(self, tensor: int, copies: _Copies, stage: int, one: _Pass) -> None:
        if stage in copies.senders:
            raise self._crosses_again(tensor)
        copies.current = {stage}
        copies.ever.add(stage)
        copies.writer = stage, one

    def _crosses_again(self, tensor: int) -> TraceError:
        return self._error(
            f"{shown(self._trace.tensors[tensor].name)}, which a stage has sent and uses with other contents",
            "tensors that cross between stages once",
        )

    def trace_of(self, stage: int) -> Trace:
        """Return the trace of a stage."""
        order, stages = list(self._order(stage)), self._stages
        own = {one: [kernel for kernel in self._passes[one] if stages[kernel.id] == stage] for one in order}
        given = [kernel for kernel in self._trace.kernels if stages[kernel.id] == stage]
        moved = [kernel for one in order for kernel in own[one]]
        check_data(self._trace, given, moved, self._place, "1F1B order")
        kernels = list[Kernel]()
        for now, ahead in zip([None, *order], [*order, None], strict=True):
            kernels += self._transfers(stage, ahead, inward=True)
            kernels += own.get(now, ()) if now else ()
            kernels += self._transfers(stage, now, inward=False)
        self._hold(kernels, stage)
        return self._numbered(kernels, stage)

    def _hold(self, kernels: list[Kernel], stage: int) -> None:
        """Let the last kernel of a stage read what its kernels use and the step leaves behind."""
        number = max(n for n, kernel in enumerate(kernels) if kernel.device is not Device.LINKS)
        last = kernels[number]
        held = [one for one in self._held if stage in self._homes.get(one, ()) and one not in last.inputs]
        reads = (*last.reads, *[1] * len(held)) if last.reads else ()
        kernels[number] = replace(last, inputs=(*last.inputs, *held), reads=reads)

    def _order(self, stage: int) -> Iterator[_Pass]:
        """Yield passes in the order in which a stage runs them."""
        for _, together in groupby(self._passes, lambda one: one.stretch):
            passes = list(together)
            forward = [one for one in passes if one.phase is not Phase.BACKWARD]
            backward = [one for one in passes if one.phase is Phase.BACKWARD]
            first = len(self._begin) - stage
            yield from forward[:first]
            for pair in zip_longest(forward[first:], backward):
                yield from filter(None, pair)

    def _transfers(self, stage: int, one: _Pass | None, *, inward: bool) -> Iterator[Kernel]:
        """Yield what a stage receives before a pass, or sends after it."""
        for number, (crossing, tensors) in enumerate(self._crossings.items()):
            end = (crossing.target, crossing.read) if inward else (crossing.source, crossing.made)
            if one is not None and end == (stage, one):
                yield Kernel(
                    id=0,
                    name=f"Transfer {number} from stage {crossing.source} to {crossing.target}",
                    duration=0,
                    inputs=() if inward else tuple(tensors),
                    outputs=tuple(tensors) if inward else (),
                    phase=one.phase,
                    moved_bytes=sum(self._trace.tensors[tensor].size_bytes for tensor in tensors),
                    time_source=TimeSource.SYNTHETIC,
                    device=Device.LINKS,
                )

    def _numbered(self, kernels: Sequence[Kernel], stage: int) -> Trace:
        used = sorted({tensor for kernel in kernels for tensor in kernel.touched})
        new = {old: number for number, old in enumerate(used)}
        return replace(
            self._trace,
            tensors=tuple(self._trace.tensors[old].again(new[old], 0, 0) for old in used),
            kernels=tuple(one.renumbered(new).again(number, 0, 0) for number, one in enumerate(kernels)),
            origin={**self._trace.origin, "stage": f"{stage + 1} of {len(self._begin) + 1}"},
            given_ids=(),
        )
