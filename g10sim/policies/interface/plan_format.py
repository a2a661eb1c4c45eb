"""Plan files: our own format (suffix ``.g10p``) and the published simulator's prefetch guides."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from g10sim.errors import PlanError, choices_text, not_found, shown
from g10sim.policies.interface.contract import Move, registered_moves
from g10sim.policies.interface.moves import Drop, Evict, Fetch, Free
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.trace.format import trace_hash
from g10sim.trace.jsonlines import (
    Fields,
    RecordReader,
    decode_text,
    encode_line,
    hash_lines,
    read_lines,
    short_hash,
    write_lines,
)
from g10sim.trace.model import Trace

FORMAT = "g10sim-plan"
VERSION = 2

_HEADER = Fields(
    {"format": str, "version": int, "moves": int},
    {"planner": (str, ""), "trace": (str, ""), "sha256": (str, "")},
)
_ENTRY = Fields({"kernel": int, "move": str}, {"delay_cycles": (int, 0)})
_FIRST_VERSION = Fields(
    {"kernel": int, "tensor": int, "target": str}, {"recompute": (bool, False), "delay_cycles": (int, 0)}
)
_TARGETS: dict[str, Callable[[int], Move]] = {
    "none": Free,
    "gpu": Fetch,
    "host": Evict,
    "flash": partial(Evict, target="ssd"),
}

_Kinds: TypeAlias = Mapping[str, tuple[type[Move], TypeAdapter[Move]]]
"""Registered moves by name, each with what reads its fields."""

_GUIDE_LINE = re.compile(r"Issued Time: (\d{1,18}) Tensor: (\d{1,18}) G:[xo] From: \w+, To: (\w+)", re.ASCII)
_GUIDE_TARGETS = {"In_gpu": "gpu", "In_cpu": "host", "In_ssd": "flash", "Not_present": "none"}
_GUIDE_START = b"Issued Time:"


def save_plan(plan: MigrationPlan, path: str | Path, trace: Trace | None = None) -> None:
    """Write a plan, naming the trace it was made for, with its ids; the file appears whole or not at all.

    Raises PlanError for a plan that does not fit the trace, for a move that is not registered and for a path
    that cannot be written.
    """
    path = Path(path)
    place = f"{path}: not written"
    check_plan(plan, trace, place)
    if trace and trace.given_ids:
        plan, trace = plan.with_ids(trace.given_ids), trace.as_given
    known = registered_moves()
    for index, planned in enumerate(plan.moves):
        if known.get(planned.move.name) is not type(planned.move):
            found = f"found unregistered move '{planned.move.name}'"
            raise PlanError(f"{place}: move {index}: {found}; allowed: {choices_text(known)}")
    header = _identity(plan, trace_hash(trace) if trace else "")
    moves = [encode_line(_record(planned)) for planned in plan.moves]
    header["sha256"] = hash_lines([encode_line(header), *moves])
    write_lines(path, [encode_line(header), *moves], PlanError)


def load_plan(path: str | Path, trace: Trace | None = None) -> MigrationPlan:
    """Read a plan file: ours, or a prefetch guide of the published simulator; gzip-compressed or plain.

    An empty file, unless it is named like ours, is a guide without moves: of a model that fits.
    With ``trace`` the plan must fit it, and names tensors as that does. Raises PlanError naming file, line,
    what was found and what is allowed.
    """
    if trace is None or not trace.given_ids:
        return _load_plan(Path(path), trace)
    return _load_plan(Path(path), trace.as_given).with_ids(trace.ids_of_given)


def _load_plan(path: Path, trace: Trace | None) -> MigrationPlan:
    first = next(read_lines(path, PlanError), b"")
    if first.startswith(_GUIDE_START) or (not first and ".g10p" not in path.suffixes):
        plan = read_prefetch_guide(path)
        check_plan(plan, trace, str(path), first_line=1)
        return plan
    reader = RecordReader(path, PlanError)
    header = reader.header(FORMAT, tuple(_BY_VERSION), _HEADER, counts=("moves",))
    if trace is not None and header["trace"]:
        found = trace_hash(trace)
        if header["trace"] != found:
            reader.fail(
                f"found a plan for the trace with sha256 {short_hash(header['trace'])}; allowed: one for "
                f"{short_hash(found)} ({trace.model}, batch size {trace.batch_size})"
            )
    read, written = _BY_VERSION[header["version"]]
    known = {name: (move, TypeAdapter(move)) for name, move in registered_moves().items()}
    plan = MigrationPlan(tuple(read(reader, known) for _ in range(header["moves"])), header["planner"])
    reader.finish(f"{header['moves']} moves")
    check_plan(plan, trace, str(path), first_line=2)
    identity = _identity(plan, header["trace"], header["version"])
    reader.check_hash(lambda: hash_lines(map(encode_line, [identity, *map(written, plan.moves)])))
    return plan


def check_plan(plan: MigrationPlan, trace: Trace | None, place: str, first_line: int | None = None) -> None:
    """Raise PlanError for the first move that is out of order or does not fit the trace.

    ``place`` starts the message; with ``first_line`` (the line of the first move) it names a line too.
    """
    previous = 0
    for index, planned in enumerate(plan.moves):
        if not isinstance(planned, Planned) or not isinstance(planned.move, Move):
            raise PlanError(f"{place}: move {index}: found {planned!r}; allowed: Planned(kernel, move)")
        message = planned.flaw(trace, None)
        if message is None and planned.kernel < previous:
            found = f"found kernel {planned.kernel} after kernel {previous}"
            message = f"{found}; allowed: kernels in ascending order"
        if message is not None:
            where = f"move {index}" if first_line is None else f"line {index + first_line}"
            raise PlanError(f"{place}: {where}: {message}")
        previous = planned.kernel


def read_prefetch_guide(path: str | Path) -> MigrationPlan:
    """Read a ``prefetch_guide*.config`` of the published G10 simulator, gzip-compressed or plain.

    "Issued Time" is the kernel at whose start the move is issued; the order of the file is kept. Raises
    PlanError for any line that is no hint.
    """
    path = Path(path)
    moves = []
    for number, line in enumerate(read_lines(path, PlanError), 1):
        text = decode_text(path, number, line, PlanError)
        match = _GUIDE_LINE.fullmatch(text)
        if match is None or match[3] not in _GUIDE_TARGETS:
            form = f"Issued Time: KERNEL Tensor: TENSOR G:x|o From: PLACE, To: {'|'.join(_GUIDE_TARGETS)}"
            raise PlanError.at(f"{path}: line {number}", shown(text), f"'{form}'")
        make = _TARGETS[_GUIDE_TARGETS[match[3]]]
        moves.append(Planned(int(match[1]), make(int(match[2]))))
    return MigrationPlan(tuple(moves), planner=path.name.partition(".config")[0])


def options_of(move: Move) -> dict[str, Any]:
    """Return what a file keeps of a move: its fields without those that have their default."""
    values = {field.name: (getattr(move, field.name), field.default) for field in fields(move)}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, (value, default) in values.items()
        if value != default
    }


def _record(planned: Planned) -> dict[str, Any]:
    delay = {"delay_cycles": planned.delay_cycles} if planned.delay_cycles else {}
    return {"kernel": planned.kernel, "move": planned.move.name, **options_of(planned.move), **delay}


def _read_move(reader: RecordReader, known: _Kinds) -> Planned:
    record = reader.entry("kernel")
    common = {key: record.pop(key) for key in tuple(record) if key in _ENTRY.types}
    entry = reader.fields(common, _ENTRY)
    name = entry["move"]
    if name not in known:
        reader.fail(f"move: found {shown(name)}{not_found(name, known)}")
    kind, adapter = known[name]
    try:
        move = adapter.validate_json(json.dumps(record))
    except ValidationError as error:
        reader.fail(_refusal(error, kind))
    return Planned(entry["kernel"], move, entry["delay_cycles"])


def _refusal(error: ValidationError, move: type[Move]) -> str:
    """Say which key of a line a move does not take as it is."""
    details = error.errors(include_url=False)[0]
    key = ".".join(map(str, details["loc"]))
    if details["type"] == "missing":
        return f"found no {key}; allowed: {move.name} with {key}"
    if details["type"] == "unexpected_keyword_argument":
        own = (field.name for field in fields(move))
        return f"found unknown key {shown(key)}; allowed: {', '.join([*_ENTRY.types, *own])}"
    allowed = details["msg"].removeprefix("Input should be ")
    return f"{key}: found {shown(details['input'])}; allowed: {allowed}"


def _read_move_of_first_version(reader: RecordReader, known: _Kinds) -> Planned:
    record = reader.record("kernel", _FIRST_VERSION)
    if record["target"] not in _TARGETS:
        reader.fail(f"target: found {shown(record['target'])}; allowed: {', '.join(_TARGETS)}")
    if record["recompute"] and record["target"] != "none":
        reader.fail(f"found target {record['target']} with 'recompute'; allowed: none")
    make = Drop if record["recompute"] else _TARGETS[record["target"]]
    return Planned(record["kernel"], make(record["tensor"]), record["delay_cycles"])


def _record_of_first_version(planned: Planned) -> dict[str, Any]:
    record = _record(planned)
    drops = {"recompute": True} if record["move"] == "drop" else {}
    evicts = "flash" if record.pop("target", "host") == "ssd" else "host"
    target = {"fetch": "gpu", "evict": evicts}.get(record.pop("move"), "none")
    delay = {"delay_cycles": planned.delay_cycles} if planned.delay_cycles else {}
    return {"kernel": planned.kernel, "tensor": record["tensor"], "target": target, **drops, **delay}


def _identity(plan: MigrationPlan, plan_trace_hash: str, version: int = VERSION) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": version,
        "planner": plan.planner,
        "trace": plan_trace_hash,
        "moves": len(plan.moves),
    }


_BY_VERSION = {
    1: (_read_move_of_first_version, _record_of_first_version),
    VERSION: (_read_move, _record),
}
