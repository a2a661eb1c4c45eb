"""Makes a trace of many steps in which layers of one kind are stored once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeAlias

from g10sim.analysis.gpus import NANOSECONDS_PER_SECOND
from g10sim.capture.generation import KernelTemplate, Reference, StepTemplate
from g10sim.grouping import grouped
from g10sim.trace.model import Kernel, Tensor, Trace
from g10sim.trace.repetition import Block, joined, shifted

Key: TypeAlias = tuple[int, int]
"""A tensor of a generation: -1 and the key of a lasting one, or its step and number there."""

_LAYER = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")
_LONGEST_PATTERN = 8
_FEWEST_UNITS = 3


@dataclass(frozen=True)
class Layout:
    """Order of the tensors of a generation: those of no layer first, then a row for each unit of layers.

    A unit is as many layers as it takes until they come again. ``rows`` hold the tensors of each, alike in
    number, sizes and kinds; without units there are none.
    """

    apart: Sequence[Key]
    rows: Sequence[Sequence[Key]] = ()
    period: int = 1

    @property
    def since(self) -> int:
        """The first id in a row."""
        return len(self.apart)

    @property
    def shift(self) -> int:
        """The number of tensors in a row."""
        return len(self.rows[0]) if self.rows else 0

    def numbers(self) -> dict[Key, int]:
        """Return the id of each tensor."""
        ordered = [*self.apart, *(key for row in self.rows for key in row)]
        return {key: number for number, key in enumerate(ordered)}

    def unit(self, kernel: KernelTemplate) -> int | None:
        """Return the unit that a kernel belongs to; None for one in no layer."""
        layer = _layer(kernel.cost.layer.path)
        return None if layer is None or not self.rows else layer // self.period


def _layer(path: str) -> int | None:
    """Return the first number in the path of a module: its place in a list of layers."""
    found = _LAYER.search(path)
    return int(found[0]) if found else None


def any_layer(name: str) -> str:
    """Return the path of a module, or the name of a tensor, with a star in place of its layer."""
    return _LAYER.sub("*", name, count=1)


class Steps:
    """Steps that follow each other, and the tensors that they use."""

    def __init__(self, steps: Sequence[StepTemplate]) -> None:
        self.steps = steps
        self.tensors = {(-1, key): tensor for key, tensor in steps[0].lasting.items()}
        for number, step in enumerate(steps):
            self.tensors.update({(number, tensor.id): tensor for tensor in step.made})

    @staticmethod
    def key(step: int, reference: Reference) -> Key:
        """Return the tensor that a kernel of a step names."""
        if reference.steps_ago < 0:
            return -1, reference.number
        return step - reference.steps_ago, reference.number

    def layout(self) -> Layout:
        """Return the layout with the shortest unit of layers that come again and again, if there is one."""
        kernels = (kernel for step in self.steps[:2] for kernel in step.kernels)
        layers = 1 + max(
            (layer for kernel in kernels if (layer := _layer(kernel.cost.layer.path)) is not None), default=-1
        )
        for period in range(1, _LONGEST_PATTERN + 1):
            if layers % period == 0 and layers // period >= _FEWEST_UNITS:
                found = self._layout(period, layers // period)
                if found is not None:
                    return found
        return Layout(tuple(self.tensors))

    def _layout(self, period: int, units: int) -> Layout | None:
        owners = self._owners(period)
        found = grouped((owners.get(key), key) for key in self.tensors)
        apart = found.get(None, [])
        rows = [found.get(unit, []) for unit in range(units)]
        shapes = [[self._shape(key) for key in row] for row in rows]
        return Layout(apart, rows, period) if all(shape == shapes[0] for shape in shapes) else None

    def _shape(self, key: Key) -> tuple[Any, ...]:
        found = self.tensors[key]
        return key[0], found.size_bytes, found.kind, found.persistent

    def _owners(self, period: int) -> dict[Key, int | None]:
        """Return the unit that makes each tensor, or alone uses a lasting one; None for no unit."""
        owners: dict[Key, int | None] = {}
        for number, step in enumerate(self.steps):
            for kernel in step.kernels:
                layer = _layer(kernel.cost.layer.path)
                unit = None if layer is None else layer // period
                for reference in (*kernel.reads, *kernel.writes):
                    key = self.key(number, reference)
                    if reference.steps_ago < 0 and owners.setdefault(key, unit) != unit:
                        owners[key] = None
                for reference in kernel.writes:
                    if reference.steps_ago == 0:
                        owners.setdefault(self.key(number, reference), unit)
        return owners


class Writer:
    """Writes the kernels of steps as blocks."""

    def __init__(self, steps: Steps, layout: Layout) -> None:
        self._layout, self._numbers = layout, layout.numbers()
        self._steps = steps
        self._count = 0

    def blocks(self) -> Iterator[Block[Kernel]]:
        """Yield the kernels of all steps."""
        for number, step in enumerate(self._steps.steps):
            groups = [(unit, list(found)) for unit, found in groupby(step.kernels, self._layout.unit)]
            order = [unit for unit, _ in groups]
            units = [found for unit, found in groups if unit is not None]
            first = order.index(0) if 0 in order else 0
            end = first + len(units)
            if order[first:end] != [*range(len(units))] or not self._are_alike(number, units):
                yield self._block(number, step.kernels)
                continue
            before = [kernel for _, found in groups[: first + 1] for kernel in found]
            after = [kernel for _, found in groups[end:] for kernel in found]
            yield self._block(number, before)
            yield self._block(number, units[1], len(units) - 1)
            if after:
                yield self._block(number, after)

    def _are_alike(self, step: int, units: Sequence[Sequence[KernelTemplate]]) -> bool:
        """Return True if a step has units enough, and all but the first are alike."""
        if len(units) < _FEWEST_UNITS:
            return False
        wanted = [self._described(step, kernel, 0) for kernel in units[1]]
        return all(
            [self._described(step, kernel, times) for kernel in unit] == wanted
            for times, unit in enumerate(units[2:], 1)
        )

    def _described(self, step: int, kernel: KernelTemplate, times: int) -> tuple[Any, ...]:
        """Return all about a kernel of a unit, with the ids that it would name that many units before."""
        cost = kernel.cost
        back = times * self._layout.shift
        ids = shifted(self._ids(step, (*kernel.reads, *kernel.writes)), self._layout.since, -back)
        layer = any_layer(cost.layer.path), cost.layer.kind
        return ids, len(kernel.reads), cost.operator, layer, kernel.sizes

    def _ids(self, step: int, references: Sequence[Reference]) -> tuple[int, ...]:
        numbers, key = self._numbers, self._steps.key
        return tuple([numbers[key(step, reference)] for reference in references])

    def _block(self, step: int, kernels: Sequence[KernelTemplate], times: int = 1) -> Block[Kernel]:
        made = tuple(self._kernel(step, kernel, self._count + place) for place, kernel in enumerate(kernels))
        self._count += times * len(made)
        return Block(made, times, self._layout.since, self._layout.shift) if times > 1 else Block(made)

    def _kernel(self, step: int, kernel: KernelTemplate, number: int) -> Kernel:
        inputs, outputs = (self._ids(step, side) for side in (kernel.reads, kernel.writes))
        path = kernel.cost.layer.path
        return kernel.cost.kernel(number, inputs, outputs, any_layer(path) if self._layout.rows else path)


def generated_trace(templates: Sequence[StepTemplate], model: str, batch_size: int) -> Trace:
    """Return the trace of steps that follow each other.

    Layers that are alike are one block in every step, and their tensors one block: names and paths then have
    a star for the layer. Kernels have no times yet.
    """
    steps = Steps(templates)
    layout = steps.layout()
    blocks = list(Writer(steps, layout).blocks())
    apart = tuple(replace(steps.tensors[key], id=number) for number, key in enumerate(layout.apart))
    tensors: list[Block[Tensor]] = [Block(apart)] if apart else []
    if layout.rows:
        found = (steps.tensors[key] for key in layout.rows[0])
        row = tuple(
            replace(tensor, id=number, name=any_layer(tensor.name))
            for number, tensor in enumerate(found, layout.since)
        )
        tensors.append(Block(row, len(layout.rows)))
    return Trace(model, batch_size, NANOSECONDS_PER_SECOND, joined(tensors), joined(blocks))
