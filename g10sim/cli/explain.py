"""``g10sim explain``: in words, what a cell of a run spent its time on and why."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Option

from g10sim.cli import options
from g10sim.cli.output import say, say_json, show_table
from g10sim.experiment.stored_cells import OpenedCell, WhatIf, changes_of, open_cell, seconds_of, what_if
from g10sim.explain.cell import describe_cell, kernel_lines, time_shares, told
from g10sim.results.seeds import range_lines

_MOST_CHANGES, _NEGLIGIBLE = 3, 0.0005
_PATIENCE = 20
"""Most seconds that changes nobody asked for may take."""
_WHAT_IF_HELP = "Simulate again with one thing changed at a time, however long it takes; or never."
_WHAT_IF_DEFAULT = f"name the best three; of other policies only where all takes at most {_PATIENCE} s"


def explain(
    directory: options.ResultsDirectory,
    cell: options.CellNumber = None,
    policy: options.PolicyName = "",
    trace: options.TraceName = "",
    where: options.Where = None,
    job: Annotated[int, Option(min=0, help="Number of the job, where a cell has several.")] = 0,
    kernel: Annotated[int | None, Option(min=0, help="Look at one kernel only, by its number.")] = None,
    simulate: Annotated[
        bool | None, Option("--what-if/--no-what-if", help=f"{_WHAT_IF_HELP} [default: {_WHAT_IF_DEFAULT}]")
    ] = None,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Say where the time of a cell went, which kernels, tensors and links are to blame, what may help.

    All of it comes from the records of the run. Only the changes at the end are simulated. Kernels,
    tensors and links need a run with 'record: [kernels, migrations]'.
    """
    opened = open_cell(directory, cell, job, options.where_values(where or (), policy, trace), trust=trust)
    if kernel is not None:
        of_kernel = [*kernel_lines(opened, kernel)]
        if json:
            say_json({"kernel": kernel, "sentences": of_kernel})
        else:
            say(*of_kernel)
        return
    heading, sections = describe_cell(opened)
    if ranges := range_lines(directory, int(opened.row["cell"])):
        sections.insert(0, ("How sure it is", ranges))
    if json:
        changes = [asdict(one) for one in what_if(opened, job)] if simulate else None
        sentences = {"heading": heading, "sections": dict(sections), "what_if": changes}
        say_json({"row": told(opened), **sentences})
        return
    say(heading, "")
    show_table(("where the time went",), ("time", "share"), time_shares(opened))
    for title, lines in sections:
        say("", title, *(f"  {line}" for line in lines))
    say("")
    if simulate:
        found = list(what_if(opened, job))
        _show_what_if(found)
        say(_most_help(found))
    elif simulate is None:
        say(_best_changes(directory, opened, job))


def _best_changes(directory: Path, opened: OpenedCell, job: int) -> str:
    """Name the changes that help most, unless nothing was lost or finding them takes long."""
    if opened.row["exec_cycles"] <= opened.row["ideal_cycles"]:
        return "Nothing was lost: no change can help."
    changes, seconds = changes_of(opened.cell), seconds_of(directory, int(opened.row["cell"]))
    more = f"--what-if simulates {len(changes)} changes (about {len(changes) * seconds:,.0f} s)"
    of_policy = {name: cell for name, cell in changes.items() if cell.policy == opened.cell.policy}
    for tried, left_out in ((changes, ""), (of_policy, f" {more}, other policies too.")):
        if len(tried) * seconds <= _PATIENCE:
            return f"{_most_help(list(what_if(opened, job, tried)))}{left_out}"
    return f"{more} and names the best three."


def _show_what_if(found: list[WhatIf]) -> None:
    """Show what simulating again gave."""
    now = found[0].exec_ms or 0.0
    rows = []
    for one in found:
        if one.exec_ms is None or one.performance is None:
            rows.append((one.change, "", "", "cannot run"))
        else:
            change = f"{one.exec_ms / now - 1:+.1%}" if now else ""
            rows.append((one.change, f"{one.exec_ms:,.1f}", f"{one.performance:.1%}", change))
    what = "what if (simulated again, one change at a time)"
    show_table((what,), ("time (ms)", "of ideal", "change of time"), rows)
    say("")


def _most_help(found: list[WhatIf]) -> str:
    """Name the changes that save most time, of all that were simulated."""
    now = found[0].exec_ms or 0.0
    faster = [(1 - one.exec_ms / now, one.change) for one in found if one.exec_ms is not None and now]
    best = sorted((pair for pair in faster if pair[0] > _NEGLIGIBLE), reverse=True)[:_MOST_CHANGES]
    if not best:
        return "None of these changes helps."
    named = ", ".join(f"{change} ({saved:.1%} less time)" for saved, change in best)
    return f"What helps most, simulated: {named}."
