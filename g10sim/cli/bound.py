"""``g10sim bound``: the least time that an iteration can take, whatever the policy, and the reason."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from g10sim.analysis.bound.bound import CHECKPOINTS, Bound, iteration_bound
from g10sim.analysis.footprint import peak_live_bytes
from g10sim.cli.options import TraceFile
from g10sim.cli.output import say, show_table
from g10sim.config.presets import load_system
from g10sim.display import rounded_bytes, rounded_seconds
from g10sim.results.bounds import bound_machine
from g10sim.trace.format import load_trace


def bound(
    file: TraceFile,
    system: Annotated[str, Option(help="Hardware preset or YAML file.")],
    steady: Annotated[
        bool, Option("--steady", help="Bound the average of many iterations instead of a single one.")
    ] = False,
    lp: Annotated[
        bool, Option("--lp", help="Solve a linear program: higher than the closed form, or equal.")
    ] = False,
    recompute: Annotated[
        bool, Option("--recompute", help="Let tensors be dropped and computed again; implies --lp.")
    ] = False,
    checkpoints: Annotated[
        int, Option(min=1, help="Kernels at which the linear program looks at memory.")
    ] = CHECKPOINTS,
) -> None:
    """Show the time that no paged policy can beat on a trace, and what makes it so."""
    trace, machine = load_trace(file), load_system(system)
    limits, at = bound_machine(machine), checkpoints if lp or recompute else None
    found = iteration_bound(trace, limits, steady=steady, recompute=recompute, checkpoints=at)
    alive, memory = rounded_bytes(peak_live_bytes(trace)), rounded_bytes(machine.gpu.memory)
    title = f"{trace.model}, batch size {trace.batch_size}, on {machine.name}"
    say(f"{title}: at most {alive} alive at a time, {memory} of GPU memory")
    clock = machine.gpu.clock
    show_table(("bound", "from"), ("cycles", "time", "kernels", "stall", "of ideal"), [_row(found, clock)])
    rows = _resources(found, clock)
    if rows:
        show_table(("resource",), ("stall", "saved by 1 % more"), rows)
    say(_verdict(found, clock))


def _row(found: Bound, clock: int) -> tuple[str, ...]:
    times = (found.cycles, found.ideal_cycles, found.stall_cycles)
    share = found.ideal_cycles / found.cycles if found.cycles else 1.0
    seconds = (rounded_seconds(cycles / clock) for cycles in times)
    return found.kind, found.method, f"{found.cycles:,}", *seconds, f"{share:.4f}"


def _resources(found: Bound, clock: int) -> list[tuple[str, ...]]:
    """Return a row for every resource that matters."""
    rows = []
    for name in dict.fromkeys([*found.stalls, *found.savings]):
        cycles = found.stalls.get(name, 0.0), found.savings.get(name, 0.0)
        if max(cycles) >= 1:
            rows.append((name, *(rounded_seconds(one / clock) if one >= 1 else "" for one in cycles)))
    return rows


def _verdict(found: Bound, clock: int) -> str:
    who = "even if it computes dropped tensors again" if found.recompute else "unless it drops tensors"
    what = "an iteration on average" if found.steady else "for any iteration"
    text = f"No paged policy, {who}, needs less than {rounded_seconds(found.cycles / clock)} {what}"
    if not found.stall_cycles:
        return f"{text}: the time of the kernels."
    stall = rounded_seconds(found.stall_cycles / clock)
    return f"{text}: {stall} more than the kernels, most of it due to {found.resource}."
