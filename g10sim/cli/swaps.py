"""``g10sim plan swaps``: what swapping around the load peak costs at which memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from g10sim.cli.output import say, show_table
from g10sim.cli.pools import write_table
from g10sim.cli.text import rounded_bytes
from g10sim.config.presets import load_system
from g10sim.errors import ConfigError
from g10sim.experiment.swaps import SwapOutcome, explore_swaps, load_range_bytes
from g10sim.policies.autoswap_planning.planner import MODES, SCORES, Mode, ScoreName
from g10sim.registry import choices_text, nearest
from g10sim.trace.format import load_trace
from g10sim.units import cycles_to_ms, parse_bytes

_DEFAULT_SYSTEM = "a100-40g-pcie3-znand"


def swaps(
    file: Annotated[Path, typer.Argument(help="Trace file.", show_default=False)],
    system: Annotated[
        str, typer.Option(help="Hardware preset or YAML file, but for its GPU memory.")
    ] = _DEFAULT_SYSTEM,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", help="Memory limit, such as '20 GiB'.", show_default="steps of the load"),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Limits between the least load and the peak, without --limit.")
    ] = 6,
    scores: Annotated[
        list[str] | None, typer.Option("--score", help="Order of candidates.", show_default="swdoa")
    ] = None,
    mode: Annotated[str, typer.Option(help="stick_to_limit or no_overhead.")] = MODES[0],
    simulate: Annotated[bool, typer.Option(help="Simulate every plan.")] = True,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write the table as CSV, in bytes and cycles.", show_default=False
        ),
    ] = None,
) -> None:
    """Swap tensors that nobody uses around the load peak: overhead as planned and as simulated.

    Each limit is the memory of a GPU. 'Expected' is the planner's estimate, 'summed waits' that of the
    design's authors, who add up the waits of all copies; 'simulated' is what happens.
    """
    chosen = [_score(name) for name in scores or ("swdoa",)]
    wanted = _mode(mode)
    trace, machine = load_trace(file), load_system(system)
    least, peak = load_range_bytes(trace, machine)
    sizes = _limits(limits) if limits else _steps(least, peak, steps)
    found = list(explore_swaps(trace, machine, sizes, chosen, wanted, simulates=simulate))
    if output is not None:
        write_table(output, [outcome.record() for outcome in found])
    say(
        f"{file}: load peak {rounded_bytes(peak)}, {rounded_bytes(least)} with all candidates away; "
        f"{cycles_to_ms(found[0].ideal_cycles, machine.gpu.clock):.3f} ms without overhead"
    )
    show_table(
        ("limit", "score"),
        ("less than peak", "swapped", "load", "pool", "expected", "summed waits", "simulated"),
        [_row(outcome, peak, machine.gpu.clock) for outcome in found],
    )
    for message in dict.fromkeys(outcome.message for outcome in found if outcome.message):
        say(f"unsupported: {message}")


def _row(outcome: SwapOutcome, peak: int, clock_hz: int) -> Sequence[str]:
    limit = (rounded_bytes(outcome.limit_bytes), outcome.score, f"{1 - outcome.limit_bytes / peak:.1%}")
    if outcome.plan is None:
        return (*limit, *("-",) * 6)
    schedule = outcome.plan.swaps.schedule
    simulated = outcome.simulated_cycles
    return (
        *limit,
        f"{len(schedule.swaps)} of {len(outcome.plan.swaps.candidates)}",
        rounded_bytes(schedule.peak_bytes),
        rounded_bytes(outcome.plan.pool.footprint_bytes),
        _ms(schedule.overhead_cycles, clock_hz),
        _ms(schedule.summed_waits_cycles, clock_hz),
        "-" if simulated is None else _ms(simulated, clock_hz),
    )


def _ms(cycles: int, clock_hz: int) -> str:
    return f"{cycles_to_ms(cycles, clock_hz):.3f} ms"


def _steps(least: int, peak: int, steps: int) -> list[int]:
    return [peak - (peak - least) * step // steps for step in range(steps + 1)]


def _limits(texts: Sequence[str]) -> list[int]:
    sizes = []
    for text in texts:
        try:
            sizes.append(parse_bytes(text))
        except ValueError as error:
            raise ConfigError(f"--limit: {error}") from None
        if sizes[-1] == 0:
            raise ConfigError(f"--limit: found {text!r}; allowed: more than zero")
    return sizes


def _score(name: str) -> ScoreName:
    for score in SCORES:
        if score == name:
            return score
    raise ConfigError(f"--score: found {name!r}{nearest(name, SCORES)}; allowed: {choices_text(SCORES)}")


def _mode(name: str) -> Mode:
    for mode in MODES:
        if mode == name:
            return mode
    raise ConfigError(f"--mode: found {name!r}{nearest(name, MODES)}; allowed: {choices_text(MODES)}")
