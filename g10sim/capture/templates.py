"""Steps of a recording as templates: kernels that name tensors by where these come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import NamedTuple

from g10sim.capture.recorder import KernelDraft, Recorder, StorageRecord
from g10sim.capture.recording import settle_kinds
from g10sim.errors import TraceError
from g10sim.trace.model import Tensor, TensorKind
from g10sim.trace.work import SIZES


class Reference(NamedTuple):
    """A tensor that a kernel names: a lasting one by its key, or one made in a step by its number there.

    ``steps_ago`` is 0 for a tensor of this step, 1 for one of the step before, and -1 for a lasting one.
    """

    steps_ago: int
    number: int


@dataclass(frozen=True, slots=True)
class KernelTemplate:
    """A kernel of a step: what it costs, and what it reads and writes."""

    cost: KernelDraft
    reads: tuple[Reference, ...]
    writes: tuple[Reference, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers that may change from step to step."""
        cost = self.cost
        return cost.flops, cost.moved_bytes, *(getattr(cost, name) for name in SIZES)

    @property
    def rest(self) -> tuple[object, ...]:
        """Facts that stay the same from step to step."""
        cost = self.cost
        kind = cost.operator, cost.operator_class, cost.number_format, cost.layer, cost.known_cost
        return *kind, self.reads, self.writes

    def with_sizes(self, sizes: Sequence[int]) -> KernelTemplate:
        """Return the kernel with other numbers."""
        flops, moved, *rest = sizes
        cost = replace(self.cost, flops=flops, moved_bytes=moved)
        cost.note(dict(zip(SIZES, rest, strict=True)))
        return KernelTemplate(cost, self.reads, self.writes)


@dataclass(frozen=True, slots=True)
class StepTemplate:
    """The kernels of a step, the tensors that it makes, and lasting tensors by key.

    Ids are keys of lasting tensors, and numbers in the step of those that it makes.
    """

    kernels: tuple[KernelTemplate, ...]
    made: tuple[Tensor, ...]
    lasting: dict[int, Tensor]

    @property
    def sizes(self) -> list[int]:
        """All numbers that may change from step to step."""
        found = [size for kernel in self.kernels for size in kernel.sizes]
        return found + [tensor.size_bytes for tensor in self.made]

    @property
    def rest(self) -> tuple[object, ...]:
        """Facts that stay the same from step to step."""
        made = tuple((tensor.name, tensor.kind) for tensor in self.made)
        return tuple(kernel.rest for kernel in self.kernels), made

    def is_like(self, other: StepTemplate) -> bool:
        """Return True if another step has the same kernels and makes the same tensors."""
        return self.sizes == other.sizes and self.rest == other.rest


def is_between(first: StepTemplate, last: StepTemplate, steps: int) -> bool:
    """Return True if whole numbers between those of two steps, ``steps`` apart, make a step."""
    if first.rest != last.rest:
        return False
    return not any((b - a) % steps for a, b in zip(first.sizes, last.sizes, strict=True))


def between(first: StepTemplate, last: StepTemplate, done: int, steps: int) -> StepTemplate:
    """Return the step that comes that many of ``steps`` steps after the first on the way to the last."""
    if done == steps:
        return last
    kernels = tuple(
        a
        if a.sizes == b.sizes
        else a.with_sizes([_part(*pair, done, steps) for pair in zip(a.sizes, b.sizes, strict=True)])
        for a, b in zip(first.kernels, last.kernels, strict=True)
    )
    made = tuple(
        a
        if a.size_bytes == b.size_bytes
        else replace(a, size_bytes=_part(a.size_bytes, b.size_bytes, done, steps))
        for a, b in zip(first.made, last.made, strict=True)
    )
    return StepTemplate(kernels, made, last.lasting)


def _part(first: int, last: int, done: int, steps: int) -> int:
    return first + (last - first) // steps * done


def step_templates(recorder: Recorder) -> list[StepTemplate]:
    """Return the steps of a recording.

    Raises TraceError for a step that reads what is neither lasting nor made in it or the step before.
    """
    settle_kinds(recorder)
    lasting = {record: Reference(-1, key) for record, key in recorder.lasting().items()}
    keys = {one.number: _tensor(record, one) for record, one in lasting.items() if record.kind is not None}
    # Of a step that is not recorded; no use is made of the first step.
    earlier = {record: Reference(2, 0) for record in recorder.storages if record.phase is None}
    found: list[StepTemplate] = []
    before: dict[StorageRecord, Reference] = {}
    for start, end in zip([0, *recorder.ends], recorder.ends, strict=False):
        drafts = recorder.kernels[start:end]
        made: dict[StorageRecord, Reference] = {}
        for draft in drafts:
            for record in draft.writes:
                if record not in lasting and record not in before:
                    made.setdefault(record, Reference(0, len(made)))
        known = {**({} if found else earlier), **before, **made, **lasting}
        kernels = tuple(_template(draft, known) for draft in drafts)
        found.append(StepTemplate(kernels, tuple(starmap(_tensor, made.items())), keys))
        before = {record: Reference(1, one.number) for record, one in made.items()}
    return found


def _template(draft: KernelDraft, known: Mapping[StorageRecord, Reference]) -> KernelTemplate:
    if not known.keys() >= draft.reads.keys() | draft.writes.keys():
        raise TraceError(
            f"--generate: found {draft.operator} in '{draft.layer.path}' reading a tensor of an earlier step "
            "than the one before; allowed: steps that keep everything in the cache"
        )
    reads, writes = (tuple(map(known.__getitem__, side)) for side in (draft.reads, draft.writes))
    return KernelTemplate(draft, reads, writes)


def _tensor(record: StorageRecord, reference: Reference) -> Tensor:
    kind = record.kind or TensorKind.TEMPORARY
    return Tensor(reference.number, record.name or kind.value, record.size_bytes, kind, record.persistent)
