"""``g10sim plan``: look at migration plans, compare them, and what swaps cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from g10sim.cli.options import DEFAULT_SYSTEM, TraceFile, chosen, output_to, sizes
from g10sim.cli.output import say, show_table
from g10sim.config.presets import load_system
from g10sim.display import rounded_bytes
from g10sim.files import write_csv
from g10sim.grouping import grouped
from g10sim.policies.designs.autoswap.planner import MODES, SCORES
from g10sim.policies.interface.contract import Move
from g10sim.policies.interface.plan import PlanComparison, Planned, compare_plans
from g10sim.policies.interface.plan_format import load_plan, options_of
from g10sim.reproduce.swaps import SwapOutcome, explore_swaps, load_range_bytes
from g10sim.trace.format import load_trace
from g10sim.trace.model import Trace
from g10sim.units import cycles_to_ms

app = typer.Typer(
    help="Look at migration plans and compare them.", no_args_is_help=True, add_completion=False
)

_USUAL = ("fetch", "evict to host", "evict to ssd", "free")
_SHOWN_ELSEWHERE = ("tensor", "tensors", "target")

TraceOption = Annotated[
    Path | None, Option("--trace", help="Trace that the plan is for: checks the plan and adds bytes.")
]
MovesOption = Annotated[int, Option("--moves", min=0, help="Number of moves to list.")]
_LIMIT_HELP = "Memory of the GPU, such as '20 GiB'; may be repeated."
_SCORE_HELP = f"Order of candidates: {', '.join(SCORES)}; may be repeated."
Limits = Annotated[list[str] | None, Option("--limit", help=_LIMIT_HELP, show_default="steps of the load")]
Scores = Annotated[list[str] | None, Option("--score", help=_SCORE_HELP, show_default="swdoa")]


@app.command()
def swaps(
    file: TraceFile,
    system: Annotated[
        str, Option(help="Hardware preset or YAML file, except for its GPU memory.")
    ] = DEFAULT_SYSTEM,
    limits: Limits = None,
    steps: Annotated[
        int, Option(min=1, max=1000, help="Limits between the least load and the peak, without --limit.")
    ] = 6,
    scores: Scores = None,
    mode: Annotated[
        str, Option(help=f"Swap as much as the limit needs, or as costs nothing: {' or '.join(MODES)}.")
    ] = MODES[0],
    simulate: Annotated[bool, Option(help="Simulate every plan.")] = True,
    output: Annotated[Path | None, output_to("Write the table as CSV, in bytes and cycles.")] = None,
) -> None:
    """Swap tensors that no kernel uses around the load peak: overhead as planned and as simulated.

    Each limit is the memory of a GPU. 'Expected' is the planner's estimate, 'summed waits' that of the
    design's authors, who add up the waits of all copies; 'simulated' is what happens.
    """
    orders = [chosen("--score", name, SCORES) for name in scores or ("swdoa",)]
    wanted = chosen("--mode", mode, MODES)
    trace, machine = load_trace(file), load_system(system)
    least, peak = load_range_bytes(trace, machine)
    memories = [peak - (peak - least) * step // steps for step in range(steps + 1)]
    memories = sizes("--limit", limits) if limits else memories
    found = list(explore_swaps(trace, machine, memories, orders, wanted, simulates=simulate))
    if output is not None:
        records = [outcome.record() for outcome in found]
        write_csv(output, list(records[0]), records)
    loads = f"load peak {rounded_bytes(peak)}, {rounded_bytes(least)} with all candidates away"
    say(f"{file}: {loads}; {_ms(found[0].ideal_cycles, machine.gpu.clock)} without overhead")
    figures = ("less than peak", "swapped", "load", "pool", "expected", "summed waits", "simulated")
    rows = [_swap_row(outcome, peak, machine.gpu.clock) for outcome in found]
    show_table(("limit", "score"), figures, rows)
    for message in dict.fromkeys(outcome.message for outcome in found if outcome.message):
        say(f"unsupported: {message}")


def _swap_row(outcome: SwapOutcome, peak: int, clock_hz: int) -> Sequence[str]:
    limit = (rounded_bytes(outcome.limit_bytes), outcome.score, f"{1 - outcome.limit_bytes / peak:.1%}")
    if outcome.plan is None:
        return (*limit, *("-",) * 6)
    schedule = outcome.plan.swaps.schedule
    swapped = f"{len(schedule.swaps)} of {len(outcome.plan.swaps.candidates)}"
    sizes_used = map(rounded_bytes, (schedule.peak_bytes, outcome.plan.pool.footprint_bytes))
    cycles = schedule.overhead_cycles, schedule.summed_waits_cycles, outcome.simulated_cycles
    times = ("-" if one is None else _ms(one, clock_hz) for one in cycles)
    return (*limit, swapped, *sizes_used, *times)


def _ms(cycles: int, clock_hz: int) -> str:
    return f"{cycles_to_ms(cycles, clock_hz):.3f} ms"


@app.command()
def show(
    file: Annotated[Path, Argument(help="Plan file (.g10p, or a published prefetch guide).")],
    trace_file: TraceOption = None,
    moves: MovesOption = 20,
) -> None:
    """Show how many moves of each kind a plan has, and its first moves."""
    trace = load_trace(trace_file) if trace_file else None
    plan = load_plan(file, trace)
    say(f"{file}: {len(plan.moves)} moves" + (f", planned by {plan.planner}" if plan.planner else ""))
    counts = (
        (kind, str(len(group)), str(len(set(_tensors(group)))), *_bytes(trace, _tensors(group)))
        for kind, group in _by_kind(plan.moves).items()
    )
    show_table(("move",), ("moves", "tensors", *(["bytes"] if trace else [])), counts)
    if moves and plan.moves:
        rows = ((_time(entry), *_cells(entry.move, trace)) for entry in islice(plan.moves, moves))
        _show_moves("First moves", ("kernel",), rows, trace)


@app.command()
def diff(
    first: Annotated[Path, Argument(help="Plan file.")],
    second: Annotated[Path, Argument(help="Plan file to compare with it.")],
    trace_file: TraceOption = None,
    moves: MovesOption = 20,
) -> None:
    """Compare two plans: moves in both, at other kernels, or in one only; then the first differences."""
    trace = load_trace(trace_file) if trace_file else None
    found = compare_plans(load_plan(first, trace), load_plan(second, trace))
    say(f"first:  {first}", f"second: {second}")
    _show_counts(found, trace)
    rows = list(_differences(found, trace))
    if rows and moves:
        title = f"First differences of {len(rows)}"
        _show_moves(title, ("kernel in first", "kernel in second"), rows[:moves], trace)
    if not rows:
        order = "" if found.same_order else ", in another order within kernels"
        say(f"The plans have the same moves{order}.")


def _show_counts(found: PlanComparison, trace: Trace | None) -> None:
    groups = {
        "in both": _by_kind(found.same),
        "at other kernels": _by_kind(first for first, _ in found.shifted),
        "only in first": _by_kind(found.only_first),
        "only in second": _by_kind(found.only_second),
    }
    kinds = list(dict.fromkeys(chain.from_iterable(groups.values())))
    rows = []
    for name, group in groups.items():
        cells = [group.get(kind, []) for kind in kinds]
        rows.append([name, *(", ".join([str(len(c)), *_bytes(trace, _tensors(c))]) for c in cells)])
    show_table(("moves",), kinds, rows)


def _differences(found: PlanComparison, trace: Trace | None) -> Iterator[tuple[str, ...]]:
    """Rows of the differences, earliest kernel first."""
    pairs: list[tuple[Planned | None, ...]] = list(found.shifted)
    pairs += [(first, None) for first in found.only_first]
    pairs += [(None, second) for second in found.only_second]

    def position(pair: tuple[Planned | None, ...]) -> tuple[int, list[int]]:
        there = [entry for entry in pair if entry is not None]
        return min(entry.kernel for entry in there), sorted(there[0].move.subjects())

    for pair in sorted(pairs, key=position):
        move = next(entry.move for entry in pair if entry is not None)
        yield *map(_time, pair), *_cells(move, trace)


def _kind(move: Move) -> str:
    return " to ".join((move.name, *move.tiers()))


def _by_kind(moves: Iterable[Planned]) -> dict[str, list[Planned]]:
    """Group moves by kind: the usual kinds first, then the others that occur."""
    usual: dict[str, list[Planned]] = {kind: [] for kind in _USUAL}
    return usual | grouped((_kind(entry.move), entry) for entry in moves)


def _tensors(moves: Iterable[Planned]) -> list[int]:
    return [tensor for entry in moves for tensor in entry.move.subjects()]


def _bytes(trace: Trace | None, tensors: Iterable[int]) -> list[str]:
    if trace is None:
        return []
    return [rounded_bytes(sum(trace.tensors[tensor].size_bytes for tensor in tensors))]


def _time(entry: Planned | None) -> str:
    if entry is None:
        return "-"
    return f"{entry.kernel} + {entry.delay_cycles} cycles" if entry.delay_cycles else str(entry.kernel)


def _cells(move: Move, trace: Trace | None) -> tuple[str, ...]:
    """Return the tensors of a move, and its kind with its options; with a trace, names and size too."""
    named = sorted(move.subjects())
    options = [f"{key} {value}" for key, value in options_of(move).items() if key not in _SHOWN_ELSEWHERE]
    names = [", ".join(trace.tensors[tensor].name for tensor in named)] if trace else []
    return ", ".join(map(str, named)), ", ".join([_kind(move), *options]), *names, *_bytes(trace, named)


def _show_moves(
    title: str, kernels: tuple[str, ...], rows: Iterable[tuple[str, ...]], trace: Trace | None
) -> None:
    names, figures = (("name",), ("size",)) if trace else ((), ())
    show_table((*kernels, "tensor", "move", *names), figures, rows, title)
