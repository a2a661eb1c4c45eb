"""The account of an import: what a file says alongside what its trace has, for device time and for memory.

Every importer makes an :class:`Account`, fills it and passes its trace through :func:`accounted`:

    account = Account()
    account.imported_ns = 90_000                          # time of the trace's kernels
    account.leave_out(Reason.COPIES, 4_000)               # work of the step that the trace lacks
    account.put_aside(Reason.OVERLAP, 6_000)              # no work that is missing: told, not judged
    account.compare("peak", recorded, imported, "...")    # bytes that both tell, and why they may differ
    account.notes.append("2 graph launches have no ...")  # whatever else a reader must know
    trace = accounted(trace, account, path, partial=partial)

The account becomes a part of the trace's origin (one key, JSON). Commands read it from there with
:func:`account_of` and show it: ``g10sim.cli.trace_facts`` has the tables and the warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from g10sim.display import rounded_bytes, rounded_seconds
from g10sim.errors import TraceError
from g10sim.trace.model import Trace

KEY = "account"
"""Key of a trace's origin that holds the account."""
_NANOSECONDS = 1e-9
_WARNED, _REFUSED = 0.01, 0.20
"""Shares of the step's device time: above the one a warning, above the other no import."""
_DIFFERENT = 10
"""Recorded and imported bytes that differ by more than one in that many of the recorded ones are told."""


class Reason(StrEnum):
    """Reasons for which device time is not among the kernels of a trace."""

    GRAPHS = "graph launches without kernels"
    OUTPUTS = "operators without recorded outputs"
    COMPILED = "compiled functions, of which the CPU does not record kernels"
    OUTSIDE = "outside the step"
    DEVICES = "other devices"
    COPIES = "copies"
    AROUND = "operators on the CPU around kernels"
    OVERLAP = "overlap"
    GAPS = "gaps"
    KEPT_GAPS = "gaps, kept as idle time of the host"


@dataclass(slots=True)
class Compared:
    """Bytes that the file records alongside those of the trace, with the cause of a difference."""

    what: str
    recorded_bytes: int
    imported_bytes: int
    cause: str

    @property
    def difference(self) -> float:
        """Imported bytes over recorded ones, less 1; infinite where nothing is recorded but imported."""
        if self.recorded_bytes:
            return self.imported_bytes / self.recorded_bytes - 1
        return float("inf") if self.imported_bytes else 0.0

    @property
    def is_told(self) -> bool:
        """Return whether the two differ by more than 10 %."""
        return abs(self.imported_bytes - self.recorded_bytes) * _DIFFERENT > self.recorded_bytes


class TimeRow(NamedTuple):
    """A row of the table of time: a part of the device time, nanoseconds, and its share in words."""

    part: str
    time_ns: int
    share: str


@dataclass(slots=True)
class Account:
    """Device time of a step in nanoseconds, and bytes, as a file records them and as its trace has them.

    ``left_out`` and ``aside`` have nanoseconds by reason. The device time of the step is what is imported
    and what is left out. ``aside`` is no part of it: time that counts once because streams overlap, time
    in which the device did nothing, and what lies outside the step or on a device that was not asked for.
    ``notes`` are warned about, ``facts`` are told.
    """

    imported_ns: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    aside: dict[str, int] = field(default_factory=dict)
    memory: list[Compared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, time_ns: int) -> None:
        """Add time of the step that the trace lacks; none is no reason."""
        if time_ns:
            self.left_out[reason] = self.left_out.get(reason, 0) + time_ns

    def put_aside(self, reason: str, time_ns: int) -> None:
        """Add time that is told and not missing; none is no reason."""
        if time_ns:
            self.aside[reason] = self.aside.get(reason, 0) + time_ns

    def compare(self, what: str, recorded_bytes: int, imported_bytes: int, cause: str) -> None:
        """Set bytes that the file records next to those of the trace; ``cause`` says why they may differ."""
        self.memory.append(Compared(what, recorded_bytes, imported_bytes, cause))

    @property
    def step_ns(self) -> int:
        """Device time of the step: imported and left out."""
        return self.imported_ns + sum(self.left_out.values())

    @property
    def share_left_out(self) -> float:
        """Share of the step's device time that the trace lacks."""
        return sum(self.left_out.values()) / self.step_ns if self.step_ns else 0.0

    def rows(self) -> Iterator[TimeRow]:
        """Yield the rows of the table of time; gaps have their share of the step's whole time."""
        yield TimeRow("device time of the step", self.step_ns, "")
        yield TimeRow("imported", self.imported_ns, self._of_step(self.imported_ns))
        for reason, time_ns in _falling(self.left_out):
            yield TimeRow(f"left out: {reason}", time_ns, self._of_step(time_ns))
        for reason, time_ns in _falling(self.aside):
            whole = self.step_ns + time_ns if reason == Reason.GAPS else 0
            yield TimeRow(f"aside: {reason}", time_ns, f"{time_ns / whole:.1%} of both" if whole else "")

    def _of_step(self, time_ns: int) -> str:
        return f"{time_ns / self.step_ns:.1%}" if self.step_ns else ""

    def warnings(self) -> Iterator[str]:
        """Yield what a reader must know: time left out above 1 %, bytes that differ, and the notes."""
        if self.share_left_out > _WARNED:
            yield self.left_out_text
        for one in self.memory:
            if one.is_told:
                yield (
                    f"{one.what}: the file records {rounded_bytes(one.recorded_bytes)}, the trace has "
                    f"{rounded_bytes(one.imported_bytes)}: {one.cause}"
                )
        yield from self.notes

    @property
    def left_out_text(self) -> str:
        """Share and times that are left out, in words."""
        times = _falling(self.left_out)
        reasons = ", ".join(f"{reason} ({rounded_seconds(ns * _NANOSECONDS)})" for reason, ns in times)
        whole = rounded_seconds(self.step_ns * _NANOSECONDS)
        return f"{self.share_left_out:.1%} of the step's device time ({whole}) is left out: {reasons}"


_READER = TypeAdapter(Account)


def _falling(times: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    return sorted(times.items(), key=lambda item: (-item[1], item[0]))


def accounted(trace: Trace, account: Account, path: Path, *, partial: bool) -> Trace:
    """Return the trace with the account in its origin.

    Raises TraceError where more than 20 % of the device time is left out, unless ``partial``.
    """
    if account.share_left_out > _REFUSED and not partial:
        allowed = f"at most {_REFUSED:.0%}, or --partial to import the rest"
        raise TraceError(f"{path}: {account.left_out_text}; allowed: {allowed}")
    text = _READER.dump_json(account).decode()
    return replace(trace, origin={**trace.origin, KEY: text})


def account_of(trace: Trace) -> Account | None:
    """Return the account in a trace's origin; None where it has none, or one that is not whole."""
    try:
        return _READER.validate_json(trace.origin.get(KEY, ""))
    except ValidationError:
        return None
