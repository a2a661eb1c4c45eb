"""Lives of storages that last longer than their uses tell, or go on in a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from g10sim.analysis.footprint import levels
from g10sim.capture.recorder import Recorder, StorageRecord
from g10sim.trace.model import Phase, TensorKind

Lives: TypeAlias = Mapping[StorageRecord, tuple[int, int]]
"""The first and the last kernel of storages."""

_MOST_DIFFERENCE = 0.01
"""Share of the peak up to which a trace leaves out what is only kept: peaks are compared within it."""
_LONGER_COPY = "cat"


def hold_what_nodes_keep(recorder: Recorder) -> None:
    """Let kernels of the backward pass read, in 0 bytes, what is released after them without a use there.

    A node of the backward pass releases what it has saved when all its kernels have been launched: that of a
    product, two kernels, keeps both factors until then (PyTorch, torch/csrc/autograd/engine.cpp,
    ``release_variables``). As such tensors make the working sets of kernels larger, they are told only where
    the peak of the step is more than 1% higher with them.
    """
    kernels = recorder.kernels
    lives = _lives(recorder)
    held = {}
    for record, (_, last) in lives.items():
        before = -1 if record.released is None else record.released - 1
        if last < before and kernels[before].phase is Phase.BACKWARD:
            held[record] = before
    longer = {**lives, **{record: (lives[record][0], kernel) for record, kernel in held.items()}}
    if _peak(longer, len(kernels)) > (1 + _MOST_DIFFERENCE) * _peak(lives, len(kernels)):
        for record, kernel in held.items():
            kernels[kernel].reads[record] = 0


def hold_what_outlives(recorder: Recorder) -> None:
    """Let the last kernel of a step read, in 0 bytes, what the step made and leaves behind.

    So the loss, and gradients that the next step drops, are in memory to the end.
    """
    for record, (_, last) in _uses(recorder).items():
        end = record.outlived - 1
        if last < end and not record.persistent and not record.on_host:
            recorder.kernels[end].reads[record] = 0


def _lives(recorder: Recorder) -> Lives:
    """Return the lives of all storages on the device that are used or from before the step."""
    whole = (0, len(recorder.kernels) - 1)
    before = (record for record in recorder.storages if record.phase is None and not record.on_host)
    return {**_uses(recorder), **dict.fromkeys(before, whole)}


def _uses(recorder: Recorder) -> Lives:
    """Return the first and the last kernel that use each storage."""
    found: dict[StorageRecord, tuple[int, int]] = {}
    for number, draft in enumerate(recorder.kernels):
        for record in (*draft.reads, *draft.writes):
            found[record] = found.get(record, (number, number))[0], number
    return found


def _peak(lives: Lives, kernels: int) -> int:
    spans = ((first, last + 1, record.size_bytes) for record, (first, last) in lives.items())
    return int(levels(spans, kernels).max(initial=0))


class _Copy(NamedTuple):
    """A longer copy of a storage that is dropped for it."""

    kernel: int
    storage: StorageRecord
    dropped: StorageRecord


def keep_what_grows(recorder: Recorder) -> None:
    """Let a storage from before the step and the longer copies that replace it be one persistent storage.

    So keys and values grow (transformers' ``DynamicCache``): each step concatenates those that are there with
    new ones, and drops the old. The storage has the size that the last step leaves. From a copy until the
    original is dropped there is room for both.
    """
    kernels = recorder.kernels
    grown: dict[StorageRecord, StorageRecord] = {}
    for original, copies in _replaced(recorder).items():
        for kernel, storage, dropped in copies:
            room = StorageRecord(dropped.size_bytes, kernels[kernel].phase, kind=TensorKind.TEMPORARY)
            kernels[kernel].writes[room] = 0
            end = (dropped.released or 0) - 1
            if end > kernel:
                kernels[end].reads[room] = 0
            grown[storage] = original
        original.size_bytes = max(copy.storage.size_bytes for copy in copies)
    for draft in kernels if grown else ():
        draft.reads = _renamed(draft.reads, grown)
        draft.writes = _renamed(draft.writes, grown)


def _replaced(recorder: Recorder) -> dict[StorageRecord, list[_Copy]]:
    """Return storages from before the step that it drops, with their copies, the last of which stays."""
    latest: dict[StorageRecord, StorageRecord] = {}
    found: dict[StorageRecord, list[_Copy]] = {}
    uses = _uses(recorder)
    for kernel, draft in enumerate(recorder.kernels):
        if draft.operator != _LONGER_COPY:
            continue
        (storage,) = draft.writes
        for record in draft.reads:
            is_first = record.existed and record not in found
            original = record if is_first else latest.get(record)
            if original is not None and not record.alive and uses[record][1] == kernel:
                latest.pop(record, None)
                latest[storage] = original
                found.setdefault(original, []).append(_Copy(kernel, storage, record))
                break
    return {original: found[original] for last, original in latest.items() if last.alive}


def _renamed(
    amounts: Mapping[StorageRecord, int], grown: Mapping[StorageRecord, StorageRecord]
) -> dict[StorageRecord, int]:
    found: dict[StorageRecord, int] = {}
    for record, amount in amounts.items():
        kept = grown.get(record, record)
        found[kept] = max(found.get(kept, 0), amount)
    return found
