"""The iteration that results report: of several that repeat together, or differ, the average one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from typing import TypeVar

from g10sim.records import ContiguousRecord, CpuRecord, FlashRecord, IterationRecord

_Name = TypeVar("_Name", bound=str)


def reported(records: Sequence[IterationRecord], *, fastest: bool = False) -> Sequence[IterationRecord]:
    """Return the iterations of a job that results report the average of.

    They are those of the last whole period if iterations repeat exactly, the last one if they are steady, and
    the later half if they are not; or the ``fastest`` of all (of equal ones the last).
    """
    if fastest:
        return [min(reversed(records), key=lambda record: record.end - record.start)]
    last = records[-1]
    return records[-((last.period or 1) if last.steady else max(1, len(records) // 2)) :]


def spread(records: Sequence[IterationRecord]) -> float:
    """Return how far the longest and the shortest iteration are apart, as a share of their mean time."""
    times = [record.end - record.start for record in records]
    return (max(times) - min(times)) * len(times) / max(1, sum(times))


def averaged(records: Sequence[IterationRecord]) -> IterationRecord:
    """Return the average iteration, with the peaks of all of them.

    Numbers are rounded down to whole ones, so that compute and stalls add up to the time as they do in each.
    """
    last, count = records[-1], len(records)
    if count == 1:
        return last
    stalls = _added(dict(record.stalls) for record in records)
    parts = [sum(record.compute_cycles for record in records), *stalls.values()]
    ends = [total // count for total in accumulate(parts)]
    compute, *waited = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    time = sum(record.end - record.start for record in records) // count
    return replace(
        last,
        start=last.end - time,
        compute_cycles=compute,
        stalls=tuple(sorted(zip(stalls, waited, strict=True))),
        traffic=_divided(_added(record.traffic for record in records), count),
        exchanged=_divided(_added(record.exchanged for record in records), count),
        peaks={name: max(record.peaks[name] for record in records) for name in last.peaks},
        contiguous=_contiguous(records),
        flash=_flash([record.flash for record in records if record.flash is not None]),
        cpu=_cpu([record.cpu for record in records if record.cpu is not None]),
        **{name: max(getattr(record, name) for record in records) for name in _PEAKS},
        **{name: sum(getattr(record, name) for record in records) // count for name in _COUNTS},
    )


_PEAKS = "peak_gpu_bytes", "peak_gpu_bytes_of_all"
_COUNTS = "overlap_cycles", "in_flight_cycles", "page_faults", "in_place_read_bytes", "in_place_written_bytes"


def _added(counts: Iterable[Mapping[_Name, int]]) -> dict[_Name, int]:
    found = Counter[_Name]()
    for some in counts:
        found.update(some)
    return found


def _divided(counts: Mapping[str, int], count: int) -> dict[str, int]:
    return {name: number // count for name, number in counts.items()}


def _contiguous(records: Sequence[IterationRecord]) -> ContiguousRecord | None:
    found = [(record.contiguous, record.end - record.start) for record in records if record.contiguous]
    if not found:
        return None
    used = sum(one.mean_gpu_bytes * time for one, time in found)
    return ContiguousRecord(
        reserved_gpu_bytes=max(one.reserved_gpu_bytes for one, _ in found),
        largest_hole_bytes=min(one.largest_hole_bytes for one, _ in found),
        peak_pinned_bytes=max(one.peak_pinned_bytes for one, _ in found),
        mean_gpu_bytes=used / max(1, sum(time for _, time in found)),
    )


def _flash(found: Sequence[FlashRecord]) -> FlashRecord | None:
    """Return the average work of a drive, and what it has done in all of the run so far."""
    if not found:
        return None
    counts = _divided(_added(map(asdict, found)), len(found))
    run = {name: number for name, number in asdict(found[-1]).items() if name.startswith("run_")}
    return FlashRecord(**counts | run)


def _cpu(found: Sequence[CpuRecord]) -> CpuRecord | None:
    return CpuRecord(**_divided(_added(map(asdict, found)), len(found))) if found else None
