"""Plan files: our own format (version 1, suffix ``.g10p``) and the published simulator's prefetch guides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from g10sim.errors import PlanError
from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.records import Location
from g10sim.trace.format import trace_hash
from g10sim.trace.jsonlines import (
    Fields,
    RecordReader,
    decode_text,
    encode_line,
    hash_lines,
    read_lines,
    short_hash,
    shown,
    write_lines,
)
from g10sim.trace.model import Trace

FORMAT = "g10sim-plan"
VERSION = 1

_HEADER = Fields(
    {"format": str, "version": int, "moves": int},
    {"planner": (str, ""), "trace": (str, ""), "sha256": (str, "")},
)
_MOVE = Fields(
    {"kernel": int, "tensor": int, "target": str}, {"recompute": (bool, False), "delay_cycles": (int, 0)}
)
_TARGETS = {location.name.lower(): location for location in Location}

_GUIDE_LINE = re.compile(
    r"Issued Time: (\d{1,18}) Tensor: (\d{1,18}) G:[xo] From: (\w+), To: (\w+)", re.ASCII
)
_GUIDE_TARGETS = {
    "In_gpu": Location.GPU,
    "In_cpu": Location.HOST,
    "In_ssd": Location.FLASH,
    "Not_present": Location.NONE,
}
_GUIDE_START = b"Issued Time:"


def save_plan(plan: MigrationPlan, path: str | Path, trace: Trace | None = None) -> None:
    """Write a plan, naming the trace it was made for; the file appears whole or not at all.

    Raises PlanError for a plan that does not fit the trace and for a path that cannot be written.
    """
    path = Path(path)
    check_plan(plan, trace, f"{path}: not written")
    header = _identity(plan, trace_hash(trace) if trace else "")
    moves = list(_move_lines(plan))
    header["sha256"] = hash_lines([encode_line(header), *moves])
    write_lines(path, [encode_line(header), *moves], PlanError)


def load_plan(path: str | Path, trace: Trace | None = None) -> MigrationPlan:
    """Read a plan file: ours, or a prefetch guide of the published simulator; gzip-compressed or plain.

    With ``trace`` the plan must fit it. Raises PlanError naming file, line, what was found and what is
    allowed.
    """
    path = Path(path)
    first = next(read_lines(path, PlanError), b"")
    if first.startswith(_GUIDE_START):
        plan = read_prefetch_guide(path)
        check_plan(plan, trace, str(path), first_line=1)
        return plan
    reader = RecordReader(path, PlanError)
    header = reader.header(FORMAT, VERSION, _HEADER, counts=("moves",))
    if trace is not None and header["trace"]:
        found = trace_hash(trace)
        if header["trace"] != found:
            reader.fail(
                f"found a plan for the trace with sha256 {short_hash(header['trace'])}; allowed: one for "
                f"{short_hash(found)} ({trace.model}, batch size {trace.batch_size})"
            )
    plan = MigrationPlan(tuple(_move(reader) for _ in range(header["moves"])), header["planner"])
    reader.finish(f"{header['moves']} moves")
    check_plan(plan, trace, str(path), first_line=2)
    reader.check_hash(lambda: _content_hash(plan, header["trace"]))
    return plan


def check_plan(plan: MigrationPlan, trace: Trace | None, place: str, first_line: int | None = None) -> None:
    """Raise PlanError for the first move that is out of order or does not fit the trace.

    ``place`` starts the message; with ``first_line`` (the line of the first move) it names a line too.
    """
    last_kernel = None if trace is None else len(trace.kernels)
    num_tensors = None if trace is None else len(trace.tensors)
    previous = 0
    for index, move in enumerate(plan.moves):
        message = _move_problem(move, previous, last_kernel, num_tensors)
        if message:
            where = f"move {index}" if first_line is None else f"line {index + first_line}"
            raise PlanError(f"{place}: {where}: {message}")
        previous = move.kernel


def _move_problem(move: PlannedMove, previous: int, last_kernel: int | None, num_tensors: int | None) -> str:
    if move.kernel < 0 or (last_kernel is not None and move.kernel > last_kernel):
        end = "" if last_kernel is None else f" to {last_kernel} (the trace has {last_kernel} kernels)"
        return f"found kernel {move.kernel}; allowed: 0{end or ' or more'}"
    if move.tensor < 0 or (num_tensors is not None and move.tensor >= num_tensors):
        end = "" if num_tensors is None else f" to {num_tensors - 1} (the trace has {num_tensors} tensors)"
        return f"found unknown tensor {move.tensor}; allowed: 0{end or ' or more'}"
    if move.recompute and move.target is not Location.NONE:
        return f"found target {move.target.name.lower()} with 'recompute'; allowed: none"
    if move.delay_cycles < 0 or (move.delay_cycles and move.target is Location.NONE):
        found = f"found delay_cycles {move.delay_cycles} with target {move.target.name.lower()}"
        return f"{found}; allowed: 0, or more with gpu, host and flash"
    if move.kernel < previous:
        return f"found kernel {move.kernel} after kernel {previous}; allowed: kernels in ascending order"
    return ""


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
        target = _GUIDE_TARGETS.get(match[4]) if match else None
        if match is None or target is None:
            raise PlanError(
                f"{path}: line {number}: found {shown(text)}; allowed: 'Issued Time: KERNEL Tensor: TENSOR "
                f"G:x|o From: PLACE, To: {'|'.join(_GUIDE_TARGETS)}'"
            )
        moves.append(PlannedMove(int(match[1]), int(match[2]), target))
    return MigrationPlan(tuple(moves), planner=path.name.partition(".config")[0])


def _identity(plan: MigrationPlan, plan_trace_hash: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "planner": plan.planner,
        "trace": plan_trace_hash,
        "moves": len(plan.moves),
    }


def _content_hash(plan: MigrationPlan, plan_trace_hash: str) -> str:
    return hash_lines([encode_line(_identity(plan, plan_trace_hash)), *_move_lines(plan)])


def _move_lines(plan: MigrationPlan) -> Iterator[str]:
    for move in plan.moves:
        target = move.target.name.lower()
        more: dict[str, Any] = {"recompute": True} if move.recompute else {}
        if move.delay_cycles:
            more["delay_cycles"] = move.delay_cycles
        yield encode_line({"kernel": move.kernel, "tensor": move.tensor, "target": target, **more})


def _move(reader: RecordReader) -> PlannedMove:
    record = reader.record("kernel", _MOVE)
    target = reader.choice("target", record["target"], _TARGETS)
    return PlannedMove(
        record["kernel"], record["tensor"], target, record["recompute"], record["delay_cycles"]
    )
