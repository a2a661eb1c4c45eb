"""The words of ``g10sim explain`` on the bound: the part of what is lost that nobody could avoid."""

from __future__ import annotations

from collections.abc import Iterator

from g10sim.display import rounded_seconds
from g10sim.experiment.stored_cells import OpenedCell
from g10sim.results.bounds import NO_BOUND, closed_form_of

_WHO = "paged policy that drops nothing"


def bound_lines(opened: OpenedCell) -> Iterator[str]:
    """Yield how much of the stall no policy avoids, and what makes it so; nothing for older results."""
    row, clock = opened.row, opened.system.gpu.clock
    kind = row.get("bound_kind")
    if not isinstance(kind, str):
        return
    if kind.startswith(NO_BOUND):
        yield f"Bound: {kind}"
        return
    found = closed_form_of(opened.workload, opened.system, steady=kind == "steady")
    lost = row["exec_cycles"] - row["ideal_cycles"]
    if not found.stall_cycles:
        yield f"Bound: all of it may be avoidable: the time of the kernels is the bound of every {_WHO}"
        return
    causes = [
        f"{rounded_seconds(cycles / clock)} because of {name}"
        for name, cycles in sorted(found.stalls.items(), key=lambda item: -item[1])
    ]
    yield (
        f"Bound: no {_WHO} avoids {rounded_seconds(found.stall_cycles / clock)} of it "
        f"({found.stall_cycles / lost:.0%}): {', '.join(causes)}"
    )
    rest = max(0, lost - found.stall_cycles)
    yield f"Bound: the other {rounded_seconds(rest / clock)} are the most that a better policy can gain"
