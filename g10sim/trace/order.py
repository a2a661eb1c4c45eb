"""Other orders of the kernels of a training step that compute the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest

from g10sim.errors import TraceError, shown
from g10sim.grouping import grouped
from g10sim.trace.model import Device, Kernel, Phase, Tensor, TensorKind, Trace

_Runs = list[list[Kernel]]


def vertical(trace: Trace, place: str = "trace") -> Trace:
    """Return the trace with all micro-batches of a block run before the next block, forward and backward.

    This is the vertical order of GreedySnake (Yue et al., arXiv 2512.17570, 2025): a block's weights and
    gradients are in use once each way in a step instead of once for every micro-batch. Within a block
    micro-batches keep their order, in which gradients are added up; what belongs to no micro-batch stays.

    Raises TraceError, its message begun with ``place``, if the trace has no two micro-batches in a row, if
    they run different blocks, or if one needs what the order by blocks would compute later.
    """
    order: list[Kernel] = []
    several = False
    for marked, stretch in groupby(trace.kernels, lambda kernel: kernel.micro_batch > 0):
        kernels = list(stretch)
        passes = _passes(kernels) if marked else {}
        several |= len(passes) > 1
        order += _by_block(passes, place) if marked else kernels
    if not several:
        raise TraceError(f"{place}: found no two micro-batches in a row; allowed: kernels with micro_batch")
    check_data(trace, trace.kernels, order, place, "vertical order")
    return _ordered(trace, order, trace.tensors, "vertical")


def delayed_optimizer(trace: Trace, place: str = "trace") -> Trace:
    """Return the trace with the update of the weights in the step after, each kernel as late as data allow.

    Kernels of the optimizer on the GPU with which the step ends open the next one instead, where each runs
    right before the first kernel that needs what it writes, or what its followers do: a layer's weights are
    updated right before its forward pass. What needs no kernel follows what it needs itself. Weights are as
    they would be, none is stale. Gradients and whatever else the update reads become persistent, as they
    last from one step to the next.

    Raises TraceError, its message begun with ``place``, if the step does not end with such kernels.
    """
    kernels = tuple(trace.kernels)
    end = next((number for number in range(len(kernels), 0, -1) if not _may_wait(kernels[number - 1])), 0)
    if not 0 < end < len(kernels):
        raise TraceError.at(place, "a step that does not end with the optimizer on the GPU", "one that does")
    rotated = kernels[end:] + kernels[:end]
    turns = _turns(rotated)
    order = sorted(range(len(rotated)), key=lambda number: (turns[number], not _may_wait(rotated[number])))
    lasting = _crossing(kernels[:end], kernels[end:])
    tensors = tuple(replace(one, persistent=True) if one.id in lasting else one for one in trace.tensors)
    return _ordered(trace, [rotated[number] for number in order], tensors, "optimizer delayed")


def _ordered(trace: Trace, kernels: Iterable[Kernel], tensors: Sequence[Tensor], what: str) -> Trace:
    done = trace.origin.get("order")
    origin = {**trace.origin, "order": f"{done}, {what}" if done else what}
    numbered = tuple(kernel.again(number, 0, 0) for number, kernel in enumerate(kernels))
    return replace(trace, kernels=numbered, tensors=tensors, origin=origin)


def _passes(kernels: Iterable[Kernel]) -> Mapping[int, _Runs]:
    """Return for each micro-batch its kernels, those of a block and phase that follow each other together."""
    found = grouped((kernel.micro_batch, kernel) for kernel in kernels)
    return {number: [list(run) for _, run in groupby(own, _part)] for number, own in found.items()}


def _part(kernel: Kernel) -> tuple[Phase, str]:
    return kernel.phase, kernel.block


def _by_block(passes: Mapping[int, _Runs], place: str) -> Iterator[Kernel]:
    """Yield the kernels of micro-batches run by run. Raises TraceError where they do not run alike."""
    first, *others = passes
    for other in others:
        for here, there in zip_longest(passes[first], passes[other]):
            if here is None or there is None or _part(here[0]) != _part(there[0]):
                raise TraceError(
                    f"{place}: found {_described(there)} in micro-batch {other} where micro-batch {first} "
                    f"has {_described(here)}; allowed: micro-batches that run the same blocks"
                )
    for together in zip(*passes.values(), strict=True):
        for run in together:
            yield from run


def _described(run: Sequence[Kernel] | None) -> str:
    if run is None:
        return "nothing"
    where = f" of {shown(run[0].block)}" if run[0].block else ""
    return f"kernel {run[0].id} ({run[0].name}, {run[0].phase.value}{where})"


def check_data(trace: Trace, given: Iterable[Kernel], order: Iterable[Kernel], place: str, name: str) -> None:
    """Raise TraceError unless every kernel in an order uses tensors as the same kernel left them before."""
    before, after = _left_by(trace, given), _left_by(trace, order)
    for use, writer in before.items():
        if after[use] != writer:
            number, tensor = use
            kernel, used = trace.kernels[number], shown(trace.tensors[tensor].name)
            raise TraceError(
                f"{place}: kernel {number} ({kernel.name}) uses {used} as {_left(trace, writer)} left it, "
                f"and in the {name} as {_left(trace, after[use])} did; allowed: micro-batches that "
                "need each other's results within a block at most"
            )


def _left(trace: Trace, writer: int) -> str:
    return f"kernel {writer} ({trace.kernels[writer].name})" if writer >= 0 else "the step before"


def _left_by(trace: Trace, kernels: Iterable[Kernel]) -> dict[tuple[int, int], int]:
    """Return the last writer (-1: none) of every tensor, except for scratch space, that every kernel uses."""
    writers: dict[int, int] = {}
    found: dict[tuple[int, int], int] = {}
    for kernel in kernels:
        for tensor in kernel.touched:
            if trace.tensors[tensor].kind is not TensorKind.WORKSPACE:
                found[kernel.id, tensor] = writers.get(tensor, -1)
        writers.update((tensor, kernel.id) for tensor in kernel.outputs)
    return found


def _may_wait(kernel: Kernel) -> bool:
    return kernel.phase is Phase.OPTIMIZER and kernel.device is Device.GPU


def _turns(kernels: Sequence[Kernel]) -> list[int]:
    """Return for each kernel its place or, if it may wait, that of the kernel right before which it runs."""
    count = len(kernels)
    turns = list(range(count))
    used: dict[int, int] = {}
    written: dict[int, int] = {}
    for place in reversed(range(count)):
        kernel = kernels[place]
        if _may_wait(kernel):
            due = [written.get(tensor, count) for tensor in kernel.inputs]
            turns[place] = min(due + [used.get(tensor, count) for tensor in kernel.outputs], default=count)
        used.update((tensor, min(turns[place], used.get(tensor, count))) for tensor in kernel.touched)
        written.update((tensor, min(turns[place], written.get(tensor, count))) for tensor in kernel.outputs)
    _follow(kernels, turns)
    return turns


def _follow(kernels: Sequence[Kernel], turns: list[int]) -> None:
    """Let kernels that nothing waits for follow the last one that they have to."""
    used: dict[int, int] = {}
    written: dict[int, int] = {}
    for place, kernel in enumerate(kernels):
        if turns[place] == len(kernels):
            since = [written.get(tensor, 0) for tensor in kernel.inputs]
            turns[place] = max([place, *since, *(used.get(tensor, 0) for tensor in kernel.outputs)])
        used.update((tensor, max(turns[place], used.get(tensor, 0))) for tensor in kernel.touched)
        written.update((tensor, max(turns[place], written.get(tensor, 0))) for tensor in kernel.outputs)


def _crossing(before: Iterable[Kernel], after: Iterable[Kernel]) -> set[int]:
    """Return the tensors that some kernels leave and later ones read before they write them."""
    left = {tensor for kernel in before for tensor in kernel.touched}
    found, written = set[int](), set[int]()
    for kernel in after:
        found.update(left.intersection(kernel.inputs) - written)
        written.update(kernel.outputs)
    return found
