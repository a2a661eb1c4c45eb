"""``g10sim plan``: look at migration plans and compare them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from g10sim.cli.swaps import swaps
from g10sim.cli.text import rounded_bytes
from g10sim.policies.plan import PlannedMove
from g10sim.policies.plan_comparison import PlanComparison, ShiftedMove, compare_plans
from g10sim.policies.plan_format import load_plan
from g10sim.records import Location
from g10sim.trace.format import load_trace
from g10sim.trace.model import Trace

app = typer.Typer(help="Look at migration plans and compare them.", no_args_is_help=True)
app.command()(swaps)

_TARGETS = (Location.GPU, Location.HOST, Location.FLASH, Location.NONE)

TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="Trace that the plan is for: checks the plan and adds bytes.", show_default=False
    ),
]
MovesOption = Annotated[int, typer.Option("--moves", min=0, help="How many moves to list.")]


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="Plan file (.g10p, or a published prefetch guide).")],
    trace_file: TraceOption = None,
    moves: MovesOption = 20,
) -> None:
    """Show how many moves a plan has by target, and its first moves."""
    trace = load_trace(trace_file) if trace_file else None
    plan = load_plan(file, trace)
    console = Console()
    _say(
        console, f"{file}: {len(plan.moves)} moves" + (f", planned by {plan.planner}" if plan.planner else "")
    )
    table = Table("target", "moves", "tensors", *(["bytes"] if trace else []))
    for target in _TARGETS:
        tensors = [move.tensor for move in plan.moves if move.target is target]
        counts = [str(len(tensors)), str(len(set(tensors)))]
        table.add_row(_name(target), *counts, *_sum_bytes(trace, tensors))
    console.print(_right_aligned(table, 1))
    rows = ((str(m.kernel), str(m.tensor), _name(m.target), *_details(trace, m.tensor)) for m in plan.moves)
    if moves and plan.moves:
        table = Table("kernel", "tensor", "to", *_detail_columns(trace), title="First moves")
        _print_first(console, table, rows, moves)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="Plan file.")],
    second: Annotated[Path, typer.Argument(help="Plan file to compare with it.")],
    trace_file: TraceOption = None,
    moves: MovesOption = 20,
) -> None:
    """Compare two plans: moves in both, at other kernels, or in one only; then the first differences."""
    trace = load_trace(trace_file) if trace_file else None
    plans = load_plan(first, trace), load_plan(second, trace)
    found = compare_plans(*plans)
    console = Console()
    _say(console, f"first:  {first}")
    _say(console, f"second: {second}")
    console.print(_counts_by_target(found, trace))
    rows = list(_differences(found, trace))
    if rows and moves:
        columns = ("tensor", "to", "kernel in first", "kernel in second", *_detail_columns(trace))
        table = Table(*columns, title=f"First differences of {len(rows)}")
        _print_first(console, table, rows, moves)
    if not rows and not found.same_order:
        console.print("The plans have the same moves, in another order within kernels.")
    elif not rows:
        console.print("The plans have the same moves.")


def _counts_by_target(found: PlanComparison, trace: Trace | None) -> Table:
    table = Table("moves", *map(_name, _TARGETS))
    groups: dict[str, Sequence[PlannedMove | ShiftedMove]] = {
        "in both": found.same,
        "at other kernels": found.shifted,
        "only in first": found.only_first,
        "only in second": found.only_second,
    }
    for name, group in groups.items():
        cells = []
        for target in _TARGETS:
            tensors = [move.tensor for move in group if move.target is target]
            cells.append("\n".join([str(len(tensors)), *_sum_bytes(trace, tensors)]))
        table.add_row(name, *cells)
    return _right_aligned(table, 1)


def _differences(found: PlanComparison, trace: Trace | None) -> Iterator[tuple[str, ...]]:
    """Rows of the differences, earliest kernel first."""
    entries: list[tuple[int, int, Location, str, str]] = []
    entries += [(m.kernel, m.tensor, m.target, str(m.kernel), "-") for m in found.only_first]
    entries += [(m.kernel, m.tensor, m.target, "-", str(m.kernel)) for m in found.only_second]
    for shift in found.shifted:
        kernels = shift.first_kernel, shift.second_kernel
        entries.append((min(kernels), shift.tensor, shift.target, str(kernels[0]), str(kernels[1])))
    for _, tensor, target, first, second in sorted(entries):
        yield str(tensor), _name(target), first, second, *_details(trace, tensor)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _name(target: Location) -> str:
    return "freed" if target is Location.NONE else target.name


def _sum_bytes(trace: Trace | None, tensors: Iterable[int]) -> list[str]:
    if trace is None:
        return []
    return [rounded_bytes(sum(trace.tensors[tensor].size_bytes for tensor in tensors))]


def _detail_columns(trace: Trace | None) -> tuple[str, ...]:
    return ("name", "size") if trace else ()


def _details(trace: Trace | None, tensor: int) -> tuple[str, ...]:
    if trace is None:
        return ()
    return escape(trace.tensors[tensor].name), rounded_bytes(trace.tensors[tensor].size_bytes)


def _print_first(console: Console, table: Table, rows: Iterable[tuple[str, ...]], count: int) -> None:
    for row in islice(rows, count):
        table.add_row(*row)
    console.print(_right_aligned(table, 0))


def _right_aligned(table: Table, first: int) -> Table:
    table.title_justify = "left"
    for column in table.columns[first:]:
        column.justify = "right"
    return table
